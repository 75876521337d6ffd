"""What busy neighbours cost on one device class, as a curve that learns."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

KNOTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Where the slope may change: idle cores are used up first, then shared caches and bandwidth fill,
then cores themselves are shared. Beyond the last knot the last slope goes on."""

_SEGMENTS = tuple(pairwise((*KNOTS, float("inf"))))


@lru_cache(maxsize=256)
def reach_of(busy_neighbours: float) -> tuple[float, ...]:
    """How far so many busy neighbours, 0 or more, reach into each segment that they reach."""
    return tuple(
        min(busy_neighbours, end) - start for start, end in _SEGMENTS if busy_neighbours > start
    )


@lru_cache(maxsize=256)
def energy_of(busy_neighbours: float) -> float:
    """The squared length of ``reach_of``, for normalised least mean squares."""
    return sum(reach * reach for reach in reach_of(busy_neighbours))


class ContentionCurve:
    """The log of the slowdown over busy neighbours: from 0, never falling, with several slopes.

    A segment of which nothing is known goes on as steeply as the one before it.

    Args:
        prior: slope before anything was seen, log latency per neighbour; what fades, fades to it.
        most: bound of every slope and of the prior.
    """

    __slots__ = ("_most", "_prior", "_seen", "_slopes")

    def __init__(self, prior: float, most: float) -> None:
        self._most = most
        self._prior = min(max(prior, 0.0), most)
        self._slopes = [self._prior] * len(_SEGMENTS)
        self._seen = 1  # segments from the left that something is known of

    def at(self, busy_neighbours: float) -> float:
        """The log of the slowdown by so many busy neighbours, 0 or more."""
        total = 0.0
        for slope, reach in zip(self._slopes, reach_of(busy_neighbours), strict=False):
            total += slope * reach
        return total

    def learn(self, busy_neighbours: float, step: float) -> None:
        """Move the curve at ``busy_neighbours`` by ``step`` times ``energy_of`` them.

        Slopes stay between 0 and the bound, which keeps the curve from falling.
        """
        slopes, most = self._slopes, self._most
        reaches = reach_of(busy_neighbours)
        self._seen = max(self._seen, len(reaches))
        for number, reach in enumerate(reaches):
            slope = slopes[number] + step * reach
            slopes[number] = 0.0 if slope < 0.0 else min(slope, most)
        self._go_on()

    def fade(self, keep: float) -> None:
        """Forget all but the share ``keep`` of what was learned."""
        self._slopes = [self._prior + keep * (slope - self._prior) for slope in self._slopes]

    def _go_on(self) -> None:
        """Let the segments of which nothing is known follow the last that is."""
        for number in range(self._seen, len(_SEGMENTS)):
            self._slopes[number] = self._slopes[self._seen - 1]
