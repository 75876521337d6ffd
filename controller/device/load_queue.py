"""The loads that a device has still to start: in which order, and when it rests between them.

A load takes a whole core for up to a second, and slows the batches that run meanwhile. A worker
that joins others while they are busy is ordered to load dozens of variants that all of them hold; a
worker that was resized is ordered to load again what it held and did not use. Loaded in one go,
these take time from the queries that the worker was started or resized for. So these *spare* loads
come last, and after each the device rests: for the load's time, times the share of it that batches
ran in. An idle device loads at once, and one that is always busy half of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from modelless.policies.reasons import Reason


class QueuedLoad(NamedTuple):
    """A load that was ordered.

    Attributes:
        memory_bytes: memory that it is expected to take; 0 if that is unknown.
    """

    variant_id: str
    reason: Reason
    memory_bytes: int = 0


class LoadQueue:
    """Needed loads, first come, first served; then spare loads. Times are in seconds.

    A spare load is one of a variant that others serve already, or that this device gave up unused,
    unless clients ask for it. Each plan orders spare loads anew, as the variant is absent until its
    load starts.
    """

    def __init__(self) -> None:
        self._needed: deque[QueuedLoad] = deque()
        self._spare: dict[str, QueuedLoad] = {}
        self._given_up: set[str] = set()
        self._rest_until_s = -inf

    def __len__(self) -> int:
        return self.needed + len(self._spare)

    @property
    def needed(self) -> int:
        return len(self._needed)

    def give_up(self, variant_ids: Iterable[str]) -> None:
        """Remember that these variants, and no others, left unused."""
        self._given_up = set(variant_ids)

    def is_spare(self, variant_id: str, reason: Reason) -> bool:
        is_unused = reason is Reason.WANTED and variant_id in self._given_up
        return is_unused or reason is Reason.ANOTHER_COPY

    def put(self, load: QueuedLoad) -> None:
        """Add a load; a spare load of the same variant is replaced."""
        self._spare.pop(load.variant_id, None)
        if self.is_spare(load.variant_id, load.reason):
            self._spare[load.variant_id] = load
        else:
            self._needed.append(load)

    @property
    def rest_until_s(self) -> float:
        """When ``take`` may be called; -inf if a needed load waits."""
        return -inf if self._needed else self._rest_until_s

    def take(self) -> QueuedLoad:
        """Remove and return the next load; IndexError if there is none."""
        if self._needed:
            return self._needed.popleft()
        if not self._spare:
            raise IndexError("nothing is to be loaded")
        return self._spare.pop(next(iter(self._spare)))

    def drop_spare(self) -> None:
        """Forget the spare loads; a plan that still wants one orders it again."""
        self._spare.clear()

    def end_load(
        self, variant_id: str, reason: Reason, took_s: float, now_s: float, busy_share: float
    ) -> None:
        """Decide how long to rest after a load that has ended.

        Args:
            busy_share: the share of the time since the load before in which batches ran, 0 to 1.
        """
        if self.is_spare(variant_id, reason):
            self._rest_until_s = now_s + took_s * busy_share
        self._given_up.discard(variant_id)
