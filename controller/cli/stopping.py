"""Being told to stop: Ctrl-C, ``modelless down``, or the terminal going away."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Asked to stop, politely: not an error, and nothing that ``except Exception`` may swallow."""


class StopSignals:
    """Turns the first of the signals into an exception in the main thread, and ignores the rest.

    A second Ctrl-C while everything is being taken down would leave half of it behind.
    SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise Stopped. What was ignored before stays
    so: that is what ``nohup`` asks for. Use as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_told = False

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.getsignal(number) for number in _STOP}
        self.arm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Put the handlers in place, again if a library has put its own there."""
        if not self._is_told:
            for number, before in self._before.items():
                if before is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)

    def wait(self) -> None:
        """Wait for a signal. Never returns: it raises."""
        threading.Event().wait()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._is_told = True
        for each in _STOP:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped
