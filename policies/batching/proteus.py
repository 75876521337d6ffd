"""Proteus's batching: waits for a fuller batch as long as that is safe.

Ahmad et al., ASPLOS 2024. Not work-conserving. A batch may take less than half the time limit. With
q items waiting and B(q) the largest allowed batch of at most q, the last moment to start is T = the
deadline less the latency of B(q). Until T an idle worker waits for more, unless B(q) is the largest
batch there is; at T it runs B(q). If an arrival has just made B larger and the new T is past, it
runs B(q - 1), as it would have without the arrival. If even that is too late, it drops the first
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from modelless.common.errors import InvalidInputError
from modelless.policies.priorities import bound_queues
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy
from modelless.policies.views import (
    QueryView,
    QueueView,
    ResidentView,
    Run,
    Wait,
    WorkerView,
)

_SLO_SHARE = 0.5  # a query that just misses a batch waits for that batch to end
_SPELL_S = 10.0


class ProteusBatching(BatchingPolicy):
    """The queue that is most urgent of those whose batch is due.

    Args:
        batch_sizes: allowed sizes of a batch, in items; a larger query runs alone.
        max_wait_s: seconds that a query waits for others at most. The paper has no such bound, and
            no queries with long time limits either.
    """

    def __init__(self, batch_sizes: Sequence[int] = (1, 2, 4, 8), max_wait_s: float = 1.0) -> None:
        if not batch_sizes or any(type(size) is not int or size < 1 for size in batch_sizes):
            raise InvalidInputError.of("batch_sizes", batch_sizes, "whole numbers, 1 or more")
        if not 0.0 <= max_wait_s < inf:
            raise InvalidInputError.of("max_wait_s", max_wait_s, "0 or more seconds")
        self.batch_sizes = tuple(sorted(set(batch_sizes), reverse=True))
        self.max_wait_s = max_wait_s
        self._tightest: dict[str, _Tightest] = {}  # by variant

    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        dropped: list[QueryView] = []
        due: tuple[str, list[QueryView]] | None = None
        until_s = inf
        for queue in bound_queues(worker, queues):
            resident = worker.residents[queue.variant_id or ""]
            start_s, batch = self._plan(queue.queries, resident, worker.max_batch, now_s, dropped)
            if start_s > now_s:
                until_s = min(until_s, start_s)
            elif due is None:
                due = (resident.variant_id, batch)
        if due is not None:
            return Run(due[0], tuple(due[1]), Reason.EARLIEST_DEADLINE_FIRST, tuple(dropped))
        if until_s < inf:
            return Wait(Reason.FILLING_BATCH, until_s, tuple(dropped))
        if dropped:
            return Wait(Reason.DEADLINE_PASSED, now_s + self.max_wait_s, tuple(dropped))
        return Wait(Reason.NOTHING_QUEUED)

    def _plan(
        self,
        queries: Sequence[QueryView],
        resident: ResidentView,
        max_batch: int,
        now_s: float,
        dropped: list[QueryView],
    ) -> tuple[float, list[QueryView]]:
        """Returns when to start which batch of the queue; moves late queries to ``dropped``."""
        waiting = list(queries)
        sizes = self._sizes(waiting, resident, max_batch, now_s)
        while waiting:
            batch = _largest(waiting, sizes)
            if not isfinite(_seconds(batch, resident.p50_s)):
                return now_s, waiting[:1]  # the latency is unknown, so waiting gains nothing
            if _last_start_s(batch, resident.p50_s) < now_s:
                batch = _largest(waiting[:-1], sizes)
                if batch and _last_start_s(batch, resident.p50_s) >= now_s:
                    return now_s, batch
                late = min(_largest(waiting, sizes), key=_deadline)
                waiting.remove(late)
                dropped.append(late)
                continue
            if _items(waiting[: sizes[0]]) >= sizes[0]:
                return now_s, batch
            # Timers are a little late and batches sometimes slow, so p99 determines the wait.
            safe_s = _last_start_s(batch, resident.p99_s)
            longest_s = min(query.arrival_s for query in batch) + self.max_wait_s
            return min(safe_s, longest_s), batch
        return inf, []

    def _sizes(
        self, waiting: Sequence[QueryView], resident: ResidentView, max_batch: int, now_s: float
    ) -> list[int]:
        """Returns the allowed sizes, largest first, that take less than half the tightest limit."""
        sizes = [size for size in self.batch_sizes if size <= max_batch] or [max_batch]
        limit_s = min(query.deadline_s - query.arrival_s for query in waiting[: sizes[0]])
        tightest = self._tightest.setdefault(resident.variant_id, _Tightest())
        limit_s = tightest.with_another(limit_s, now_s)
        quick = [size for size in sizes if resident.p50_s[size] < _SLO_SHARE * limit_s]
        return quick or sizes[-1:]


class _Tightest:
    """The tightest recent time limit.

    The paper's variants serve queries of one limit. Here queries with a long limit must not occupy
    a worker, or make it wait, so long that those with a short limit are late.
    """

    def __init__(self) -> None:
        self._limits_s = (inf, inf)  # of the spell before, and of this one
        self._since_s = -inf

    def with_another(self, limit_s: float, now_s: float) -> float:
        """Take in one more limit and return the tightest of this period and the one before."""
        if now_s - self._since_s > _SPELL_S:
            self._limits_s, self._since_s = (self._limits_s[1], inf), now_s
        self._limits_s = (self._limits_s[0], min(self._limits_s[1], limit_s))
        return min(self._limits_s)


def _largest(queries: Sequence[QueryView], sizes: Sequence[int]) -> list[QueryView]:
    """Returns B: the largest of ``sizes``, descending, that the queries fill, from their front."""
    fill = _items(queries[: sizes[0]])
    size = next((size for size in sizes if size <= fill), sizes[-1])
    batch, items = list(queries[:1]), _items(queries[:1])
    for query in queries[1:]:
        items += query.items
        if items > size:
            break
        batch.append(query)
    return batch


def _items(queries: Sequence[QueryView]) -> int:
    return sum(query.items for query in queries)


def _seconds(batch: Sequence[QueryView], latency_s: Sequence[float]) -> float:
    items = _items(batch)
    return latency_s[items] if items < len(latency_s) else inf


def _last_start_s(batch: Sequence[QueryView], latency_s: Sequence[float]) -> float:
    """Returns T: the latest start of the batch with which all queries in it are in time."""
    return min(map(_deadline, batch)) - _seconds(batch, latency_s)


def _deadline(query: QueryView) -> float:
    return query.deadline_s
