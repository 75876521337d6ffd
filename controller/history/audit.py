"""The audit log of a home, ``audit.jsonl``: a line for each administrative act, never rewritten."""

from __future__ import annotations

import getpass
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import StoreError
from modelless.common.files import make_private_folder

AUDIT: Final = "audit.jsonl"


def user_name() -> str:
    """The name of the user who gives the command, as the operating system knows it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"


def note_act(home: Path, act: str, user: str, **details: Any) -> None:
    """Append an administrative act to the audit log of a home.

    Raises:
        StoreError: it cannot be written: the act must not go unnoted.
    """
    entry = {"at": datetime.now(UTC).isoformat(), "user": user, "act": act, **details}
    path = home / AUDIT
    try:
        make_private_folder(home)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, default=str) + "\n")
    except OSError as error:
        raise StoreError(f"the audit log {path} cannot be written: {error}") from None
