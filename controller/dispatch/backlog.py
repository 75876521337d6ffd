"""When workers will have done all that they were given: known at once, worked out if asked for.

Policies that bind when a worker falls idle never look at how long queues are when a query comes
in; so that is not worked out for each query, but kept ready to be, as it was at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import Candidates, FloatArray
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement


class BacklogSnapshot:
    """What all workers had to do at one moment.

    Args:
        busy_until_s: by worker; it never changes again.
        backlog_s: likewise, by rank.
        now_s: the moment.
    """

    __slots__ = ("_backlog_s", "_busy_until_s", "_starts_s", "now_s")

    def __init__(
        self, busy_until_s: FloatArray, backlog_s: Mapping[int, FloatArray], now_s: float
    ) -> None:
        self.now_s = now_s
        self._busy_until_s = busy_until_s
        self._backlog_s = backlog_s
        self._starts_s: dict[int, FloatArray] | None = None  # most are never asked

    def starts_s(self, rank: int) -> FloatArray:
        """When each worker is predicted to have done all that goes before a query of this rank.

        See ``urgency.rank``. Never before now; shape (workers,).
        """
        if self._starts_s is None:
            self._starts_s = {}
        starts_s = self._starts_s.get(rank)
        if starts_s is None:
            starts_s = self._starts_s[rank] = np.maximum(self._busy_until_s, self.now_s)
            ahead_s = [column for of, column in self._backlog_s.items() if of <= rank]
            if ahead_s:
                starts_s += sum(ahead_s[1:], ahead_s[0])
        return starts_s


class WorkerBacklogs:
    """What workers have to do, by number.

    Args:
        busy_until_s: until when each one's batch runs.
    """

    def __init__(self, busy_until_s: FloatArray) -> None:
        self._busy_until_s = busy_until_s
        self._backlog_s: dict[int, FloatArray] = {}  # by rank: for how long what waits will take
        self._shown: BacklogSnapshot | None = None

    def get(self, number: int) -> tuple[float, dict[int, float]]:
        """Until when the worker's batch runs, and for how long what waits for it will, by rank."""
        backlog_s = {rank: float(column[number]) for rank, column in self._backlog_s.items()}
        return float(self._busy_until_s[number]), backlog_s

    def set(self, number: int, busy_until_s: float, backlog_s: Mapping[int, float]) -> None:
        """What a worker has to do has changed."""
        if self._shown is not None:  # what was shown stays as it is
            self._shown = None
            self._busy_until_s = self._busy_until_s.copy()
            self._backlog_s = {rank: column.copy() for rank, column in self._backlog_s.items()}
        self._busy_until_s[number] = busy_until_s
        for rank in backlog_s:
            if rank not in self._backlog_s:
                self._backlog_s[rank] = np.zeros_like(self._busy_until_s)
        for rank, column in self._backlog_s.items():
            column[number] = backlog_s.get(rank, 0.0)

    def snapshot_at(self, now_s: float) -> BacklogSnapshot:
        """How it is now."""
        shown = self._shown
        if shown is None or shown.now_s != now_s:
            shown = self._shown = BacklogSnapshot(self._busy_until_s, self._backlog_s, now_s)
        return shown


class _Unfrozen(Candidates):
    """What ``ReadyCandidates`` are while they are made: the same slots, and not frozen."""

    __slots__ = ("_free_at_s",)
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


class ReadyCandidates(Candidates):
    """Candidates whose ``free_at_s`` is worked out when it is first looked at.

    Args:
        free_at_s: the figures, or what works them out: always the same, whenever it is called.
    """

    __slots__ = ("_free_at_s",)

    def __init__(
        self,
        placements: tuple[Placement, ...],
        accuracy_percent: FloatArray,
        cost_usd: FloatArray,
        estimates: Estimates,
        free_at_s: FloatArray | Callable[[], FloatArray],
        now_s: float,
        shortlist: NDArray[np.intp] | None = None,
    ) -> None:
        # One is made for each query. To pass a frozen class by for each of seven fields takes
        # twice as long as to take it off once: 0.7 and 0.35 microseconds.
        object.__setattr__(self, "__class__", _Unfrozen)
        self.placements = placements  # type: ignore[misc]
        self.accuracy_percent = accuracy_percent  # type: ignore[misc]
        self.cost_usd = cost_usd  # type: ignore[misc]
        self.estimates = estimates  # type: ignore[misc]
        self.now_s = now_s  # type: ignore[misc]
        self.shortlist = shortlist  # type: ignore[misc]
        self._free_at_s = free_at_s
        self.__class__ = ReadyCandidates

    @property
    def free_at_s(self) -> FloatArray:
        """See ``Candidates``."""
        known: FloatArray | Callable[[], FloatArray] = self._free_at_s
        if callable(known):
            known = known()
            known.setflags(write=False)
            object.__setattr__(self, "_free_at_s", known)
        return known

    def __reduce__(self) -> tuple[type[Candidates], tuple[object, ...]]:
        return Candidates, tuple([getattr(self, name) for name in Candidates.__slots__])
