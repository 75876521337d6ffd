"""The kit fails whoever breaks a limit: of clients, of deadlines, of time, of memory, of pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.policies import testing
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.scopes import in_scope
from modelless.policies.seams import ScalingPolicy, SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.slack_fit import SlackFit
from modelless.policies.views import (
    Candidates,
    Choice,
    ClusterView,
    QueryView,
    QueueView,
    Run,
    Targets,
    Wait,
    WorkerView,
)
from modelless.variants.vocabulary import Placement

# -- what clients ask for ---------------------------------------------------------------------


class IgnoresAccuracy(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return super().on_arrival(query._replace(min_accuracy_percent=0.0), candidates, rng)


class IgnoresCost(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return super().on_arrival(query._replace(max_cost_usd=np.inf), candidates, rng)


class BindsAnewWithoutLimits(CheapestFeasible):
    def on_late(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return super().on_late(query._replace(min_accuracy_percent=0.0), candidates, rng)


class Unpunctual(testing.SelectionConformance):
    keeps_deadlines = False


class Yardstick(testing.SelectionConformance):
    is_yardstick = True


@pytest.mark.parametrize(
    ("policy", "hook", "message"),
    [
        (IgnoresAccuracy, "on_arrival", "% were asked for"),
        (IgnoresCost, "on_arrival", "USD, limit"),
        (BindsAnewWithoutLimits, "on_late", "% were asked for"),
    ],
)
def test_only_a_yardstick_may_ignore_what_clients_ask_for(
    policy: Any, hook: str, message: str
) -> None:
    for case in (testing.SelectionConformance(), Unpunctual()):
        with pytest.raises(AssertionError, match=message):
            case.test_chooses_among_the_options(policy(), hook, 30, 0.0)
    Yardstick().test_chooses_among_the_options(policy(), hook, 30, 0.0)


# -- when a worker is idle --------------------------------------------------------------------


class Careless(SelectionPolicy):
    """Hands the first queue to a variant, and sees to nothing else."""

    mistake: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())

    def on_idle(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float, rng: Any
    ) -> Run | Wait:
        if not queues:
            return Wait(Reason.NOTHING_QUEUED)
        return self.careless(worker, queues, now_s)

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        head = queues[0].queries[0]
        allowed = [
            resident
            for name, resident in sorted(worker.residents.items())
            if in_scope(name, head.scope) and resident.accuracy_percent >= head.min_accuracy_percent
        ]
        if not allowed:
            return Wait(Reason.NOTHING_READY, now_s + 0.1)
        slowest = max(allowed, key=lambda resident: resident.p50_s[1])
        return Run(slowest.variant_id, (head,), Reason.LATE_BINDING)


class TooSlow(Careless):
    """Would be in time with another variant."""

    mistake = "could be in time alone"


class TooInaccurate(Careless):
    mistake = "% were asked for"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        worst = min(worker.residents.values(), key=lambda resident: resident.accuracy_percent)
        return Run(worst.variant_id, (queues[0].queries[0],), Reason.LATE_BINDING)


class TooMany(Careless):
    mistake = "items in a batch of at most 8"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        longest = max(queues, key=lambda queue: len(queue.queries))
        return Run(next(iter(worker.residents)), tuple(longest.queries), Reason.LATE_BINDING)


class OutOfScope(Careless):
    mistake = "is not of the scope"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        narrow = next((queue for queue in queues if "/" in queue.scope), queues[0])
        others = [name for name in worker.residents if not in_scope(name, narrow.scope)]
        name = (others or list(worker.residents))[0]
        return Run(name, (narrow.queries[0],), Reason.LATE_BINDING)


class DropsWhatRuns(Careless):
    mistake = "both run and dropped"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        batch = (queues[0].queries[0],)
        return Run(next(iter(worker.residents)), batch, Reason.LATE_BINDING, dropped=batch)


class DropsTwice(Careless):
    mistake = "dropped twice"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        lost = queues[0].queries[0]
        return Wait(Reason.NOTHING_QUEUED, now_s + 0.1, dropped=(lost, lost))


class DropsOthers(Careless):
    mistake = "dropped, but not shown"

    def careless(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Run | Wait:
        stranger = queues[0].queries[0]._replace(query_id=-1)
        return Wait(Reason.NOTHING_QUEUED, now_s + 0.1, dropped=(stranger,))


CARELESS = (
    TooSlow,
    TooInaccurate,
    TooMany,
    OutOfScope,
    DropsWhatRuns,
    DropsTwice,
    DropsOthers,
)


@pytest.mark.parametrize("policy", CARELESS)
def test_what_an_idle_worker_is_given_is_checked(policy: type[Careless]) -> None:
    check = testing.SelectionConformance().test_gives_an_idle_worker_what_it_can_run
    with pytest.raises(AssertionError, match=policy.mistake):
        check(policy(), 1000 if policy is TooMany else 30, 0.0)


def test_an_idle_worker_is_given_nothing_of_unknown_latency() -> None:
    with pytest.raises(AssertionError, match="whose latency is unknown"):
        Unpunctual().test_gives_an_idle_worker_what_it_can_run(TooSlow(), 30, 0.3)


def test_whoever_keeps_no_deadlines_keeps_all_else() -> None:
    Unpunctual().test_gives_an_idle_worker_what_it_can_run(TooSlow(), 30, 0.0)
    with pytest.raises(AssertionError, match="were asked for"):
        Unpunctual().test_gives_an_idle_worker_what_it_can_run(TooInaccurate(), 30, 0.0)
    Yardstick().test_gives_an_idle_worker_what_it_can_run(TooInaccurate(), 30, 0.0)


class Crams(SlackFit):
    """As many as are allowed behind the head, whom that makes late."""

    def on_idle(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float, rng: Any
    ) -> Run | Wait:
        decision = super().on_idle(worker, queues, now_s, rng)
        if isinstance(decision, Wait):
            return decision
        accuracy = worker.residents[decision.variant_id].accuracy_percent
        members = list(decision.queries)
        (queue,) = [queue for queue in queues if members[0] in queue.queries]
        for query in queue.queries:
            items = sum(member.items for member in members)
            fits = items + query.items <= worker.max_batch
            if fits and query not in members and query.min_accuracy_percent <= accuracy:
                members.append(query)
        return decision._replace(queries=tuple(members))


def test_whoever_trades_deadlines_may_not_lose_all() -> None:
    class Trades(testing.SelectionConformance):
        trades_deadlines = True

    with pytest.raises(AssertionError, match="could be in time alone"):
        testing.SelectionConformance().test_gives_an_idle_worker_what_it_can_run(Crams(), 30, 0.0)
    with pytest.raises(AssertionError, match="could be in time alone"):
        Trades().test_gives_an_idle_worker_what_it_can_run(TooSlow(), 30, 0.0)


# -- time and memory --------------------------------------------------------------------------


def dawdle(what: Callable[[], object], times: int = 2_000) -> None:
    for _ in range(times):
        what()


class DawdlesWhenIdle(SlackFit):
    def on_idle(
        self, worker: WorkerView, queues: Sequence[QueueView], now_s: float, rng: Any
    ) -> Run | Wait:
        dawdle(lambda: sum(len(queue.queries) for queue in queues), 10_000)
        return super().on_idle(worker, queues, now_s, rng)


class DawdlesWhenLate(CheapestFeasible):
    def on_late(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        dawdle(lambda: candidates.cost_usd.sum(), 10_000)
        return super().on_late(query, candidates, rng)


class DawdlesObserving(LeastRecentlyUsed):
    def observe(self, view: ClusterView) -> None:
        dawdle(lambda: sum(len(worker.instances) for worker in view.workers), 100_000)


@pytest.mark.parametrize(
    ("case", "policy", "hook"),
    [
        (testing.SelectionConformance, DawdlesWhenIdle, "on_idle"),
        (testing.SelectionConformance, DawdlesWhenLate, "on_late"),
        (testing.EvictionConformance, DawdlesObserving, "observe"),
    ],
)
def test_every_hook_has_a_budget(case: Any, policy: Any, hook: str) -> None:
    with pytest.raises(AssertionError, match=f"{hook} with 1,000 options took"):
        case().test_answers_within_its_budget(policy())


class Wants(ScalingPolicy):
    """A count of the first variant that runs on CPUs and, if ``whole``, of all others."""

    def __init__(self, count: int, *, whole: bool = False) -> None:
        self.count = count
        self.whole = whole

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        there = sum(worker.device_class == "cpu-1" for worker in view.workers)
        names = [v.variant_id for v in view.variants if np.isfinite(v.memory_bytes["cpu-1"])]
        count = min(self.count, there) if self.whole else self.count
        kept = names if self.whole else names[:1]
        wanted = {Placement(name, "cpu-1"): count for name in kept}
        return Targets(wanted, {}, Reason.FIXED_SIZE)


class WantsGiants(Fixed):
    """Counts on memory that no worker has."""

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        there = {worker.device_class for worker in view.workers}
        giants = [
            Placement(variant.variant_id, name)
            for variant in view.variants
            for name in sorted(there & set(variant.memory_bytes))
            if not variant.memory_bytes[name] <= view.device_classes[name].memory_bytes
        ]
        return Targets(dict.fromkeys(giants, 1), {}, Reason.FIXED_SIZE)


class Overdraws(Fixed):
    """More workers than their pool may have."""

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        more = {pool.name: pool.max_workers + 1 for pool in view.pools}
        return replace(super().targets(view, forecast_per_s), instances={}, workers=more)


class SharesNonsense(Fixed):
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        placement = Placement(view.variants[0].variant_id, "cpu-1")
        shares = {"imagenet": {placement: -1.0}}
        return replace(super().targets(view, forecast_per_s), shares=shares)


class Scaling(testing.ScalingConformance):
    """Declares all that may be."""

    fits_memory = False
    keeps_pools = False


@pytest.mark.parametrize(
    ("policy", "message", "may_be_declared"),
    [
        (Wants(99), "workers for it", False),
        (WantsGiants(), "0 workers for it", False),
        (Wants(12, whole=True), "bytes wanted of cpu-1", True),
        (Overdraws(), "may there be", True),
    ],
)
def test_a_plan_is_checked_for_room(policy: Any, message: str, may_be_declared: bool) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.ScalingConformance().test_wants_no_more_than_there_is_room_for(policy, 200, 12)
    if may_be_declared:
        Scaling().test_wants_no_more_than_there_is_room_for(policy, 200, 12)
    else:
        with pytest.raises(AssertionError, match=message):
            Scaling().test_wants_no_more_than_there_is_room_for(policy, 200, 12)


def test_shares_are_checked() -> None:
    with pytest.raises(AssertionError, match=r"-1\.0 of 'imagenet'"):
        testing.ScalingConformance().test_wants_what_there_is(SharesNonsense(), 30, 1, 0.0)
