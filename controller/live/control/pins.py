"""Keeps what operators pinned in a file of the home, so that it outlives the cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from modelless.common.files import write_whole

logger = logging.getLogger(__name__)

PINS: Final = "pins.json"


def read_pins(home: Path) -> tuple[str, ...]:
    """Return the scopes that are pinned; none if the file is missing or damaged."""
    try:
        return tuple(map(str, json.loads((home / PINS).read_text())))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError) as error:
        logger.warning("%s cannot be read, so nothing is pinned: %s", home / PINS, error)
        return ()


def write_pins(home: Path, scopes: Iterable[str]) -> None:
    """Keep the scopes that are pinned; OSError if they cannot be written."""
    write_whole(home / PINS, json.dumps(list(scopes)).encode(), mode=0o600)
