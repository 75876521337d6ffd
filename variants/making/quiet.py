"""Keeping the tools' logging to themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logging_kept() -> Iterator[None]:
    """The root logger's handlers and level as they were, whatever an import sets up meanwhile."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def without_message(part: str) -> Iterator[None]:
    """Messages of the root logger that contain ``part`` are dropped."""

    def wanted(record: logging.LogRecord) -> bool:
        return part not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(wanted)
    try:
        yield
    finally:
        root.removeFilter(wanted)
