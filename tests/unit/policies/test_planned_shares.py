"""The router of planned shares and the batching that goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from modelless.policies.batching.proteus import ProteusBatching
from modelless.policies.reasons import Reason
from modelless.policies.selection.planned_shares import PlannedShares
from modelless.policies.views import (
    Bind,
    Candidates,
    QueryView,
    QueueView,
    Reject,
    ResidentView,
    Run,
    Wait,
    WorkerView,
)
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement


def cpu(name: str) -> Placement:
    return Placement(f"t/{name}/v@1", "cpu")


def make_candidates(*rows: tuple[str, float, float]) -> Candidates:
    """Idle placements by name, accuracy and seconds."""
    p50_s = np.array([seconds for _, _, seconds in rows])
    return Candidates(
        tuple(cpu(name) for name, _, _ in rows),
        np.array([accuracy for _, accuracy, _ in rows]),
        np.full(len(rows), 1e-6),
        Estimates(p50_s, 1.1 * p50_s, 1.2 * p50_s, p50_s, p50_s),
        np.zeros(len(rows)),
        0.0,
    )


def counted(
    policy: PlannedShares, candidates: Candidates, queries: Sequence[QueryView]
) -> dict[tuple[float, str], float]:
    """The share of all queries by minimum accuracy and variant."""
    rng, found = np.random.default_rng(1), Counter[tuple[float, str]]()
    for query in queries:
        choice = policy.on_arrival(query, candidates, rng)
        assert isinstance(choice, Bind)
        assert choice.reason is Reason.PLANNED
        name = candidates.placements[choice.row].variant_id.split("/")[1]
        found[query.min_accuracy_percent, name] += 1
    return {key: count / len(queries) for key, count in found.items()}


def test_queries_are_routed_in_proportion_to_their_shares() -> None:
    policy = PlannedShares()
    policy.on_plan({"t": {cpu("a"): 0.6, cpu("b"): 0.3, cpu("c"): 0.1, cpu("away"): 0.5}})
    candidates = make_candidates(("c", 60, 0.01), ("a", 70, 0.01), ("b", 80, 0.01))
    shares = counted(policy, candidates, [QueryView(n, "t", 0.0, 1.0) for n in range(4000)])
    assert shares[0.0, "a"] == pytest.approx(0.6, abs=0.03)
    assert shares[0.0, "b"] == pytest.approx(0.3, abs=0.03)
    assert shares[0.0, "c"] == pytest.approx(0.1, abs=0.03)


def test_those_who_want_accuracy_take_their_part_of_the_accurate_ones_share() -> None:
    policy = PlannedShares()
    policy.on_plan({"t": {cpu("a"): 0.6, cpu("b"): 0.4}})
    candidates = make_candidates(("a", 60, 0.01), ("b", 80, 0.01))
    floors = [75.0, 0.0, 0.0, 0.0]
    queries = [QueryView(n, "t", 0.0, 1.0, floors[n % 4]) for n in range(4000)]
    shares = counted(policy, candidates, queries)
    assert shares[75.0, "b"] == pytest.approx(0.25)
    assert shares[0.0, "b"] == pytest.approx(0.15, abs=0.03)
    assert (75.0, "a") not in shares


def test_those_in_a_hurry_go_where_the_plan_left_time_for_the_wait() -> None:
    policy = PlannedShares()
    policy.on_plan({"t": {cpu("a"): 0.1, cpu("b"): 0.9}})
    candidates = make_candidates(("a", 60, 0.01), ("b", 80, 0.06))
    assert counted(policy, candidates, [QueryView(1, "t", 0.0, 0.1)]) == {(0.0, "a"): 1.0}
    slow = make_candidates(("b", 80, 0.06))
    assert counted(policy, slow, [QueryView(1, "t", 0.0, 0.1)]) == {(0.0, "b"): 1.0}


def test_the_order_of_the_candidates_does_not_matter() -> None:
    rows = [("a", 60.0, 0.01), ("b", 80.0, 0.01), ("c", 70.0, 0.01)]
    drawn = []
    for order in (rows, rows[::-1]):
        policy, rng, candidates = PlannedShares(), np.random.default_rng(3), make_candidates(*order)
        policy.on_plan({"t": {cpu("c"): 0.3, cpu("a"): 0.3, cpu("b"): 0.4}})
        choices = [policy.on_arrival(QueryView(n, "t", 0, 1), candidates, rng) for n in range(50)]
        drawn.append([candidates.placements[c.row] for c in choices if isinstance(c, Bind)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_without_a_plan_the_most_accurate_feasible_serves() -> None:
    policy, rng = PlannedShares(), np.random.default_rng(1)
    candidates = make_candidates(("a", 60, 0.01), ("b", 80, 0.01), ("slow", 90, 5.0))
    query = QueryView(1, "t", 0.0, 1.0)
    assert policy.on_arrival(query, candidates, rng) == Bind(1, Reason.MOST_ACCURATE_FEASIBLE)
    policy.on_plan({"t": {cpu("gone"): 1.0}, "u": {cpu("a"): 1.0}})
    assert policy.on_arrival(query, candidates, rng) == Bind(1, Reason.MOST_ACCURATE_FEASIBLE)
    picky = query._replace(min_accuracy_percent=95.0)
    assert policy.on_arrival(picky, candidates, rng) == Reject(Reason.TOO_INACCURATE)


# -- batching ---------------------------------------------------------------------------------


def ask(
    policy: ProteusBatching, now_s: float, *deadlines_s: float, came_s: float = 0.0
) -> Run | Wait:
    """One worker: a batch of b takes 10 + 5 (b - 1) ms."""
    p50_s = (0.0, *(0.010 + 0.005 * extra for extra in range(8)))
    worker = WorkerView("w", "cpu", {"v": ResidentView("v", 70.0, p50_s, p50_s)}, 8)
    queries = tuple(QueryView(n, "t", came_s, at_s) for n, at_s in enumerate(deadlines_s))
    return policy.next_batch(worker, [QueueView("t", "v", None, queries)], now_s)


def sizes(decision: Run | Wait) -> tuple[int, int]:
    """Queries that are run, and that are dropped."""
    return (len(decision.queries) if isinstance(decision, Run) else 0), len(decision.dropped)


def test_waits_for_a_fuller_batch_until_the_last_moment_to_start() -> None:
    policy = ProteusBatching()
    decision = ask(policy, 0.0, 0.1)
    assert isinstance(decision, Wait)
    assert decision.reason is Reason.FILLING_BATCH
    assert decision.until_s == pytest.approx(0.090)
    decision = ask(policy, 0.0, 0.1, 0.1, 0.1)  # B(3) is 2
    assert isinstance(decision, Wait)
    assert decision.until_s == pytest.approx(0.085)
    assert sizes(ask(policy, 0.085, 0.1, 0.1, 0.1)) == (2, 0)


def test_a_full_batch_starts_at_once() -> None:
    assert sizes(ask(ProteusBatching(), 0.0, *[0.1] * 9)) == (8, 0)
    # 25 ms for 4 are less than half of 60, 45 for 8 are not.
    assert sizes(ask(ProteusBatching(), 0.0, *[0.06] * 4)) == (4, 0)


def test_an_arrival_that_comes_too_late_to_be_waited_for_is_left_out() -> None:
    assert sizes(ask(ProteusBatching(), 0.088, 0.1, 0.1)) == (1, 0)  # two would take until 0.103


def test_the_first_is_dropped_if_it_cannot_be_in_time() -> None:
    decision = ask(ProteusBatching(), 0.095, 0.1, 0.2, 0.2, 0.2, 0.2)
    assert decision.dropped == (QueryView(0, "t", 0.0, 0.1),)
    decision = ask(ProteusBatching(), 0.095, 0.1)
    assert isinstance(decision, Wait)
    assert sizes(decision) == (0, 1)


def test_who_has_no_deadline_does_not_wait_for_ever() -> None:
    decision = ask(ProteusBatching(max_wait_s=0.5), 0.1, inf)
    assert isinstance(decision, Wait)
    assert decision.until_s == pytest.approx(0.5)
    assert sizes(ask(ProteusBatching(max_wait_s=0.5), 0.5, inf)) == (1, 0)


def test_those_with_less_time_are_remembered() -> None:
    policy = ProteusBatching()
    ask(policy, 0.0, 0.025)
    assert sizes(ask(policy, 0.001, 10.0)) == (1, 0)  # it may run one at a time only
    assert sizes(ask(policy, 15.0, 25.0, came_s=15.0)) == (1, 0)
    assert sizes(ask(policy, 30.0, 40.0, came_s=30.0)) == (0, 0)  # nobody else for a while
