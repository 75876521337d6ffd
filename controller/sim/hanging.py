"""A policy that does not return: its run ends with an error that names it, instead of never."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from modelless.variants.errors import InvalidInputError

_OURS = "modelless.controller."


class _HangsError(BaseException):
    """Raised in the midst of what hangs: no policy's ``except Exception`` is to catch it."""


@contextmanager
def ended_if_hanging(moves: Callable[[], object], limit_s: float) -> Iterator[None]:
    """End the block if nothing moves for ``limit_s`` to twice as long.

    Watches by an alarm signal, which costs nothing in between; so only in a main thread, and only
    where the system has such signals.

    Args:
        moves: changes with each event.
        limit_s: of wall-clock time.

    Raises:
        InvalidInputError: names what hung.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return
    seen = moves()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        now = moves()
        if now == seen:
            _raise(frame, limit_s)
        seen = now

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    except _HangsError as hangs:
        allowed = "those that answer within limits.policy_s; raise it if this one only needs longer"
        raise InvalidInputError.of("policies", str(hangs), allowed) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _raise(frame: FrameType | None, limit_s: float) -> NoReturn:
    raise _HangsError(f"{_culprit(frame)}, which did not return within {limit_s:g} s")


def _culprit(frame: FrameType | None) -> str:
    """The call out of the control plane's own code that has not come back, and where it is now."""
    if frame is None:
        return "a policy"
    where = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    outermost = frame
    while frame is not None and not str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        outermost, frame = frame, frame.f_back
    return f"{outermost.f_code.co_qualname} ({where})"
