"""Where the house stands, and its modules read and parsed."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("controller", "policies", "profiler", "variants")


@dataclass(frozen=True)
class Module:
    """One module of the package."""

    name: str
    text: str
    tree: ast.Module


def read_modules() -> list[Module]:
    """Every module of the package, in order of name."""
    package = ROOT / "src" / "modelless"
    folders = [*(ROOT / folder for folder in FOLDERS), package / "common"]
    inside = [path for folder in folders for path in folder.rglob("*.py")]
    paths = [package / "__init__.py", *inside]
    # CPython 3.11 loses its place in a parse during which a finalizer formats a traceback,
    # because that parses, too: what other tests have left behind waits.
    gc.disable()
    try:
        return sorted(map(_read, paths), key=lambda module: module.name)
    finally:
        gc.enable()


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("modelless", *parts)
    return Module(".".join(parts).removesuffix(".__init__"), text, ast.parse(text))
