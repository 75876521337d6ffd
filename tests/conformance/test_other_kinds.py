"""Kinds of policy that no built-in one is yet: late-binding, random, stateful. All are welcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.scopes import in_scope
from modelless.policies.seams import Forecaster, SelectionPolicy
from modelless.policies.testing import (
    BatchingConformance,
    ForecasterConformance,
    SelectionConformance,
)
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    QueryView,
    QueueView,
    Reject,
    Run,
    Wait,
    WorkerView,
)


class Late(SelectionPolicy):
    """Defers; an idle worker serves the most urgent query with the most accurate variant that is in
    time, or else the quickest, and whoever waits with it as long as that makes nobody late."""

    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        heads = sorted(queues, key=lambda q: (q.queries[0].deadline_s, q.queries[0].query_id))
        for queue in heads:
            head = queue.queries[0]
            fitting = [
                resident
                for resident in worker.residents.values()
                if in_scope(resident.variant_id, head.scope)
                and resident.accuracy_percent >= head.min_accuracy_percent
                and resident.p99_s[head.items] < np.inf
            ]
            in_time = [r for r in fitting if now_s + r.p99_s[head.items] <= head.deadline_s]
            if not fitting:
                continue
            quickest = min(fitting, key=lambda r: r.p99_s[head.items])
            best = max(in_time, key=lambda r: r.accuracy_percent, default=quickest)
            batch, items = [head], head.items
            for query in queue.queries[1:]:
                larger = items + query.items
                earliest_s = min(member.deadline_s for member in (*batch, query))
                if (
                    larger <= worker.max_batch
                    and query.min_accuracy_percent <= best.accuracy_percent
                    and now_s + best.p99_s[larger] <= earliest_s
                ):
                    batch.append(query)
                    items = larger
            return Run(best.variant_id, tuple(batch), Reason.EARLIEST_DEADLINE_FIRST)
        return Wait(Reason.NOTHING_READY, now_s + 0.01)


class TestLateBinding(SelectionConformance):
    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        return Late()


class AnyAtAll(SelectionPolicy):
    """Random: the yardstick that knows nothing."""

    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if not candidates.placements:
            return Reject(Reason.NOTHING_READY)
        return Bind(int(rng.integers(len(candidates.placements))), Reason.CHEAPEST_FEASIBLE)


class TestRandom(SelectionConformance):
    is_yardstick = True
    order_matters = True

    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        return AnyAtAll()


class InTurn(AnyAtAll):
    """Round robin, which remembers whose turn it is."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def on_arrival(
        self, query: QueryView, candidates: Candidates, rng: np.random.Generator
    ) -> Choice:
        if not candidates.placements:
            return Reject(Reason.NOTHING_READY)
        self._turn += 1
        return Bind(self._turn % len(candidates.placements), Reason.CHEAPEST_FEASIBLE)


class TestRoundRobin(TestRandom):
    @pytest.fixture
    def policy(self) -> SelectionPolicy:
        return InTurn()


class WaitsForMore(EarliestDeadlineFirst):
    """Waits a little for a batch to fill, as long as nobody is late for it."""

    def next_batch(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float
    ) -> Run | Wait:
        decision = super().next_batch(worker, queues, now_s)
        if isinstance(decision, Run) and len(decision.queries) < 2:
            head = decision.queries[0]
            latest_s = head.deadline_s - 2 * worker.residents[decision.variant_id].p99_s[-1]
            if now_s + 0.001 < latest_s < np.inf:
                return Wait(Reason.NOTHING_QUEUED, now_s + 0.001)
        return decision


class TestNotWorkConserving(BatchingConformance):
    never_idles = False

    @pytest.fixture
    def policy(self) -> EarliestDeadlineFirst:
        return WaitsForMore()


class Smoothed(Forecaster):
    """An exponential average, which is all history."""

    def __init__(self, share: float = 0.3) -> None:
        self.share = share
        self._rates: dict[str, float] = {}

    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        for scope, rate in arrivals_per_s.items():
            before = self._rates.get(scope, rate)
            self._rates[scope] = before + self.share * (rate - before)

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return dict(self._rates)


class TestStatefulForecaster(ForecasterConformance):
    @pytest.fixture
    def policy(self) -> Forecaster:
        return Smoothed()
