"""The supervisor's signals: the first one takes everything down, those after it do nothing."""

from __future__ import annotations

import signal
import threading
from typing import Any


class FirstSignal:
    """The first Ctrl-C or SIGTERM raises KeyboardInterrupt; those that follow do nothing.

    Works in the main thread only, the one that Python gives signals to; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._muted = False

    def install(self) -> None:
        """Take the signals over, or back from whoever took them since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def mute(self) -> None:
        """From now on they do nothing."""
        self._muted = True

    def restore(self) -> None:
        """Give the signals back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        if not self._muted:
            self._muted = True
            raise KeyboardInterrupt
