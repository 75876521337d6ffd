"""How far a maker is: words of a step that takes long, for whoever runs it.

They go through a context variable, so that the seam of makers, most of which are quick, has no
argument for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_TOLD: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("told", default=None)


@contextmanager
def telling(told: Callable[[str], None]) -> Iterator[None]:
    """Hand what makers tell within the block to ``told``."""
    token = _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.reset(token)


def tell(words: str) -> None:
    """Say how far the step is; nobody may be listening."""
    told = _TOLD.get()
    if told is not None:
        told(words)
