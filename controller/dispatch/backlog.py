"""When workers will be free: recorded at each change, and computed only if somebody asks.

Policies that bind queries to idle workers never look at queue lengths when a query arrives. So the
waits are not computed for each query, but can be computed later, as they were at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import Candidates, FloatArray
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement


class BacklogSnapshot:
    """The work of all workers at one moment.

    Args:
        busy_until_s: when each worker's batch ends, shape (workers,); it never changes again.
        backlog_s: for each rank, how long each worker's waiting queries take, seconds; likewise.
    """

    __slots__ = ("_backlog_s", "_busy_until_s", "_starts_s", "now_s")

    def __init__(
        self, busy_until_s: FloatArray, backlog_s: Mapping[int, FloatArray], now_s: float
    ) -> None:
        self.now_s = now_s
        self._busy_until_s = busy_until_s
        self._backlog_s = backlog_s
        self._starts_s: dict[int, FloatArray] | None = None  # most snapshots are never asked

    def starts_s(self, rank: int) -> FloatArray:
        """Return when each worker will have done all that goes before a query of this rank.

        Returns:
            Times in seconds, shape (workers,); none is earlier than the snapshot.
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
    """The work of each worker, by the worker's index.

    Args:
        busy_until_s: when each worker's batch ends, seconds.
    """

    def __init__(self, busy_until_s: FloatArray) -> None:
        self._busy_until_s = busy_until_s
        self._backlog_s: dict[int, FloatArray] = {}  # by rank: how long waiting queries take
        self._last: BacklogSnapshot | None = None

    def rearranged(self, places: NDArray[np.intp]) -> WorkerBacklogs:
        """Return the backlogs of the workers that have these indices now; -1 is a new worker."""
        found = WorkerBacklogs(np.append(self._busy_until_s, -np.inf)[places])
        for rank, column in self._backlog_s.items():
            found._backlog_s[rank] = np.append(column, 0.0)[places]
        return found

    def set(self, number: int, busy_until_s: float, backlog_s: Mapping[int, float]) -> None:
        """Set when a worker's batch ends, and how long its waiting queries take, by rank."""
        if self._last is not None:  # the last snapshot must not change
            self._last = None
            self._busy_until_s = self._busy_until_s.copy()
            self._backlog_s = {rank: column.copy() for rank, column in self._backlog_s.items()}
        self._busy_until_s[number] = busy_until_s
        for rank in backlog_s:
            if rank not in self._backlog_s:
                self._backlog_s[rank] = np.zeros_like(self._busy_until_s)
        for rank, column in self._backlog_s.items():
            column[number] = backlog_s.get(rank, 0.0)

    def snapshot_at(self, now_s: float) -> BacklogSnapshot:
        """Return the work of all workers at ``now_s``, which is the present."""
        last = self._last
        if last is None or last.now_s != now_s:
            last = self._last = BacklogSnapshot(self._busy_until_s, self._backlog_s, now_s)
        return last


class _Unfrozen(Candidates):
    """The class of ``ReadyCandidates`` during construction: the same slots, but not frozen."""

    __slots__ = ("_free_at_s",)
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


class ReadyCandidates(Candidates):
    """Candidates that compute ``free_at_s`` at its first use.

    Args:
        free_at_s: the column, or a function that computes the same column whenever it is called.
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
        worker_counts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        # One is made for each query. To go around a frozen class for each of eight fields takes
        # 0.7 microseconds, and to change the class once takes 0.35.
        object.__setattr__(self, "__class__", _Unfrozen)
        self.placements = placements  # type: ignore[misc]
        self.accuracy_percent = accuracy_percent  # type: ignore[misc]
        self.cost_usd = cost_usd  # type: ignore[misc]
        self.estimates = estimates  # type: ignore[misc]
        self.now_s = now_s  # type: ignore[misc]
        self.shortlist = shortlist  # type: ignore[misc]
        self.worker_counts = worker_counts  # type: ignore[misc]
        self._free_at_s = free_at_s
        self.__class__ = ReadyCandidates

    @property
    def free_at_s(self) -> FloatArray:
        known: FloatArray | Callable[[], FloatArray] = self._free_at_s
        if callable(known):
            known = known()
            known.setflags(write=False)
            object.__setattr__(self, "_free_at_s", known)
        return known

    def __reduce__(self) -> tuple[type[Candidates], tuple[object, ...]]:
        columns = [getattr(self, name) for name in Candidates.__slots__ if name != "worker_counts"]
        return Candidates, (*columns, dict(self.worker_counts))
