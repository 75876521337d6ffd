"""How busy a device was: by the clock, also while a batch still runs."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BusyMeter:
    """Share of the time in which a batch ran. One thread runs batches, another asks.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = clock()
        self._busy_s = 0.0  # of the time since then, without what runs now
        self._since_s: float | None = None

    def start(self) -> None:
        """A batch begins."""
        with self._lock:
            self._since_s = self._clock()

    def stop(self) -> None:
        """It has ended."""
        with self._lock:
            if self._since_s is not None:
                self._busy_s += self._clock() - self._since_s
                self._since_s = None

    def take_share(self) -> float:
        """The share since the last call, 0 to 1; what runs now counts up to now."""
        with self._lock:
            now_s = self._clock()
            busy_s, self._busy_s = self._busy_s, 0.0
            if self._since_s is not None:
                busy_s += now_s - self._since_s
                self._since_s = now_s
            span_s, self._asked_s = now_s - self._asked_s, now_s
        return min(busy_s / span_s, 1.0) if span_s > 0.0 else 0.0
