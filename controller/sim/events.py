"""The virtual clock: what will happen, in order; equals in the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """An event heap.

    Attributes:
        now_s: the time of the event that happens now; it never goes back.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._planned = 0

    @property
    def happened(self) -> int:
        return self._planned - len(self._heap)

    def at(self, at_s: float, act: Callable[[Any], None], what: Any = None) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (at_s, self._planned, act, what))

    def happen_until(self, until_s: float) -> None:
        """Let everything happen up to and at ``until_s``; then it is that time."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.happen()
        self.now_s = until_s

    def happen(self) -> None:
        at_s, _, act, what = heapq.heappop(self._heap)
        if at_s > self.now_s:
            self.now_s = at_s
        act(what)
