"""The kit fails those that it is there to fail: one bad policy for each check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from modelless.policies import testing
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.placement.most_free_memory import MostFreeMemory
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.testing.plain import freeze, plain
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    ClusterView,
    Defer,
    Instance,
    QueryView,
    QueueView,
    Reject,
    Run,
    Targets,
    Wait,
    WorkerState,
    WorkerView,
)
from modelless.variants.vocabulary import Placement

DRAWN: list[float] = []


class OutOfRange(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return Bind(len(candidates.placements), Reason.CHEAPEST_FEASIBLE)


class NoReason(CheapestFeasible):
    def on_late(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return Reject("too late")  # type: ignore[arg-type]


class RemembersEveryQuery(CheapestFeasible):
    def __init__(self) -> None:
        super().__init__()
        self.seen_s: dict[int, float] = {}

    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        self.seen_s[query.query_id] = candidates.now_s
        return super().on_arrival(query, candidates, rng)


class RemembersRecentQueries(RemembersEveryQuery):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        now_s = candidates.now_s
        self.seen_s = {name: at for name, at in self.seen_s.items() if now_s - at < 10.0}
        return super().on_arrival(query, candidates, rng)


class IgnoresDeadlines(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return super().on_arrival(query._replace(deadline_s=np.inf), candidates, rng)


class BindsToTheUnknown(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        unknown = np.flatnonzero(~np.isfinite(candidates.estimates.p50_s))
        if len(unknown):
            return Bind(int(unknown[0]), Reason.CHEAPEST_FEASIBLE)
        return super().on_arrival(query, candidates, rng)


class RejectsAll(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        return Reject(Reason.TOO_SLOW)


class TakesTheFirst(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        if not len(candidates.placements):
            return Reject(Reason.NOTHING_READY)
        return Bind(0, Reason.CHEAPEST_FEASIBLE)


class Writes(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        candidates.cost_usd.flags.writeable = True
        candidates.cost_usd[:] = 1.0
        return super().on_arrival(query, candidates, rng)


class GlobalRandomness(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        DRAWN.append(0.0)
        if len(DRAWN) % 7 == 0:
            return Reject(Reason.TOO_SLOW)
        return super().on_arrival(query, candidates, rng)


class DependsOnHashes(LeastRecentlyUsed):
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return sorted(residents, key=lambda i: hash(i.variant_id))


class DoesNotPickle(LeastRecentlyUsed):
    def __init__(self) -> None:
        self.key = lambda i: i.last_used_s


class Forgets(LastValue):
    def __getstate__(self) -> dict[str, Any]:
        return {"_rates": {}}


class Slow(LeastRecentlyUsed):
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        for _ in range(300_000 if len(residents) >= 1000 else 0):
            pass
        sum(i * i for i in range(2_000_000 if len(residents) >= 1000 else 0))
        return super().rank(residents, view)


class LeavesOut(LeastRecentlyUsed):
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return list(super().rank(residents, view))[1:]


class Twice(MostFreeMemory):
    def rank(self, variant_id: str, memory_bytes: int, workers: Any) -> Sequence[WorkerState]:
        ranked = list(super().rank(variant_id, memory_bytes, workers))
        return ranked + ranked[:1]


class LeavesFullWorkersOut(MostFreeMemory):
    def rank(self, variant_id: str, memory_bytes: int, workers: Any) -> Sequence[WorkerState]:
        ranked = super().rank(variant_id, memory_bytes, workers)
        return [worker for worker in ranked if worker.free_bytes >= memory_bytes]


class AsGiven(MostFreeMemory):
    def rank(self, variant_id: str, memory_bytes: int, workers: Any) -> Sequence[WorkerState]:
        return list(workers)


class Greedy(EarliestDeadlineFirst):
    def next_batch(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Any:
        if not queues:
            return Wait(Reason.NOTHING_QUEUED)
        queue = queues[0]
        return Run(queue.variant_id or "", tuple(queue.queries), Reason.EARLIEST_DEADLINE_FIRST)


class Large(EarliestDeadlineFirst):
    """As many as are allowed, deadlines or not."""

    def next_batch(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Any:
        one = super().next_batch(worker, queues, now_s)
        if isinstance(one, Wait):
            return one
        (queue,) = [queue for queue in queues if one.queries[0] in queue.queries]
        members, items = [], 0
        for query in queue.queries:
            if items + query.items <= worker.max_batch:
                members.append(query)
                items += query.items
        return one._replace(queries=tuple(members))


class Idles(EarliestDeadlineFirst):
    def next_batch(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Any:
        return Wait(Reason.NOTHING_QUEUED)


class Pops(EarliestDeadlineFirst):
    def next_batch(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> Any:
        decision = super().next_batch(worker, queues, now_s)
        queues.clear()  # type: ignore[attr-defined]
        return decision


class MakesUp(Fixed):
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        return Targets({Placement("made/up/x@1", "cpu-1"): 1}, {}, Reason.FIXED_SIZE)


class Halves(Fixed):
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        whole = super().targets(view, forecast_per_s)
        halves: Any = {placement: count / 2 for placement, count in whole.instances.items()}
        return Targets(halves, {}, Reason.FIXED_SIZE)


class TrustsTheForecast(Fixed):
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        workers = {"cpu-1": round(sum(forecast_per_s.values()))}
        return Targets({}, workers, Reason.FIXED_SIZE)


class Negative(LastValue):
    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return {scope: rate - 10.0 for scope, rate in super().forecast(horizon_s).items()}


class KeepsTheMapping(LastValue):
    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        self._rates = arrivals_per_s  # type: ignore[assignment]


class DefersForEver(SelectionPolicy):
    def __init__(self) -> None:
        super().__init__(EarliestDeadlineFirst())


CAUGHT: list[tuple[type, Any, str, dict[str, Any]]] = [
    (
        testing.SelectionConformance,
        OutOfRange,
        "test_chooses_among_the_options",
        {"hook": "on_arrival", "rows": 30, "unknown": 0.0},
    ),
    (
        testing.SelectionConformance,
        NoReason,
        "test_chooses_among_the_options",
        {"hook": "on_late", "rows": 30, "unknown": 0.0},
    ),
    (
        testing.SelectionConformance,
        IgnoresDeadlines,
        "test_chooses_among_the_options",
        {"hook": "on_arrival", "rows": 30, "unknown": 0.0},
    ),
    (
        testing.SelectionConformance,
        BindsToTheUnknown,
        "test_chooses_among_the_options",
        {"hook": "on_arrival", "rows": 30, "unknown": 0.3},
    ),
    (testing.SelectionConformance, RejectsAll, "test_serves_what_anything_could_serve", {}),
    (
        testing.SelectionConformance,
        TakesTheFirst,
        "test_the_order_of_the_options_does_not_matter",
        {},
    ),
    (testing.SelectionConformance, Writes, "test_leaves_its_inputs_untouched", {}),
    (testing.SelectionConformance, GlobalRandomness, "test_same_seed_same_answer", {}),
    (
        testing.SelectionConformance,
        RemembersEveryQuery,
        "test_keeps_no_more_the_longer_it_serves",
        {},
    ),
    (testing.SelectionConformance, DefersForEver, "test_takes_up_again_what_it_deferred", {}),
    (testing.SelectionConformance, LeastRecentlyUsed, "test_is_of_the_seam", {}),
    (
        testing.EvictionConformance,
        DependsOnHashes,
        "test_same_answer_in_another_process",
        {},
    ),
    (testing.EvictionConformance, DoesNotPickle, "test_pickles_with_all_it_has_learned", {}),
    (testing.EvictionConformance, Slow, "test_answers_within_its_budget", {}),
    (testing.EvictionConformance, LeavesOut, "test_ranks_all_that_it_is_given", {"count": 30}),
    (
        testing.PlacementConformance,
        Twice,
        "test_ranks_the_workers_it_is_given",
        {"workers": 12, "memory_bytes": 1},
    ),
    (
        testing.PlacementConformance,
        LeavesFullWorkersOut,
        "test_ranks_the_workers_it_is_given",
        {"workers": 12, "memory_bytes": 1 << 50},
    ),
    (
        testing.PlacementConformance,
        AsGiven,
        "test_the_order_of_the_workers_does_not_matter",
        {},
    ),
    (
        testing.BatchingConformance,
        Greedy,
        "test_makes_batches_that_can_be_run",
        {"queries": 1000, "max_batch": 4, "unknown": 0.0},
    ),
    (
        testing.BatchingConformance,
        Large,
        "test_makes_batches_that_can_be_run",
        {"queries": 1000, "max_batch": 32, "unknown": 0.0},
    ),
    (
        testing.BatchingConformance,
        Idles,
        "test_makes_batches_that_can_be_run",
        {"queries": 30, "max_batch": 4, "unknown": 0.0},
    ),
    (testing.BatchingConformance, Pops, "test_leaves_its_inputs_untouched", {}),
    (
        testing.BatchingConformance,
        Greedy,
        "test_the_order_of_the_queues_does_not_matter",
        {},
    ),
    (
        testing.ScalingConformance,
        MakesUp,
        "test_wants_what_there_is",
        {"variants": 30, "workers": 1, "unknown": 0.0},
    ),
    (
        testing.ScalingConformance,
        Halves,
        "test_wants_what_there_is",
        {"variants": 30, "workers": 1, "unknown": 0.0},
    ),
    (testing.ScalingConformance, TrustsTheForecast, "test_any_forecast_will_do", {"rate": np.inf}),
    (testing.ForecasterConformance, Negative, "test_forecasts_rates", {"scopes": 1}),
    (
        testing.ForecasterConformance,
        KeepsTheMapping,
        "test_keeps_nothing_that_others_may_change",
        {},
    ),
    (testing.ForecasterConformance, Forgets, "test_pickles_with_all_it_has_learned", {}),
]


@pytest.mark.parametrize(
    ("case", "policy", "check", "arguments"),
    CAUGHT,
    ids=[f"{policy.__name__}-{check}" for _, policy, check, _ in CAUGHT],
)
def test_a_bad_policy_is_caught(
    case: type, policy: Any, check: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises((AssertionError, OverflowError, AttributeError, TypeError)) as caught:
        getattr(case(), check)(policy(), **arguments)
    assert str(caught.value)


def test_what_is_forgotten_in_time_may_be_remembered() -> None:
    testing.SelectionConformance().test_keeps_no_more_the_longer_it_serves(RemembersRecentQueries())


def test_a_promise_that_is_not_kept_is_caught() -> None:
    class Promises(testing.SelectionConformance):
        looser_deadline_never_costs_more = True

    with pytest.raises(AssertionError, match="more time, dearer"):
        Promises().test_a_looser_deadline(MostAccurateFeasible())
    with pytest.raises(pytest.skip.Exception):
        testing.SelectionConformance().test_a_looser_deadline(CheapestFeasible())


def test_what_is_declared_is_allowed() -> None:
    class Careless(testing.SelectionConformance):
        keeps_deadlines = False
        order_matters = True

    case = Careless()
    case.test_chooses_among_the_options(IgnoresDeadlines(), "on_arrival", 30, 0.3)
    with pytest.raises(pytest.skip.Exception):
        case.test_the_order_of_the_options_does_not_matter(TakesTheFirst())

    class Fussy(testing.PlacementConformance):
        leaves_workers_out = True

    Fussy().test_ranks_the_workers_it_is_given(LeavesFullWorkersOut(), 12, 1 << 50)


def test_a_case_without_its_fixture_says_what_is_missing() -> None:
    fixture = testing.EvictionConformance.policy
    with pytest.raises(NotImplementedError, match="supply a fixture 'policy'"):
        fixture.__wrapped__(testing.EvictionConformance())  # type: ignore[attr-defined]


def test_the_kit_gives_the_seam_what_the_core_gives() -> None:
    """Read-only arrays, so that a policy that writes fails here as it would there."""
    cases = (testing.SelectionConformance(), CheapestFeasible())
    for case, policy in (cases, (testing.BatchingConformance(), EarliestDeadlineFirst())):
        for _, arguments in case.questions(policy):
            for argument in freeze(arguments):
                if isinstance(argument, Candidates):
                    assert not argument.cost_usd.flags.writeable
                    assert not argument.estimates.p99_s.flags.writeable


def test_plain_tells_values_apart_to_the_last_bit() -> None:
    assert plain(np.nan) == plain(float("nan"))
    assert plain(0.0) != plain(-0.0)
    assert plain(np.array([1.0, np.nan])) == plain(np.array([1.0, np.nan]))
    assert plain(np.array([1.0])) != plain(np.array([1]))
    assert plain({"a": 1, "b": 2}) != plain({"b": 2, "a": 1})
    assert plain({"b", "a"}) == plain({"a", "b"})
    assert plain([Defer()]) == plain((Defer(),))
    assert plain(np.float64(1.5)) == plain(1.5)


def test_policies_do_not_need_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import modelless.policies.discovery as d\n"
        "for seam, names in d.BUILT_IN.items():\n"
        "    for name in names: d.find_policy(seam, name)\n"
        "try:\n"
        "    import modelless.policies.testing\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert "needs pytest, which is not installed: pip install pytest" in told.stdout
