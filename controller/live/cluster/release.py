"""What a process runs: the code on disk as it began, with its settings; and the protocol it speaks.

Ray starts what has died from the code on disk, so after an installation processes of two releases
may meet at any time, and while a cluster is upgraded they do.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import modelless
from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.config import Settings

PROTOCOL: Final = 6
"""Of all messages between processes: ``MemberReport``, ``Orders``, ``PoolWorker.run_batch``, and
the words with which ``live/haproxy/launcher`` is called. Raise it with every change to these that a
process of the release before would misread; its processes are refused then, and a cluster of that
release cannot be upgraded while it serves."""


class ProtocolError(EnvironmentUnfitError):
    """Another release speaks, and what it says would be misread."""

    @classmethod
    def between(cls, theirs: int) -> ProtocolError:
        """The error for a process that speaks protocol ``theirs`` to one of this release."""
        return cls(
            f"protocol: {theirs} meets {PROTOCOL}, which is all that modelless "
            f"{modelless.__version__} understands: processes of two releases run side by side; "
            "'modelless down' and 'modelless up' make them one"
        )


def release_of(settings: Settings) -> str:
    """The name of the code on disk with these settings, such as ``0.1.0+1f0c9a2b.77de01c4``."""
    document = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    joint = "." if "+" in modelless.__version__ else "+"
    return f"{modelless.__version__}{joint}{_code_digest()}.{_short(document.encode())}"


@cache
def _code_digest() -> str:
    """Of every module of the package; once a process, soon after it began."""
    root = Path(modelless.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(_modules(root)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def _modules(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root, followlinks=True):  # a checkout's are links
        yield from (Path(folder) / name for name in names if name.endswith(".py"))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
