"""The deployment files, parsed."""

from __future__ import annotations

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
