"""Python's garbage collector, kept from looking through everything that a gateway remembers."""

from __future__ import annotations

import gc
from typing import Final

WHOLE_S: Final = 3600.0
"""How often it looks through everything when nothing is open; in busy gateways half as often."""


class Collector:
    """Collects garbage once a second, of that second alone; and seldom all.

    A collection of everything that is remembered, receipts above all, holds the event loop: 37 ms
    after 10,000 queries, and ever longer. What outlives its second is hardly ever garbage in a
    cycle, which only the collector frees.

    Args:
        now_s: the time, seconds of any clock.
    """

    def __init__(self, now_s: float) -> None:
        self._whole_s = now_s

    def collect(self, now_s: float, *, is_idle: bool) -> None:
        """Collect the last second's garbage, or all if that is due. Call this once a second."""
        if now_s - self._whole_s >= (WHOLE_S if is_idle else 2.0 * WHOLE_S):
            self._whole_s = now_s
            gc.unfreeze()
        gc.collect()
        gc.freeze()
