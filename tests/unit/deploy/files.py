"""The deployment files, parsed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SAFE = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONSAFEPATH": "1"}
"""What Ray's processes have in their environment, wherever they start."""


def documents(*parts: str) -> list[Any]:
    """Every document of a YAML file under ``deploy``."""
    return list(yaml.safe_load_all(DEPLOY.joinpath(*parts).read_text()))


def document(*parts: str) -> Any:
    """The one document of a YAML file under ``deploy``."""
    (found,) = documents(*parts)
    return found


def instructions(path: Path) -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word, rest) for word, _, rest in (s.partition(" ") for s in joined.splitlines()) if word
    ]


def environment(path: Path) -> dict[str, str]:
    """What an image sets for all that runs in it."""
    words = shlex.split(" ".join([rest for word, rest in instructions(path) if word == "ENV"]))
    return dict(word.split("=", 1) for word in words)
