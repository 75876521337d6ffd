"""A policy that does not return: its run ends with an error that names it, instead of never."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from modelless.variants.errors import InvalidInputError

_CONTROLLER = "modelless.controller."
_ASKING = ("modelless.controller.core.", "modelless.controller.sim.")
_DEBUGGERS = ("bdb", "pdb")


class _HangsError(BaseException):
    """Raised in the midst of what hangs: no policy's ``except Exception`` is to catch it."""


@contextmanager
def ended_if_hanging(moves: Callable[[], object], limit_s: float) -> Iterator[None]:
    """End the block if nothing moves for ``limit_s`` to twice as long, in a policy's code.

    Watches by an alarm signal, which costs nothing in between; so only in a main thread, and only
    where the system has such signals. What never comes back from C code cannot be ended.

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
        culprit = _culprit(frame) if now == seen else ""
        if culprit:
            raise _HangsError(f"{culprit}, which did not return within {limit_s:g} s")
        seen = now

    began_s = time.monotonic()
    handler = signal.signal(signal.SIGALRM, look)
    rest_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    except _HangsError as hangs:
        allowed = "those that answer within limits.policy_s; raise it if this one only needs longer"
        raise InvalidInputError.of("policies", str(hangs), allowed) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if rest_s:  # somebody else's alarm was set: as it would be now
            rest_s = max(rest_s - (time.monotonic() - began_s), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest_s, every_s)


def _culprit(frame: FrameType | None) -> str:
    """The call from a core or the simulator to other code that has not come back, and where it is
    now; empty if there is none, as when the log's disk stalls, or if somebody debugs it."""
    where, called = "", None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name in _DEBUGGERS:
            return ""
        where = where or f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        is_ours = name.startswith(_CONTROLLER)
        if called is not None and name.startswith(_ASKING):
            return f"{called.f_code.co_qualname} ({where})"
        called, frame = None if is_ours else frame, frame.f_back
    return ""
