"""Selection policies that tests need and nobody should serve with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    Defer,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)


class LateBinding(SelectionPolicy):
    """Defers everything; an idle worker takes the most urgent query, with its most accurate variant
    that is in time, and fills the batch from the same queue."""

    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())
        self.idle_calls = 0

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        self.idle_calls += 1
        queue = min(queues, key=lambda q: (-q.queries[0].priority, q.queries[0].deadline_s))
        head = queue.queries[0]
        fitting = [
            resident
            for resident in worker.residents.values()
            if f"{resident.variant_id}/".startswith((f"{queue.scope}/", f"{queue.scope}@"))
            and resident.accuracy_percent >= head.min_accuracy_percent
        ]
        in_time = [r for r in fitting if now_s + r.p99_s[head.items] <= head.deadline_s]
        if not fitting:
            return Wait(Reason.NOTHING_READY)
        chosen = max(in_time or fitting, key=lambda resident: resident.accuracy_percent)
        batch, items = [head], head.items
        for query in queue.queries[1:]:
            if (
                items + query.items <= worker.max_batch
                and chosen.accuracy_percent >= query.min_accuracy_percent
            ):
                batch.append(query)
                items += query.items
        return Run(chosen.variant_id, tuple(batch), Reason.EARLIEST_DEADLINE_FIRST)


class Mixed(LateBinding):
    """By the rng: binds, defers or rejects on arrival; now and then lets a worker wait."""

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        dice = rng.random()
        if dice < 0.4:
            return Bind(int(rng.integers(len(candidates.placements))), Reason.CHEAPEST_FEASIBLE)
        return Defer() if dice < 0.9 else Reject(Reason.QUEUE_TOO_LONG)

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        return self.on_arrival(query, candidates, rng)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        if rng.random() < 0.2:
            return Wait(
                Reason.NOTHING_QUEUED, now_s + rng.choice([-1.0, 0.0, 0.01, np.inf, np.nan])
            )
        bound = [queue for queue in queues if queue.variant_id is not None]
        if bound and rng.random() < 0.5:
            return self.batching.next_batch(worker, bound, now_s)
        deferred = [queue for queue in queues if queue.variant_id is None]
        if deferred:
            return super().on_idle(worker, deferred, now_s, rng)
        return self.batching.next_batch(worker, bound, now_s)


class Scripted(MostAccurateFeasible):
    """Answers what a test tells it to; where it is told nothing, what its base class would."""

    def __init__(
        self,
        arrival: Callable[..., Any] | None = None,
        idle: Callable[..., Any] | None = None,
        late: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.arrival, self.idle, self.late = arrival, idle, late

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if self.arrival is None:
            return super().on_arrival(query, candidates, rng)
        return self.arrival(query, candidates)  # type: ignore[no-any-return]

    def on_late(self, query: QueryView, candidates: Candidates, rng: np.random.Generator) -> Choice:
        if self.late is None:
            return super().on_arrival(query, candidates, rng)
        return self.late(query, candidates)  # type: ignore[no-any-return]

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        if self.idle is None:
            return super().on_idle(worker, queues, now_s, rng)
        return self.idle(worker, queues)  # type: ignore[no-any-return]


class Unreliable(Mixed):
    """As ``Mixed``, but one answer in four is nonsense or an exception."""

    def _nonsense(self, rng: np.random.Generator, *answers: Any) -> Any:
        if rng.random() < 0.3:
            raise ZeroDivisionError("on purpose")
        return answers[int(rng.integers(len(answers)))]

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if rng.random() < 0.25:
            rows = len(candidates.placements)
            bad: Any = [
                None,
                Bind(rows, Reason.CHEAPEST_FEASIBLE),
                Bind(-1, Reason.CHEAPEST_FEASIBLE),
                Bind(0.5, Reason.CHEAPEST_FEASIBLE),  # type: ignore[arg-type]
                Bind(0, "because"),  # type: ignore[arg-type]
                Run("x", (query,), Reason.WANTED),
            ]
            return self._nonsense(rng, *bad)  # type: ignore[no-any-return]
        return super().on_arrival(query, candidates, rng)

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        if rng.random() < 0.25:
            queries = tuple(query for queue in queues for query in queue.queries)
            resident = next(iter(worker.residents), "none")
            stranger = queries[0]._replace(query_id=10**9)
            bad: Any = [
                None,
                Run("no/such/variant@1", queries[:1], Reason.WANTED),
                Run(resident, (), Reason.WANTED),
                Run(resident, (stranger,), Reason.WANTED),
                Run(resident, (queries[0], queries[0]), Reason.WANTED),
                Run(resident, queries * 20, Reason.WANTED),
                Run(resident, queries, Reason.WANTED),
                Run(resident, ("query",), Reason.WANTED),  # type: ignore[arg-type]
                Run(resident, queries[:1], "because"),  # type: ignore[arg-type]
                Wait("because"),  # type: ignore[arg-type]
                Wait(Reason.WANTED, None),  # type: ignore[arg-type]
            ]
            return self._nonsense(rng, *bad)  # type: ignore[no-any-return]
        return super().on_idle(worker, queues, now_s, rng)
