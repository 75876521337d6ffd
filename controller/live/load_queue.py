"""What a device is still to load: in which order, and when it rests.

A load takes a whole core for up to a second. A worker that joins others while they are busy is told
to load dozens of variants that all of them hold, for the day when one is needed there; done in one
go, that takes from the queries just what the worker was started for. So such copies come after
everything else, and once the device serves they take at most a fifth of a core.
"""

from __future__ import annotations

from collections import deque
from math import inf

from modelless.policies.reasons import Reason
from modelless.variants.vocabulary import Variant

REST = 4.0
"""How many times as long as a copy took to load the device rests before the next copy."""


class LoadQueue:
    """First come, first served, but copies of what is ready elsewhere last. Times in seconds."""

    def __init__(self) -> None:
        self._needed: deque[tuple[Variant, Reason]] = deque()
        self._copies: deque[tuple[Variant, Reason]] = deque()
        self._rest_until_s = -inf

    def __len__(self) -> int:
        return self.needed + len(self._copies)

    @property
    def needed(self) -> int:
        """How many wait that are no mere copies."""
        return len(self._needed)

    def put(self, variant: Variant, reason: Reason) -> None:
        """It is to be loaded."""
        queue = self._copies if reason is Reason.ANOTHER_COPY else self._needed
        queue.append((variant, reason))

    def rest_s(self, now_s: float) -> float:
        """How long the device is still to rest before ``take``."""
        return 0.0 if self._needed else max(self._rest_until_s - now_s, 0.0)

    def take(self) -> tuple[Variant, Reason]:
        """The next one; IndexError if there is none."""
        return (self._needed or self._copies).popleft()

    def drop_copies(self) -> list[Variant]:
        """Forget the copies; returns what they were."""
        dropped = [variant for variant, _ in self._copies]
        self._copies.clear()
        return dropped

    def ended(self, reason: Reason, took_s: float, now_s: float, *, has_served: bool) -> None:
        """A load has ended, and batches ran on the device meanwhile, or none did."""
        if reason is Reason.ANOTHER_COPY and has_served:
            self._rest_until_s = now_s + REST * took_s
