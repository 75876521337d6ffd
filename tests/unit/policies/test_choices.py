"""The built-in policies against what they say of themselves, found by trying everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.placement.most_free_memory import MostFreeMemory
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.feasibility import latency_column, list_options, why_infeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.testing.options import (
    NOW_S,
    make_candidates,
    make_cluster,
    make_query,
    make_queues,
    make_worker,
)
from modelless.policies.views import Bind, Candidates, Defer, QueryView, Reject, Run, Wait
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement

QUANTILES = ("p50", "p90", "p99")


def feasible_rows(query: QueryView, candidates: Candidates, quantile: str) -> list[int]:
    """By the book, row by row."""
    latency_s = latency_column(candidates.estimates, quantile)
    return [
        row
        for row in range(len(candidates.placements))
        if math.isfinite(latency_s[row])
        and candidates.free_at_s[row] + latency_s[row] <= query.deadline_s
        and candidates.accuracy_percent[row] >= query.min_accuracy_percent
        and candidates.cost_usd[row] <= query.max_cost_usd
    ]


@given(
    seed=st.integers(0, 100_000),
    rows=st.integers(0, 40),
    unknown=st.sampled_from([0.0, 0.3]),
    quantile=st.sampled_from(QUANTILES),
)
def test_the_choice_is_the_best_there_is(
    seed: int, rows: int, unknown: float, quantile: str
) -> None:
    rng = np.random.default_rng(seed)
    candidates, query = make_candidates(rng, rows, unknown=unknown), make_query(rng, 1)
    feasible = feasible_rows(query, candidates, quantile)
    cheapest = CheapestFeasible(quantile).on_arrival(query, candidates, rng)
    accurate = MostAccurateFeasible(quantile).on_arrival(query, candidates, rng)
    if not feasible:
        options = list_options(query, candidates, quantile)
        assert cheapest == accurate == Reject(why_infeasible(query, options))
        return
    assert isinstance(cheapest, Bind)
    assert isinstance(accurate, Bind)
    assert (cheapest.reason, accurate.reason) == (
        Reason.CHEAPEST_FEASIBLE,
        Reason.MOST_ACCURATE_FEASIBLE,
    )
    cost, accuracy = candidates.cost_usd, candidates.accuracy_percent
    finish = candidates.free_at_s + latency_column(candidates.estimates, quantile)
    assert cheapest.row in feasible
    assert accurate.row in feasible
    assert (cost[cheapest.row], -accuracy[cheapest.row]) == min(
        (cost[row], -accuracy[row]) for row in feasible
    )
    assert (-accuracy[accurate.row], finish[accurate.row]) == min(
        (-accuracy[row], finish[row]) for row in feasible
    )


@given(seed=st.integers(0, 100_000), quantile=st.sampled_from(QUANTILES))
def test_on_late_chooses_as_on_arrival(seed: int, quantile: str) -> None:
    rng = np.random.default_rng(seed)
    candidates, query = make_candidates(rng, 20), make_query(rng, 1)
    for policy in (CheapestFeasible(quantile), MostAccurateFeasible(quantile)):
        arrival = policy.on_arrival(query, candidates, rng)
        assert policy.on_late(query, candidates, rng) == arrival


def rows(*columns: tuple[float, float, float, float]) -> Candidates:
    """Candidates from (p50, accuracy, cost, wait)."""
    p50_s, accuracy, cost, wait_s = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    estimates = Estimates(p50_s, p50_s, p50_s, p50_s, p50_s)
    placements = tuple(Placement(f"t/m/v{i}@1", "cpu-1") for i in range(len(p50_s)))
    return Candidates(placements, accuracy, cost, estimates, NOW_S + wait_s, NOW_S)


def query(budget_s: float = math.inf, accuracy: float = 0.0, cost: float = math.inf) -> QueryView:
    return QueryView(1, "t", NOW_S, NOW_S + budget_s, accuracy, cost)


@pytest.mark.parametrize(
    ("candidates", "asked", "reason"),
    [
        (rows(), query(), Reason.NOTHING_READY),
        (rows((math.inf, 70, 1, 0)), query(), Reason.NOTHING_READY),
        (rows((math.nan, 70, 1, 0)), query(accuracy=90), Reason.NOTHING_READY),
        (rows((0.1, 70, 1, 0)), query(accuracy=71), Reason.TOO_INACCURATE),
        (rows((0.1, 70, 1, 0), (math.inf, 90, 1, 0)), query(accuracy=71), Reason.TOO_INACCURATE),
        (rows((0.1, 70, 1, 0)), query(0.05), Reason.TOO_SLOW),
        (rows((0.1, 70, 1, 0)), query(cost=0.5), Reason.TOO_DEAR),
        (rows((0.1, 70, 1, 0), (0.3, 80, 1, 0)), query(0.2, 75), Reason.LIMITS_CONFLICT),
        (rows((0.1, 70, 1, 5.0)), query(1.0), Reason.QUEUE_TOO_LONG),
        (rows((0.1, 70, 1, math.inf)), query(), Reason.QUEUE_TOO_LONG),
        (rows((0.1, 70, 1, 0)), query(0.05, 90, 0.5), Reason.TOO_INACCURATE),
    ],
)
def test_why_nothing_is_feasible(candidates: Candidates, asked: QueryView, reason: Reason) -> None:
    for policy in (CheapestFeasible(), MostAccurateFeasible()):
        choice = policy.on_arrival(asked, candidates, np.random.default_rng(0))
        assert choice == Reject(reason)


def test_a_query_that_waited_too_long_was_not_too_slow_to_begin_with() -> None:
    waited = QueryView(1, "t", NOW_S - 1.0, NOW_S + 0.05)
    choice = CheapestFeasible().on_arrival(waited, rows((0.1, 70, 1, 0)), np.random.default_rng(0))
    assert choice == Reject(Reason.QUEUE_TOO_LONG)


def test_limits_are_met_by_what_meets_them_exactly() -> None:
    candidates = rows((0.5, 70.0, 1.0, 0.25))
    exact = CheapestFeasible().on_arrival(
        query(0.75, 70.0, 1.0), candidates, np.random.default_rng(0)
    )
    assert exact == Bind(0, Reason.CHEAPEST_FEASIBLE)


def test_equals_are_told_apart_by_the_wait() -> None:
    candidates = rows((0.1, 70, 1, 0.5), (0.1, 70, 1, 0.2), (0.1, 70, 1, 0.9))
    choice = MostAccurateFeasible().on_arrival(query(), candidates, np.random.default_rng(0))
    assert choice == Bind(1, Reason.MOST_ACCURATE_FEASIBLE)


def test_a_selection_policy_defers_and_rejects_what_is_late_by_default() -> None:
    class Plain(SelectionPolicy):
        pass

    policy = Plain(EarliestDeadlineFirst())
    rng = np.random.default_rng(0)
    assert policy.on_arrival(query(), rows(), rng) == Defer(Reason.DEFERRED)
    assert policy.on_late(query(), rows(), rng) == Reject(Reason.DEADLINE_PASSED)
    assert policy.on_idle(make_worker(rng, 2), [], NOW_S, rng) == Wait(Reason.NOTHING_QUEUED)


# -- batching ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 100_000), queues=st.integers(1, 6), min_gain=st.floats(0.0, 0.9))
def test_a_batch_is_the_front_of_the_most_urgent_queue(
    seed: int, queues: int, min_gain: float
) -> None:
    rng = np.random.default_rng(seed)
    worker = make_worker(rng, 4)
    given_queues = make_queues(rng, worker, queues, 25)
    decision = EarliestDeadlineFirst(min_gain).next_batch(worker, given_queues, NOW_S)
    assert isinstance(decision, Run)
    assert decision.reason is Reason.EARLIEST_DEADLINE_FIRST
    heads = [queue.queries[0] for queue in given_queues]
    assert decision.queries[0] == min(
        heads, key=lambda head: (-head.priority, head.deadline_s, head.query_id)
    )
    (queue,) = [queue for queue in given_queues if queue.queries[0] == decision.queries[0]]
    assert decision.queries == tuple(queue.queries[: len(decision.queries)])
    latency_s = worker.residents[decision.variant_id].p50_s
    items = sum(member.items for member in decision.queries)
    alone = decision.queries[0].items
    assert latency_s[items] / items <= latency_s[alone] / alone


def test_queues_of_what_is_not_there_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    worker = make_worker(rng, 3)
    (queue,) = make_queues(rng, worker, 1, 5)
    elsewhere = queue._replace(variant_id="t/not/here@1")
    deferred = queue._replace(variant_id=None)
    batching = EarliestDeadlineFirst()
    assert batching.next_batch(worker, [elsewhere, deferred], NOW_S) == Wait(Reason.NOTHING_QUEUED)
    decision = batching.next_batch(worker, [elsewhere, deferred, queue], NOW_S)
    assert isinstance(decision, Run)
    assert decision.variant_id == queue.variant_id


# -- the control plane ------------------------------------------------------------------------


def test_least_recently_used_leaves_first() -> None:
    view = make_cluster(np.random.default_rng(0), 20, 3)
    residents = [instance for worker in view.workers for instance in worker.instances]
    ranked = LeastRecentlyUsed().rank(residents, view)
    assert [instance.last_used_s for instance in ranked] == sorted(
        instance.last_used_s for instance in residents
    )


def test_most_free_memory_first() -> None:
    view = make_cluster(np.random.default_rng(0), 30, 9)
    ranked = MostFreeMemory().rank("t/m/v@1", 100, view.workers)
    free = [worker.free_bytes for worker in ranked]
    assert free == sorted(free, reverse=True)


def test_the_last_value_is_the_next() -> None:
    forecaster = LastValue()
    assert forecaster.forecast(10.0) == {}
    forecaster.observe(1.0, {"t": 5.0, "u": 1.0})
    forecaster.observe(2.0, {"t": 7.0})
    assert forecaster.forecast(10.0) == {"t": 7.0}
