"""The note of a home's deployment, ``run/deployed.json``, for ``modelless upgrade``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelless.common.files import write_whole

if TYPE_CHECKING:
    from modelless.controller.config import Settings

AUTH_MODE = "RAY_AUTH_MODE"
_FILE = "deployed.json"


@dataclass(frozen=True, slots=True)
class Deployed:
    """A modelless in a Ray cluster.

    Attributes:
        address: of the Ray cluster, for a process that joins it.
        is_own: whether that cluster is modelless's own and ends with it.
        settings: as a document; the release that reads it may have other ones.
        auth_mode: how that cluster knows who may join it, as RAY_AUTH_MODE says; the token stays
            where Ray keeps it.
        python: the environment whose modelless runs, as ``sys.prefix`` says.
    """

    address: str
    is_own: bool
    settings: dict[str, Any]
    auth_mode: str = ""
    python: str = sys.prefix


def write_deployed(home: Path, address: str, settings: Settings, *, is_own: bool) -> None:
    """Note it, in a process that has joined. OSError if it cannot be written."""
    auth_mode = os.environ.get(AUTH_MODE, "")
    deployed = Deployed(address, is_own, settings.model_dump(mode="json"), auth_mode)
    write_whole(home / "run" / _FILE, json.dumps(asdict(deployed), indent=1).encode())


def read_deployed(home: Path) -> Deployed | None:
    """What was noted last; None if nothing was, or another release wrote it otherwise."""
    try:
        return Deployed(**json.loads((home / "run" / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
