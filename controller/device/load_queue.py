"""What a device is still to load: in which order, and when it rests.

A load takes a whole core for up to a second. A worker that joins others while they are busy is told
to load dozens of variants that all of them hold, for the day when one is needed there; one that was
resized is to have again what it held and did not use. Done in one go, that takes from the queries
just what the worker was started or resized for. So what can wait comes after everything else, and
takes a quarter of the time that serving leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from modelless.policies.reasons import Reason
from modelless.variants.vocabulary import Variant

SHARE = 0.25
"""What loads that can wait take of the time in which no batch runs."""
_LEAST_FREE = 0.05
"""A device that is never free is taken to be free for so much of its time."""
MOST_REST_S = 30.0
"""After which a load that can wait does not: the device may have fallen idle meanwhile."""


class LoadQueue:
    """First come, first served, but what can wait last. Times in seconds.

    That is what others serve already, and what was given up unused, unless clients ask for it. It
    counts as absent until it is begun: so each plan orders it anew, for what it is by then.
    """

    def __init__(self) -> None:
        self._needed: deque[tuple[Variant, Reason]] = deque()
        self._spare: dict[str, tuple[Variant, Reason]] = {}
        self._given_up: set[str] = set()
        self._rest_until_s = -inf

    def __len__(self) -> int:
        return self.needed + len(self._spare)

    @property
    def needed(self) -> int:
        """How many are there that cannot wait."""
        return len(self._needed)

    def give_up(self, variant_ids: Iterable[str]) -> None:
        """These left unused, and not the ones before: to have them again can wait."""
        self._given_up = set(variant_ids)

    def can_wait(self, variant: Variant, reason: Reason) -> bool:
        """Whether the load is for the day when it is needed."""
        is_spare = reason is Reason.WANTED and variant.id in self._given_up
        return is_spare or reason is Reason.ANOTHER_COPY

    def put(self, variant: Variant, reason: Reason) -> None:
        """It is to be loaded."""
        self._spare.pop(variant.id, None)
        if self.can_wait(variant, reason):
            self._spare[variant.id] = variant, reason
        else:
            self._needed.append((variant, reason))

    def rest_s(self, now_s: float) -> float:
        """How long the device is still to rest before ``take``."""
        return 0.0 if self._needed else max(self._rest_until_s - now_s, 0.0)

    def take(self) -> tuple[Variant, Reason]:
        """The next one; IndexError if there is none."""
        if self._needed:
            return self._needed.popleft()
        if not self._spare:
            raise IndexError("nothing is to be loaded")
        return self._spare.pop(next(iter(self._spare)))

    def drop_spare(self) -> None:
        """Forget what can wait: whoever still wants it says so again."""
        self._spare.clear()

    def ended(
        self, variant: Variant, reason: Reason, took_s: float, now_s: float, busy_share: float
    ) -> None:
        """A load has ended; since the one before the device was busy with batches for that share
        of the time, 0 to 1."""
        if self.can_wait(variant, reason) and busy_share > 0.0:
            free_share = max(1.0 - busy_share, _LEAST_FREE)
            self._rest_until_s = now_s + min(took_s / (SHARE * free_share), MOST_REST_S)
        self._given_up.discard(variant.id)
