"""The pages of the manual and the code blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
)


@dataclass(frozen=True)
class Block:
    """One fenced block of code."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    """The text of a page, named as in ``PAGES``."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(*languages: str) -> list[Block]:
    """Every block of every page that is in one of ``languages``."""
    return [
        Block(page, read(page).count("\n", 0, match.start()) + 1, match[1], match[2])
        for page in PAGES
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)
        if match[1] in languages
    ]
