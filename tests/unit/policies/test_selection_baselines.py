"""Each published selection policy, on choices that show its idea."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.batching.additive_increase import AdditiveIncrease
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.clipper import Clipper
from modelless.policies.selection.clockwork import Clockwork
from modelless.policies.selection.least_laxity import LeastLaxity
from modelless.policies.selection.model_switching import ModelSwitching
from modelless.policies.selection.round_robin import RoundRobin
from modelless.policies.selection.slack_fit import SlackFit
from modelless.policies.selection.static import Static
from modelless.policies.selection.uniform_random import UniformRandom
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    Defer,
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

NOW_S = 100.0


def variant(number: int) -> str:
    return f"t/m/v{number}@1"


def rows(
    *columns: tuple[float, float, float, float],
    now_s: float = NOW_S,
    names: Sequence[tuple[int, str]] | None = None,
) -> Candidates:
    """Candidates from (p50, accuracy, cost, wait); ``names``: (variant's number, device class)."""
    p50_s, accuracy, cost, wait_s = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    estimates = Estimates(p50_s, p50_s, p50_s, p50_s, p50_s)
    names = names or [(number, "cpu-1") for number in range(len(p50_s))]
    placements = tuple(Placement(variant(number), name) for number, name in names)
    return Candidates(placements, accuracy, cost, estimates, now_s + wait_s, now_s)


def make_query(
    number: int = 1,
    left_s: float = math.inf,
    accuracy: float = 0.0,
    cost: float = math.inf,
    *,
    waited_s: float = 0.0,
    priority: int = 0,
    scope: str = "t",
    now_s: float = NOW_S,
) -> QueryView:
    deadline_s = now_s + left_s
    return QueryView(number, scope, now_s - waited_s, deadline_s, accuracy, cost, priority)


def ask(policy: SelectionPolicy, query: QueryView, candidates: Candidates, seed: int = 0) -> Choice:
    return policy.on_arrival(query, candidates, np.random.default_rng(seed))


def bound(policy: SelectionPolicy, query: QueryView, candidates: Candidates, times: int) -> str:
    """The numbers of the variants that so many queries alike are bound to."""
    rng, chosen = np.random.default_rng(0), []
    for _ in range(times):
        choice = policy.on_arrival(query, candidates, rng)
        assert isinstance(choice, Bind)
        chosen.append(candidates.placements[choice.row].variant_id[5])
    return "".join(chosen)


LADDER = rows((0.01, 60, 1, 0), (0.02, 70, 2, 0), (0.04, 80, 4, 0))

# -- every policy that does not plan with the queue -------------------------------------------

FIXED_RULES = [
    RoundRobin(),
    UniformRandom(),
    Static(),
    Static("most-accurate"),
    Clipper(),
    Clockwork(),
    LeastLaxity(),
    SlackFit(),
    ModelSwitching(),
]


@pytest.mark.parametrize("policy", FIXED_RULES)
@pytest.mark.parametrize(
    ("candidates", "query", "reason"),
    [
        (rows(), make_query(), Reason.NOTHING_READY),
        (rows((math.nan, 70, 1, 0)), make_query(), Reason.NOTHING_READY),
        (LADDER, make_query(accuracy=81.0), Reason.TOO_INACCURATE),
        (LADDER, make_query(left_s=0.005), Reason.TOO_SLOW),
        (LADDER, make_query(cost=0.5), Reason.TOO_DEAR),
        (LADDER, make_query(cost=3.0, accuracy=75.0), Reason.LIMITS_CONFLICT),
        (LADDER, make_query(left_s=0.03, accuracy=75.0), Reason.LIMITS_CONFLICT),
    ],
)
def test_what_could_never_be_served_is_refused(
    policy: SelectionPolicy, candidates: Candidates, query: QueryView, reason: Reason
) -> None:
    refused = ask(policy, query, candidates)
    fixed = isinstance(policy, Static) and reason is Reason.LIMITS_CONFLICT
    expected = {Reason.TOO_SLOW, reason} if fixed else {reason}  # its one variant is too slow
    assert isinstance(refused, Reject)
    assert refused.reason in expected


@pytest.mark.parametrize("policy", FIXED_RULES)
def test_what_will_be_late_because_of_the_queue_is_not_refused(policy: SelectionPolicy) -> None:
    busy = rows((0.01, 60, 1, 5.0), (0.02, 70, 2, 5.0))
    assert not isinstance(ask(policy, make_query(left_s=0.1), busy), Reject)


@pytest.mark.parametrize("policy", FIXED_RULES)
def test_minimum_accuracy_and_maximum_cost_are_kept(policy: SelectionPolicy) -> None:
    for seed in range(10):
        choice = ask(policy, make_query(accuracy=65.0, cost=3.0), LADDER, seed)
        assert isinstance(choice, Defer) or choice == Bind(1, choice.reason)


# -- in turn, at random -----------------------------------------------------------------------


def test_placements_take_turns_by_name() -> None:
    assert bound(RoundRobin(), make_query(), LADDER, 7) == "0120120"
    assert ask(RoundRobin(), make_query(), LADDER) == Bind(0, Reason.IN_TURN)


def test_the_turn_skips_what_is_not_accurate_enough() -> None:
    policy = RoundRobin()
    assert bound(policy, make_query(accuracy=65.0), LADDER, 5) == "12121"
    assert bound(policy, make_query(), LADDER, 2) == "20"


def test_each_scope_has_a_turn_of_its_own() -> None:
    policy = RoundRobin()
    assert bound(policy, make_query(), LADDER, 2) == "01"
    assert bound(policy, make_query(scope="t/m"), LADDER, 2) == "01"
    assert bound(policy, make_query(), LADDER, 1) == "2"


def test_the_turn_goes_on_when_placements_come_and_go() -> None:
    policy = RoundRobin()
    assert bound(policy, make_query(), LADDER, 2) == "01"
    without = rows((0.01, 60, 1, 0), (0.04, 80, 4, 0), names=[(0, "cpu-1"), (2, "cpu-1")])
    assert bound(policy, make_query(), without, 2) == "20"


@pytest.mark.parametrize("policy", [RoundRobin(), UniformRandom()])
def test_dominated_placements_have_their_turn_too(policy: SelectionPolicy) -> None:
    shortened = replace(LADDER, shortlist=np.array([2]))
    assert set(bound(policy, make_query(), shortened, 30)) == set("012")


def test_random_takes_each_as_often_as_the_other() -> None:
    policy = UniformRandom()
    count = Counter(bound(policy, make_query(accuracy=65.0), LADDER, 1000))
    assert set(count) == {"1", "2"}
    assert 430 < count["1"] < 570  # beyond 4 standard deviations
    choice = ask(policy, make_query(), LADDER)
    assert isinstance(choice, Bind)
    assert choice.reason is Reason.AT_RANDOM


# -- one fixed variant ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "accuracy", "row"),
    [
        (Static(), 0.0, 0),
        (Static(), 65.0, 1),
        (Static("most-accurate"), 0.0, 2),
        (Static("most-accurate"), 65.0, 2),
        (Static(variant(1)), 0.0, 1),
        (Clipper(), 0.0, 2),
        (Clipper("high-throughput"), 0.0, 0),
        (Clipper("high-throughput"), 75.0, 2),
    ],
)
def test_the_variant_is_always_the_same(policy: Static, accuracy: float, row: int) -> None:
    asked = make_query(accuracy=accuracy, left_s=0.1)
    assert ask(policy, asked, LADDER) == Bind(row, Reason.ALWAYS)
    waits_s = np.full(3, NOW_S)
    waits_s[row] += 60.0
    assert ask(policy, asked, replace(LADDER, free_at_s=waits_s)) == Bind(row, Reason.ALWAYS)


def test_of_the_devices_that_hold_it_the_one_that_finishes_soonest_serves() -> None:
    names = [(0, "cpu-1"), (0, "gpu-1"), (1, "gpu-1")]
    candidates = rows((0.04, 70, 1, 0.0), (0.01, 70, 9, 0.02), (0.02, 60, 9, 0.0), names=names)
    assert ask(Static(), make_query(), candidates) == Bind(1, Reason.ALWAYS)
    busier = replace(candidates, free_at_s=NOW_S + np.array([0.0, 0.035, 0.0]))
    assert ask(Static(), make_query(), busier) == Bind(0, Reason.ALWAYS)


def test_a_named_variant_refuses_what_it_may_not_serve() -> None:
    policy = Static(variant(0))
    assert ask(policy, make_query(accuracy=65.0), LADDER) == Reject(Reason.TOO_INACCURATE)
    assert ask(Static("t/m/v9@1"), make_query(), LADDER) == Reject(Reason.NOTHING_READY)


def test_a_variant_that_is_too_slow_when_idle_refuses() -> None:
    refused = ask(Static("most-accurate"), make_query(left_s=0.03), LADDER)
    assert refused == Reject(Reason.TOO_SLOW)


def test_clipper_batches_by_additive_increase_unless_told_otherwise() -> None:
    assert isinstance(Clipper().batching, AdditiveIncrease)
    assert isinstance(Clipper(batching=EarliestDeadlineFirst()).batching, EarliestDeadlineFirst)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (Static, "variant", "quickest"),
        (Clipper, "mode", "fastest"),
        (Clockwork, "variant", "quickest"),
        (SlackFit, "buckets", 0),
        (ModelSwitching, "period_s", 0.0),
        (ModelSwitching, "utilisation", 1.5),
        (ModelSwitching, "calm_periods", 0),
    ],
)
def test_settings_are_checked(kind: type[SelectionPolicy], setting: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=setting):
        kind(**{setting: value})


# -- late binding -----------------------------------------------------------------------------


def make_resident(number: int, accuracy: float, first_s: float, further_s: float) -> ResidentView:
    batch_s = (0.0, *(first_s + further_s * b for b in range(8)))
    return ResidentView(variant(number), accuracy, batch_s, batch_s)


def make_worker(*residents: ResidentView) -> WorkerView:
    return WorkerView("worker-0", "cpu-1", {r.variant_id: r for r in residents}, 8)


def make_queue(*queries: QueryView, key: object = None) -> QueueView:
    ordered = sorted(queries, key=lambda q: (-q.priority, q.deadline_s, q.query_id))
    return QueueView(queries[0].scope, None, key, tuple(ordered))  # type: ignore[arg-type]


def idle(policy: SelectionPolicy, worker: WorkerView, *queues: QueueView) -> Run | Wait:
    return policy.on_idle(worker, queues, NOW_S, np.random.default_rng(0))


def ids(queries: Sequence[QueryView]) -> list[int]:
    return [query.query_id for query in queries]


QUICK = make_resident(0, 60.0, 0.010, 0.005)  # eight take 45 ms
SLOW = make_resident(2, 80.0, 0.040, 0.020)  # eight take 180 ms
BOTH = make_worker(QUICK, SLOW)


@pytest.mark.parametrize("policy", [Clockwork(), LeastLaxity(), SlackFit()])
def test_late_binding_defers(policy: SelectionPolicy) -> None:
    assert ask(policy, make_query(), LADDER) == Defer(Reason.LATE_BINDING)


def test_clockwork_runs_the_largest_batch_whose_latest_start_has_not_passed() -> None:
    queue = make_queue(*(make_query(number, 0.031 + 0.001 * number) for number in range(8)))
    decision = idle(Clockwork(), BOTH, queue)
    assert isinstance(decision, Run)
    assert (decision.variant_id, decision.reason) == (variant(0), Reason.LATE_BINDING)
    assert ids(decision.queries) == [0, 1, 2, 3, 4]  # five take 30 ms, six 35


def test_clockwork_starts_what_must_start_first() -> None:
    first = make_queue(make_query(0, 0.050), key="a")
    second = make_queue(make_query(1, 0.060, accuracy=75.0), key="b")  # takes 40 ms, not 10
    decision = idle(Clockwork(), BOTH, first, second)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [1]
    urgent = make_queue(make_query(0, 0.050, priority=1), key="a")
    decision = idle(Clockwork(), BOTH, urgent, second)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0]


def test_clockwork_drops_at_once_what_cannot_start_in_time_anywhere() -> None:
    policy = Clockwork()
    ask(policy, make_query(), LADDER)  # the quickest anywhere takes 10 ms
    lost, fine = make_query(0, 0.009), make_query(1, 0.020)
    decision = idle(policy, BOTH, make_queue(lost, fine))
    assert isinstance(decision, Run)
    assert (ids(decision.queries), ids(decision.dropped)) == ([1], [0])
    decision = idle(policy, BOTH, make_queue(lost))
    assert isinstance(decision, Wait)
    assert ids(decision.dropped) == [0]


@pytest.mark.parametrize("policy", [Clockwork(), LeastLaxity(), SlackFit()])
def test_what_another_worker_could_serve_in_time_is_left_to_it(policy: SelectionPolicy) -> None:
    ask(policy, make_query(), LADDER)
    decision = idle(policy, make_worker(SLOW), make_queue(make_query(0, 0.020)))
    assert isinstance(decision, Wait)
    assert decision.dropped == ()
    assert NOW_S < decision.until_s < math.inf


def test_clockwork_does_not_change_the_variant_because_of_load() -> None:
    policy = Clockwork("most-accurate")
    fresh = idle(policy, BOTH, make_queue(make_query(0, 0.050)))
    assert isinstance(fresh, Run)
    assert fresh.variant_id == variant(2)
    waited = idle(policy, BOTH, make_queue(make_query(0, 0.030, waited_s=0.020)))
    assert isinstance(waited, Wait)


@pytest.mark.parametrize("policy", [Clockwork(), LeastLaxity(), SlackFit()])
def test_nobody_gets_less_accuracy_than_asked_for(policy: SelectionPolicy) -> None:
    wants_more = make_query(1, 0.2, accuracy=75.0)
    queue = make_queue(make_query(0, 0.036), wants_more, make_query(2, 0.3))
    decision = idle(policy, BOTH, queue)
    assert isinstance(decision, Run)
    assert (decision.variant_id, ids(decision.queries)) == (variant(0), [0, 2])
    decision = idle(policy, BOTH, make_queue(wants_more))
    assert isinstance(decision, Run)
    assert decision.variant_id == variant(2)


@pytest.mark.parametrize("policy", [Clockwork(), LeastLaxity(), SlackFit()])
def test_residents_of_other_tasks_and_bound_queues_are_left_alone(policy: SelectionPolicy) -> None:
    other = make_queue(make_query(0, 1.0, scope="u"))
    assert isinstance(idle(policy, BOTH, other), Wait)
    assert isinstance(idle(policy, BOTH, other._replace(scope="t", variant_id=variant(0))), Wait)
    assert isinstance(idle(policy, make_worker(make_resident(0, 60, math.nan, 0)), other), Wait)


def test_slack_fit_spends_the_slack_on_accuracy_when_few_wait() -> None:
    decision = idle(SlackFit(), BOTH, make_queue(make_query(0, 0.1)))
    assert isinstance(decision, Run)
    assert (decision.variant_id, decision.reason) == (variant(2), Reason.BEST_FIT)
    decision = idle(SlackFit(), BOTH, make_queue(make_query(0, 0.039)))
    assert isinstance(decision, Run)
    assert decision.variant_id == variant(0)


def test_slack_fit_takes_the_bucket_closest_below_the_slack() -> None:
    queue = make_queue(*(make_query(number, 0.105) for number in range(8)))
    decision = idle(SlackFit(buckets=17), BOTH, queue)  # of 10 ms each
    assert isinstance(decision, Run)
    assert (decision.variant_id, len(decision.queries)) == (variant(2), 4)  # 100 ms


def test_slack_fit_prefers_in_a_bucket_the_larger_batch_then_accuracy() -> None:
    queue = make_queue(*(make_query(number, 0.105) for number in range(8)))
    decision = idle(SlackFit(buckets=1), BOTH, queue)
    assert isinstance(decision, Run)
    assert (decision.variant_id, len(decision.queries)) == (variant(0), 8)
    decision = idle(SlackFit(buckets=1), BOTH, make_queue(*queue.queries[:4]))
    assert isinstance(decision, Run)
    assert (decision.variant_id, len(decision.queries)) == (variant(2), 4)


def test_slack_fit_obeys_the_most_urgent_of_all_queues() -> None:
    relaxed = make_queue(make_query(0, 5.0), key="a")
    urgent = make_queue(make_query(1, 0.02), key="b")
    decision = idle(SlackFit(), BOTH, relaxed, urgent)
    assert isinstance(decision, Run)
    assert (decision.variant_id, ids(decision.queries)) == (variant(0), [1])


def test_least_laxity_counts_the_time_that_the_quickest_variant_takes() -> None:
    early = make_queue(make_query(0, 0.050), key="a")  # 40 ms to spare
    late = make_queue(make_query(1, 0.060, accuracy=75.0), key="b")  # 20 ms
    decision = idle(LeastLaxity(), BOTH, early, late)
    assert isinstance(decision, Run)
    assert (ids(decision.queries), decision.reason) == ([1], Reason.BEST_FIT)
    urgent = make_queue(make_query(0, 0.050, priority=1), key="a")
    decision = idle(LeastLaxity(), BOTH, urgent, late)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0]


@pytest.mark.parametrize(
    ("waiting", "workers", "chosen", "batch"),
    [
        (4, 1, 2, 4),  # one round of four takes 100 ms
        (8, 1, 0, 8),  # two rounds would take 200 ms
        (8, 2, 2, 4),  # one round on two workers
        (9, 2, 0, 8),
    ],
)
def test_least_laxity_is_as_accurate_as_the_backlog_allows(
    waiting: int, workers: int, chosen: int, batch: int
) -> None:
    queue = make_queue(*(make_query(number, 0.105) for number in range(waiting)))
    worker = BOTH._replace(worker_counts={"cpu-1": workers, "gpu-1": 9})
    decision = idle(LeastLaxity(), worker, queue)
    assert isinstance(decision, Run)
    assert (decision.variant_id, len(decision.queries)) == (variant(chosen), batch)


def test_least_laxity_takes_the_highest_throughput_if_nothing_drains_the_backlog() -> None:
    steep = make_resident(1, 70.0, 0.020, 0.001)  # one takes longer than with QUICK, eight 27 ms
    queue = make_queue(*(make_query(number, 0.05) for number in range(100)))
    decision = idle(LeastLaxity(), make_worker(QUICK, steep, SLOW), queue)
    assert isinstance(decision, Run)
    assert (decision.variant_id, len(decision.queries)) == (variant(1), 8)


# -- switching by load ------------------------------------------------------------------------


class Switch:
    """A model-switching policy on a clock, with workers that all hold the whole ladder.

    Alone, a worker answers 100, 50 or 25 queries a second with the variants 0, 1 and 2.
    """

    def __init__(self, policy: ModelSwitching, workers: int = 1) -> None:
        self.policy, self.now_s, self.workers = policy, NOW_S, workers

    def seconds(self, count: int, rate_per_s: int, *accuracies: float) -> str:
        """The variant of the last query of each second; they want the accuracies in turn."""
        wanted = accuracies or (0.0,)
        rng, used = np.random.default_rng(0), ""
        for _ in range(count):
            for number in range(self.workers):
                residents = (make_resident(n, 0.0, 0.01, 0.0) for n in range(3))
                worker = make_worker(*residents)._replace(worker_id=f"worker-{number}")
                self.policy.on_idle(worker, [], self.now_s, rng)
            for number in range(rate_per_s):
                accuracy = wanted[number % len(wanted)]
                self.now_s += 1.0 / rate_per_s
                candidates = replace(LADDER, now_s=self.now_s, free_at_s=np.full(3, self.now_s))
                query = make_query(accuracy=accuracy, left_s=1.0, now_s=self.now_s)
                choice = self.policy.on_arrival(query, candidates, rng)
                assert isinstance(choice, Bind)
                assert choice.reason is Reason.BEST_FIT
            used += str(choice.row)
        return used


def switch(workers: int = 1, calm_periods: int = 3) -> Switch:
    policy = ModelSwitching(period_s=0.9, utilisation=0.8, calm_periods=calm_periods)
    return Switch(policy, workers)


@pytest.mark.parametrize(
    ("rate_per_s", "row"), [(10, "2"), (19, "2"), (22, "1"), (39, "1"), (45, "0"), (500, "0")]
)
def test_the_most_accurate_whose_capacity_covers_the_load(rate_per_s: int, row: str) -> None:
    assert switch().seconds(2, rate_per_s)[-1] == row


def test_more_workers_cover_more() -> None:
    assert switch(workers=4).seconds(2, 70)[-1] == "2"
    assert switch(workers=2).seconds(2, 70)[-1] == "1"


def test_down_at_once_and_up_only_after_calm_periods() -> None:
    running = switch()
    assert running.seconds(3, 10)[-1] == "2"
    assert running.seconds(2, 60) == "00"
    assert running.seconds(5, 10) == "00222"


def test_a_minimum_above_the_level_gets_the_fastest_that_has_it() -> None:
    running = switch()
    assert running.seconds(2, 60)[-1] == "0"
    assert running.seconds(1, 1, 65.0) == "1"


def test_what_must_be_accurate_takes_its_share_of_the_capacity_first() -> None:
    # 16 a second that need 40 ms each take 0.64 of the worker; 10 more on the middle variant 0.2.
    assert switch().seconds(3, 26, *[75.0] * 8, *[0.0] * 5)[-1] == "0"
    assert switch().seconds(3, 26)[-1] == "1"


def test_scopes_share_the_capacity() -> None:
    running = switch()
    assert running.seconds(2, 19)[-1] == "2"  # 0.76 of the worker
    rng = np.random.default_rng(0)
    for _ in range(21):
        running.now_s += 0.05
        candidates = replace(LADDER, now_s=running.now_s)
        query = make_query(scope="t/m", now_s=running.now_s)
        last = running.policy.on_arrival(query, candidates, rng)
    assert last == Bind(0, Reason.BEST_FIT)


def test_workers_are_forgotten_that_ask_for_nothing_any_more() -> None:
    running = switch(workers=4)
    assert running.seconds(2, 70)[-1] == "2"
    running.workers = 1
    running.now_s += 60.0
    assert running.seconds(3, 70)[-1] == "0"
