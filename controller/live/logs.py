"""Where the cluster's processes write what operators should know: ``run/logs/`` of the home."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from modelless.common.files import make_private_folder

RAY_LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108  (where Ray writes, by its own choice)
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(home: Path, member: str) -> None:
    """Send this process's modelless log to a file of its own, at most 2 x 4 MiB of it."""
    folder = home / "run" / "logs"
    make_private_folder(folder)
    handler = RotatingFileHandler(folder / f"{member}.log", maxBytes=4 * 2**20, backupCount=1)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("modelless")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
