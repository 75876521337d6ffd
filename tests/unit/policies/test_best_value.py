"""Best value: what it chooses where the right choice can be worked out by hand."""

from __future__ import annotations

import math
import pickle
from bisect import bisect_right
from types import MappingProxyType

import numpy as np
import pytest
from scipy.optimize import linprog

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.batches import Batch, Member, Terms, best_batch
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.best_value.menu import Menu, Suited, make_menu
from modelless.policies.selection.best_value.pools import Pools, ToCome
from modelless.policies.selection.best_value.price import (
    Claim,
    Kind,
    Offer,
    Rates,
    kind_of,
    offer_of,
    price_of_time,
)
from modelless.policies.views import (
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
RNG = np.random.default_rng(0)
QUICK, MID, SLOW = "t/m/quick@1", "t/m/mid@1", "t/m/slow@1"
LADDER = {QUICK: (0.005, 60.0), MID: (0.020, 72.0), SLOW: (0.050, 80.0)}
"""p50 of a batch of one and accuracy; a batch of b takes half as long as b batches, and a half."""


def resident(variant_id: str, one_s: float, accuracy: float, most: int = 8) -> ResidentView:
    p50_s = (0.0, *(one_s * (0.5 + 0.5 * b) for b in range(1, most + 1)))
    return ResidentView(variant_id, accuracy, p50_s, tuple(1.1 * s for s in p50_s))


def worker(name: str = "w0", *views: ResidentView, device_class: str = "cpu-1") -> WorkerView:
    """A worker with these variants, by default those of the ladder, and batches of up to 8."""
    views = views or tuple(resident(each, *facts) for each, facts in LADDER.items())
    return WorkerView(name, device_class, {view.variant_id: view for view in views}, 8)


def due(query_id: int, in_s: float, **limits: object) -> QueryView:
    """A query that arrives now."""
    return QueryView(query_id, "t", NOW_S, NOW_S + in_s, **limits)  # type: ignore[arg-type]


def many(count: int, in_s: float, **limits: object) -> list[QueryView]:
    return [due(number, in_s, **limits) for number in range(count)]


def arrive(policy: BestValue, query: QueryView, *others: str) -> Choice:
    """Have a query come in, at the time that it bears; points cost a microdollar for ten.

    Args:
        others: device classes besides ``cpu-1`` that may serve it.
    """
    placements = tuple(Placement(name, each) for each in ("cpu-1", *others) for name in LADDER)
    facts = [LADDER[placement.variant_id] for placement in placements]
    latency_s, accuracy = np.array(facts).T
    one = np.ones(len(facts))
    estimates = Estimates(latency_s, latency_s * 1.05, latency_s * 1.1, one, one)
    at_s = query.arrival_s
    rows = Candidates(placements, accuracy, accuracy * 1e-7, estimates, at_s * one, at_s)
    return policy.on_arrival(query, rows, RNG)


def ask(
    policy: BestValue, *asked: QueryView, at: WorkerView | None = None, now_s: float = NOW_S
) -> Run | Wait:
    """Ask about one queue with these queries."""
    return policy.on_idle(at or worker(), [QueueView("t", None, None, asked)], now_s, RNG)


def serve(*asked: QueryView, at: WorkerView | None = None) -> Run:
    """Returns what a new policy runs once all of these have arrived."""
    policy = BestValue()
    for query in asked:
        assert isinstance(arrive(policy, query), Defer)
    run = ask(policy, *asked, at=at)
    assert isinstance(run, Run)
    return run


def ids(queries: tuple[QueryView, ...]) -> list[int]:
    return [query.query_id for query in queries]


# -- what is served ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_s", "variant_id"),
    [(math.inf, SLOW), (1.0, SLOW), (0.054, SLOW), (0.053, MID), (0.021, QUICK), (0.006, QUICK)],
)
def test_a_lone_query_gets_the_most_accurate_variant_that_is_surely_in_time(
    in_s: float, variant_id: str
) -> None:
    """The p95 of the slow one is 53.5 ms, and that of the next 21.4 ms."""
    run = serve(due(1, in_s))
    assert (run.variant_id, ids(run.queries)) == (variant_id, [1])
    assert run.reason is Reason.BEST_VALUE


def test_a_few_with_time_to_spare_run_as_one_accurate_batch() -> None:
    """Any number of them gains 0 with the most accurate variant; the largest batch runs."""
    run = serve(*many(4, 5.0))
    assert (run.variant_id, ids(run.queries)) == (SLOW, [0, 1, 2, 3])


def test_the_queue_behind_makes_it_quick() -> None:
    """Eighty are due in 250 ms: 8 at a time take 22.5 ms on the quickest, 90 ms on the next."""
    run = serve(*many(80, 0.25))
    assert (run.variant_id, len(run.queries)) == (QUICK, 8)


def test_what_waits_makes_it_quick_long_after_the_last_arrival() -> None:
    """800 queries have 5 s left, for which the slow one would need 22."""
    policy, waiting = BestValue(), many(800, 25.0)
    for query in waiting:
        arrive(policy, query)
    run = ask(policy, *waiting, now_s=NOW_S + 20.0)
    assert isinstance(run, Run)
    assert run.variant_id != SLOW


def test_demand_that_is_still_to_come_makes_it_quick() -> None:
    """At 150 a second the quickest can serve all, at 2.8 ms each; the slow one takes 28 ms."""
    chosen = []
    for rate in (5, 150):
        policy = BestValue()
        for number in range(2 * rate):
            at_s = NOW_S - 2.0 + number / rate
            arrive(policy, QueryView(number, "t", at_s, at_s + 1.0))
        run = ask(policy, *many(8, 1.0))
        assert isinstance(run, Run)
        chosen.append(run.variant_id)
    assert chosen[0] == SLOW
    assert chosen[1] in (QUICK, MID)


@pytest.mark.parametrize("level", [61.0, 72.0, 79.9])
@pytest.mark.parametrize("count", [1, 20, 200])
def test_it_never_goes_below_a_minimum(level: float, count: int) -> None:
    run = serve(*many(count, 0.3, min_accuracy_percent=level))
    assert LADDER[run.variant_id][1] >= level


def after_a_batch() -> BestValue:
    """A policy whose only worker has just run a batch of 50 ms."""
    policy = BestValue()
    assert isinstance(ask(policy, due(0, 1.0), now_s=NOW_S - 0.05), Run)
    return policy


def test_queries_of_other_minimums_share_a_batch_that_suits_all() -> None:
    """The second one needs the slow variant, and in 50 ms it would be too late for that."""
    run = ask(after_a_batch(), due(1, 0.09), due(2, 0.09, min_accuracy_percent=75.0))
    assert isinstance(run, Run)
    assert (run.variant_id, ids(run.queries)) == (SLOW, [1, 2])


def test_beyond_capacity_batches_are_full_though_others_stand_between() -> None:
    """Every second one needs the slow variant; the others fill batches of the quickest."""
    levels = (0.0, 75.0)
    run = serve(*[due(n, 0.25, min_accuracy_percent=levels[n % 2]) for n in range(200)])
    assert run.variant_id == QUICK
    assert ids(run.queries) == list(range(0, 16, 2))


@pytest.mark.parametrize(("first", "others", "fit"), [(3, 3, 2), (4, 3, 2), (2, 2, 4), (5, 5, 1)])
def test_a_batch_holds_as_many_items_as_fit(first: int, others: int, fit: int) -> None:
    asked = due(0, 0.25, items=first), *many(200, 0.25, items=others)[1:]
    assert ids(serve(*asked).queries) == list(range(fit))


def test_a_query_of_more_items_than_fit_waits() -> None:
    assert isinstance(ask(BestValue(), due(1, 1.0, items=9)), Wait)


def test_the_hopeless_are_dropped_and_the_others_served() -> None:
    policy = BestValue()
    arrive(policy, due(9, 1.0))  # so it knows that the quickest takes 5 ms
    run = ask(policy, due(0, 0.001), due(1, 0.0049), due(2, 1.0))
    assert isinstance(run, Run)
    assert (ids(run.dropped), ids(run.queries)) == ([0, 1], [2])
    alone = ask(policy, due(0, 0.001))
    assert isinstance(alone, Wait)
    assert ids(alone.dropped) == [0]


def test_a_query_that_is_perhaps_in_time_runs_alone_if_no_other_is_surely_in_time() -> None:
    """The p50 of the quickest is 5 ms, its p95 5.35 ms."""
    run = serve(due(1, 0.0052), due(2, 0.0053))
    assert (run.variant_id, ids(run.queries), run.dropped) == (QUICK, [1], ())
    assert ids(serve(due(1, 0.0052), due(2, 0.1)).queries) == [2]


def test_a_query_is_left_for_an_idle_worker_of_another_class_that_is_surely_in_time() -> None:
    quick = worker("q", resident(QUICK, 0.001, 60.0), device_class="gpu-0")
    policy, query = BestValue(), due(1, 0.0052)
    arrive(policy, query)
    assert isinstance(ask(policy, due(0, 0.0001), at=quick), Wait), "it stays idle"
    assert ask(policy, query) == Wait(Reason.NOTHING_QUEUED, NOW_S + 0.1)
    thrifty = due(2, 0.0052, max_cost_usd=1.0)
    arrive(policy, thrifty)
    assert isinstance(ask(policy, thrifty), Run), "its cost on that class is not known"
    arrive(policy, thrifty, "gpu-0")
    assert isinstance(ask(policy, thrifty), Wait), "it can pay for that class"
    assert isinstance(ask(policy, due(3, 0.1), at=quick), Run), "it is busy now"
    assert isinstance(ask(policy, query), Run)


def test_a_long_queue_in_a_hurry_does_not_split_into_small_batches() -> None:
    """Two of them could run at once in 7.5 ms; a full batch takes 22.5 ms, which others have."""
    run = serve(*[due(n, 0.012) for n in range(2)], *[due(n, 0.1) for n in range(2, 80)])
    assert (run.variant_id, len(run.queries)) == (QUICK, 8)
    assert min(ids(run.queries)) == 2
    assert ids(serve(due(0, 0.012), due(1, 0.012), due(2, 0.1)).queries)[0] == 0


def test_nor_does_one_that_only_a_slow_variant_may_serve() -> None:
    """One of them could run at once in 54 ms; a full batch takes 236 ms, which others have."""
    hurried = [due(n, 0.06, min_accuracy_percent=75.0) for n in range(2)]
    patient = [due(n, 0.5, min_accuracy_percent=75.0) for n in range(2, 40)]
    run = serve(*hurried, *patient)
    assert (run.variant_id, ids(run.queries)) == (SLOW, [*range(2, 10)])


# -- ranks and queues -------------------------------------------------------------------------


def test_the_highest_priority_goes_first_whatever_its_deadline() -> None:
    run = serve(due(50, 5.0, priority=3), *many(3, 0.06))
    assert ids(run.queries)[0] == 50


def test_lower_ranks_fill_a_batch_while_all_are_in_time() -> None:
    """With 2 the slow variant takes 80 ms at p95, with 3 it takes 107 ms, with 4 134 ms."""
    for asked, expected in (
        ([due(50, 0.12, priority=3), *many(7, 5.0)], [50, 0, 1]),
        ([due(50, 5.0, priority=3), *many(7, 0.12)], [50, 0, 1]),
        ([due(50, 5.0), *many(9, 5.0, demoted=True)], [50, *range(7)]),
    ):
        run = ask(BestValue(), *asked)
        assert isinstance(run, Run)
        assert (run.variant_id, ids(run.queries)) == (SLOW, expected)


@pytest.mark.parametrize(
    ("began_s", "items", "expected"),
    [(-0.05, 8, QUICK), (-0.0495, 1, SLOW), (0.0, 0, SLOW)],
)
def test_the_last_idle_worker_runs_what_is_short_if_a_higher_priority_cannot_wait(
    began_s: float, items: int, expected: str
) -> None:
    """They come every 50 ms, take 5 and have 10; another is idle in 175 ms, in 4 ms, or now."""
    policy = BestValue()
    for number in range(40):
        at_s = NOW_S - 2.0 + number * 0.05
        arrive(policy, QueryView(number, "t", at_s, at_s + 0.01, priority=3))
    running = QueueView("t", None, None, [due(90, 9.0, items=items, priority=9)])
    peer_runs = policy.on_idle(worker("w1"), [running][:items], NOW_S + began_s, RNG)
    assert (peer_runs.variant_id if isinstance(peer_runs, Run) else "") == (SLOW if items else "")
    low = due(91, 0.5)
    arrive(policy, low)
    run = ask(policy, low)
    assert isinstance(run, Run)
    assert run.variant_id == expected


def test_the_last_idle_worker_runs_what_is_short_if_its_own_priority_cannot_wait() -> None:
    """Hasty queries can wait for 15 ms. The slow variant takes 50, the quick one 5."""
    for every_s, expected in ((5.0, SLOW), (0.02, QUICK)):
        policy = BestValue(target_utilisation=2.0)
        for number in range(int(10.0 / every_s)):
            at_s = NOW_S - 10.0 + number * every_s
            arrive(policy, QueryView(number, "t", at_s, at_s + 0.02))
        patient = due(91, 0.5)
        arrive(policy, patient)
        run = ask(policy, patient)
        assert isinstance(run, Run)
        assert run.variant_id == expected, every_s


def test_the_queue_with_the_most_urgent_head_is_served() -> None:
    policy = BestValue()
    urgent, patient = due(1, 0.3), due(2, 0.6)
    for queues in ((urgent, patient), (patient, urgent)):
        views = [QueueView("t", None, query.query_id, (query,)) for query in queues]
        run = policy.on_idle(worker(), views, NOW_S, RNG)
        assert isinstance(run, Run)
        assert run.queries == (urgent,)


def test_of_several_queues_the_one_that_gains_most_is_served() -> None:
    """In 50 ms the first could still have the middle variant, and the second none any more."""
    first, second = due(1, 0.09), due(2, 0.10, min_accuracy_percent=75.0)
    views = [QueueView("t", None, query.query_id, (query,)) for query in (first, second)]
    run = after_a_batch().on_idle(worker(), views, NOW_S, RNG)
    assert isinstance(run, Run)
    assert run.queries == (second,)


def test_of_several_queues_the_one_of_the_highest_priority_is_served_whatever_it_gains() -> None:
    high, low = due(1, 5.0, priority=3), due(2, 0.06)
    more = [low._replace(query_id=number) for number in range(3, 9)]
    views = [
        QueueView("t", None, number, tuple(each)) for number, each in enumerate([[high], more])
    ]
    run = BestValue().on_idle(worker(), views, NOW_S, RNG)
    assert isinstance(run, Run)
    assert ids(run.queries) == [1]


def test_what_this_worker_cannot_serve_does_not_block_what_it_can() -> None:
    weak = worker("w0", resident("t/m/v@1", 0.01, 70.0))
    beyond = many(70, 0.3, min_accuracy_percent=80.0)
    assert ids(serve(*beyond, due(99, 0.5), at=weak).queries) == [99]
    other = QueueView("t", None, "other shapes", tuple(beyond))
    run = BestValue().on_idle(
        weak, [other, QueueView("t", None, None, (due(99, 0.5),))], NOW_S, RNG
    )
    assert isinstance(run, Run)
    assert ids(run.queries) == [99]


# -- limits on arrival, and cost --------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_s", "limits", "reason"),
    [
        (1.0, {"min_accuracy_percent": 81.0}, Reason.TOO_INACCURATE),
        (0.004, {}, Reason.TOO_SLOW),
        (1.0, {"max_cost_usd": 5e-6}, Reason.TOO_DEAR),
        (0.03, {"min_accuracy_percent": 75.0}, Reason.LIMITS_CONFLICT),
        (1.0, {"min_accuracy_percent": 70.0, "max_cost_usd": 6.5e-6}, Reason.LIMITS_CONFLICT),
    ],
)
def test_what_nothing_could_serve_is_rejected_on_arrival_and_is_no_demand(
    in_s: float, limits: dict[str, float], reason: Reason
) -> None:
    policy = BestValue()
    for number in range(1000):
        assert arrive(policy, due(number, in_s, **limits)) == Reject(reason)
    run = ask(policy, due(1, 0.5))
    assert isinstance(run, Run)
    assert run.variant_id == SLOW  # time costs nothing


@pytest.mark.parametrize(
    ("most_usd", "variant_id"), [(6.5e-6, QUICK), (7.5e-6, MID), (8.5e-6, SLOW)]
)
def test_a_cost_limit_is_kept_with_the_variants_that_it_can_pay(
    most_usd: float, variant_id: str
) -> None:
    run = serve(due(1, 1.0, max_cost_usd=most_usd))
    assert (run.variant_id, ids(run.queries)) == (variant_id, [1])


def test_a_cost_limit_is_kept_on_the_device_class_that_it_was_found_for() -> None:
    policy = BestValue()
    query = due(1, 1.0, max_cost_usd=8.5e-6)
    arrive(policy, query)
    unpriced = worker("g0", device_class="gpu-1")
    assert isinstance(ask(policy, query, at=unpriced), Wait)
    assert isinstance(ask(policy, query), Run)


def test_the_thrifty_fill_no_batch_that_they_cannot_pay() -> None:
    rich, thrifty = due(1, 1.0, priority=3), due(2, 1.0, max_cost_usd=6.5e-6)
    assert ids(serve(rich, thrifty).queries) == [1]
    assert ids(serve(rich, thrifty._replace(max_cost_usd=8.5e-6)).queries) == [1, 2]


# -- menus ------------------------------------------------------------------------------------


def test_a_menu_is_sorted_and_leaves_out_what_is_unknown() -> None:
    unknown = ResidentView("t/m/x@1", 99.0, (0.0, math.inf), (0.0, math.nan))
    unheard = ResidentView("t/m/y@1", 98.0, (0.0, math.nan), (0.0, math.nan))
    known = resident("t/m/a@1", 0.01, 70.0), resident("t/m/b@1", 0.02, 80.0)
    made = make_menu([unknown, *known, unheard], 4)
    assert made.variant_ids == ("t/m/b@1", "t/m/a@1")
    assert made.accuracy_percent.tolist() == [80.0, 70.0]
    assert made.typical_s.shape == (2, 4)
    assert make_menu([unknown], 4).variant_ids == ()


def test_a_menu_leaves_out_what_another_variant_betters_in_every_batch() -> None:
    best, quick = resident("t/m/a@1", 0.01, 70.0), resident("t/m/c@1", 0.005, 60.0)
    worse = resident("t/m/b@1", 0.02, 70.0), resident("t/m/d@1", 0.011, 65.0)
    assert make_menu([best, *worse, quick], 4).variant_ids == ("t/m/a@1", "t/m/c@1")
    # This one is slower alone and quicker in batches.
    flat = ResidentView("t/m/e@1", 65.0, (0.0, 0.012, 0.012), (0.0, 0.012, 0.012))
    assert make_menu([best, flat], 2).variant_ids == ("t/m/a@1", "t/m/e@1")


def test_what_is_sure_lies_between_the_median_and_p99_on_the_scale_of_logarithms() -> None:
    view = ResidentView("t/m/v@1", 70.0, (0.0, 0.010, 0.020), (0.0, 0.013, math.nan))
    made = make_menu([view], 2)
    from_p50_to_p99 = math.log(made.sure_s[0, 0] / 0.010) / math.log(1.3)
    assert from_p50_to_p99 == pytest.approx(1.645 / 2.326)
    assert made.sure_s[0, 1] == 0.020  # no p99 is known


def test_a_batch_occupies_a_worker_that_is_asked_early_for_less_than_its_latency() -> None:
    views = [resident("t/m/a@1", 0.040, 80.0)]  # 40, 60, 80 and 100 ms
    early = make_menu(views, 4, lead_s=0.030)
    assert early.typical_s[0] == pytest.approx([0.040, 0.060, 0.080, 0.100])
    assert early.busy_s[0] == pytest.approx([0.020, 0.030, 0.050, 0.070])  # two at a time at most
    assert make_menu(views, 4).busy_s[0] == pytest.approx([0.040, 0.060, 0.080, 0.100])


# -- batches ----------------------------------------------------------------------------------


def ladder() -> Menu:
    return make_menu(worker().residents.values(), 8)


NOBODY = ToCome(np.empty(0), np.empty(0), math.inf)


def any_variant(items: int = 1) -> Suited:
    """Queries that every variant of the ladder may serve."""
    return Suited(ladder(), [True] * 3, items, 0.0)


def worth_later(price: float, slack_s: np.ndarray) -> list[float]:
    edges_s, points = any_variant().later(price, 100.0)
    return [points[bisect_right(edges_s, each)] for each in slack_s]


def best_of(count: int, in_s: float, later: float, terms: Terms) -> tuple[str, Batch]:
    """The best batch of equal queries on the ladder, with the variant's name."""
    line = [Member(query, any_variant(), in_s, later) for query in many(count, in_s)]
    batch = best_batch(ladder(), line, terms)
    assert batch is not None
    return ladder().variant_ids[batch.row], batch


@pytest.mark.parametrize(("wanted", "chosen"), [(0.0, [SLOW, SLOW]), (1.0, [SLOW, MID])])
def test_a_batch_is_charged_all_of_its_time_if_others_want_it(
    wanted: float, chosen: list[str]
) -> None:
    """The slow one brings 16 points more for 45 ms more: 356 points a second.

    A pair's shares of full batches are 34 ms longer there: 474 points a second.
    """
    found = []
    for price in (350.0, 360.0):
        name, batch = best_of(2, 0.1, 0.0, Terms(price, wanted, 100.0, NOBODY, 0.0))
        assert len(batch.queries) == 2
        found.append(name)
    assert found == chosen


@pytest.mark.parametrize("price", [0.0, 10.0])
def test_the_largest_of_batches_worth_alike_runs(price: float) -> None:
    """Of four with time to spare; a batch of n on the slow one takes 25 n + 25 ms."""
    (later,) = worth_later(price, np.array([5.0]))
    name, batch = best_of(4, 5.0, later, Terms(price, 1.0, 100.0, NOBODY, 0.0))
    assert (name, len(batch.queries)) == (SLOW, 4)


def test_if_nothing_is_worth_the_price_the_batch_that_loses_least_runs() -> None:
    """Alone on the quickest, a query takes 5 ms: 500 points for 160."""
    name, batch = best_of(9, 0.1, 0.0, Terms(1e5, 1.0, 100.0, NOBODY, 0.0))
    assert (name, len(batch.queries)) == (QUICK, 1)
    assert batch.gain == pytest.approx(160.0 - 1e5 * 0.005)


def test_what_is_left_is_worth_more_with_slack_and_less_at_a_price() -> None:
    slack_s = np.array([0.001, 0.006, 0.03, 0.06, 1.0, math.inf])
    free, dear = worth_later(0.0, slack_s), worth_later(1e3, slack_s)
    assert free == [0.0, 160.0, 172.0, 180.0, 180.0, 180.0]
    assert dear == sorted(dear)
    assert (np.array(dear) < free).tolist() == [False, *[True] * 5]
    # 8 on the quickest take 2.8 ms each, and on the next 11.25 ms.
    assert dear[-1] == pytest.approx(172.0 - 11.25)
    assert worth_later(1e6, slack_s) == [0.0] * 6


def test_a_higher_priority_is_lost_from_its_patience_on() -> None:
    to_come = ToCome(np.array([10.0, 100.0]), np.array([0.5, 2.0]), 0.5)
    assert to_come.lost(np.array([0.4, 1.5, 3.0])).tolist() == [0.0, 10.0, 125.0]


# -- the price --------------------------------------------------------------------------------


def offer(accuracy: list[float], each_s: list[float], miss_points: float) -> Offer:
    """What a menu of these variants, without batches, offers queries that have all the time."""
    views = [
        ResidentView(f"t/m/{number}@1", percent, (0.0, one_s), (0.0, one_s))
        for number, (percent, one_s) in enumerate(zip(accuracy, each_s, strict=True))
    ]
    return offer_of(Kind("t", 0.0, math.inf, 1, 0), make_menu(views, 1), 0.5, miss_points)


def claim(per_s: float, offer: Offer) -> Claim:
    return Claim(per_s, per_s, offer)


@pytest.mark.parametrize("seed", range(12))
def test_the_price_is_the_dual_of_the_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    miss_points = float(rng.choice([0.0, 100.0]))
    points, used_s, kinds, claims = [], [], [], []
    for place in range(6):
        variants = int(rng.integers(1, 5))
        each_s = rng.uniform(0.01, 0.2, variants).tolist()
        accuracy = rng.uniform(50.0, 95.0, variants).tolist()
        claims.append(claim(rng.uniform(1, 20), offer(accuracy, each_s, miss_points)))
        points += [each + miss_points for each in accuracy]
        used_s += each_s
        kinds += [place] * variants
    of_kind = np.equal.outer(np.arange(6), kinds).astype(float)
    rates = [each.due_per_s for each in claims]
    capacity = float(rng.uniform(0.3, 4.0))
    solved = linprog(-np.array(points), A_ub=np.vstack([of_kind, used_s]), b_ub=[*rates, capacity])
    dual = -solved.ineqlin.marginals[-1]  # 0 with one seed
    assert price_of_time(claims, capacity) == pytest.approx(dual, rel=1e-6)


def test_the_price_is_zero_while_all_fit_and_rises_with_demand() -> None:
    """100 a second of the better variant fill a second, and 200 of the quicker one."""
    either = offer([80.0, 70.0], [0.010, 0.005], 0.0)
    prices = [price_of_time([claim(rate, either)], 1.0) for rate in (0.0, 99.0, 150.0, 300.0)]
    assert prices == pytest.approx([0.0, 0.0, 10.0 / 0.005, 70.0 / 0.005])
    nothing = offer([], [], 0.0)
    assert (nothing.least_s, nothing.points) == (math.inf, 0.0)
    assert price_of_time([claim(1e6, nothing)], 1.0) == price_of_time([], 1.0) == 0.0


def test_what_may_come_has_a_price_though_all_that_comes_on_average_fits() -> None:
    """Of 50 queries in a limit of 1 s, each of 10 ms, the deviation is sqrt(50): 71 ms of work."""
    views = [ResidentView("t/m/v@1", 80.0, (0.0, 0.010), (0.0, 0.010))]
    hasty = offer_of(Kind("t", 0.0, 1.0, 1, 0), make_menu(views, 1), 0.5, 0.0)
    assert hasty.variance_s == pytest.approx([0.010**2])
    waits = Claim(50.0, 0.0, hasty)
    assert price_of_time([waits], 0.59) == 0.0
    comes = [price_of_time([claim(50.0, hasty)], capacity) for capacity in (0.45, 0.59, 0.75)]
    assert 80.0 / 0.010 > comes[0] > comes[1] > comes[2] == 0.0
    assert comes[1] == pytest.approx(0.2333 * 80.0 / 0.010, rel=1e-3)  # of what comes, 23 % is more
    assert price_of_time([claim(50.0, hasty)], 0.75, dispersion=9.0) > 0.0


def test_the_dispersion_is_that_of_the_gaps_and_1_for_poisson_arrivals() -> None:
    rng = np.random.default_rng(3)
    found = {}
    for name, gaps_s in (
        ("regular", np.full(2000, 0.1)),
        ("poisson", rng.exponential(0.1, 2000)),
        ("bursts", rng.gamma(0.1, 1.0, 2000)),  # of a squared coefficient of variation of 10
        ("alike", np.zeros(2000)),
    ):
        rates = Rates(5.0)
        for at_s in np.cumsum(gaps_s).tolist():
            rates.count(Kind("t", 0.0, 1.0, 1, 0), at_s)
        found[name] = rates.dispersion
    assert found["regular"] == found["alike"] == 1.0
    assert 1.0 <= found["poisson"] < 1.6
    assert 4.0 < found["bursts"] <= 25.0


def test_an_offer_has_the_variants_and_batches_that_are_in_time() -> None:
    """Half of 100 ms is enough for 3 items on the middle one and for all on the quickest."""
    kind = Kind("t", 0.0, 0.1, 2, 0)
    found = offer_of(kind, ladder(), 0.5, 100.0)
    # One alone may take it all.
    quick_s, mid_s, slow_s = 2 * 0.0225 / 8, 2 * 0.040 / 3, 0.075
    steps_s = [quick_s, mid_s - quick_s, slow_s - mid_s]
    assert found.step_s == pytest.approx(steps_s)
    assert found.points_per_s * found.step_s == pytest.approx([160.0, 12.0, 8.0])
    assert found.points == 180.0
    assert found.least_s == pytest.approx(quick_s)
    assert found.patience_s == pytest.approx(0.1 - ladder().sure_s[2, 1])
    only = offer_of(kind._replace(min_accuracy_percent=75.0), ladder(), 0.5, 100.0)
    assert only.step_s == pytest.approx([0.075])
    # Alone, a query may take all of its limit, and what rounding may have taken of that.
    assert offer_of(kind._replace(limit_s=0.0075), ladder(), 0.5, 100.0).points == 160.0
    too_tight = offer_of(kind._replace(limit_s=0.0065), ladder(), 0.5, 100.0)
    assert (len(too_tight.step_s), too_tight.patience_s) == (0, -math.inf)


def test_queries_that_ask_for_about_the_same_are_of_one_kind() -> None:
    query = due(1, 1.0, min_accuracy_percent=75.0)
    assert kind_of(query) == kind_of(due(2, 1.1, min_accuracy_percent=74.0))
    later = query._replace(arrival_s=NOW_S + 0.1, deadline_s=NOW_S + 1.1)
    assert kind_of(query) == kind_of(later)
    others = (
        due(1, 1.5, min_accuracy_percent=75.0),
        due(1, 1.0, min_accuracy_percent=77.0),
        *(query._replace(**change) for change in ({"items": 2}, {"priority": 1}, {"scope": "u"})),
    )
    assert len({kind_of(each) for each in (query, *others)}) == 6
    assert 1.0 / 2**0.25 <= kind_of(query).limit_s <= 2**0.25
    assert kind_of(due(1, math.inf)).limit_s == math.inf


def test_rates_settle_at_the_rate_and_forget() -> None:
    rates, kind = Rates(2.0), kind_of(due(1, 1.0))
    for number in range(1, 1001):
        rates.count(kind, number * 0.01)
    assert rates.per_s(10.0)[kind] == pytest.approx(100.0, rel=0.03)
    assert rates.per_s(14.0)[kind] == pytest.approx(100.0 * math.exp(-2.0), rel=0.05)
    assert rates.per_s(16.1) == {}, "not one in three time constants"


def test_rates_of_ever_new_kinds_are_bounded() -> None:
    rates = Rates(100.0)
    for number in range(5000):
        rates.count(Kind(f"t/{number}", 0.0, 1.0, 1, 0), number * 0.001)
    assert 1 <= len(rates.per_s(5.0)) <= 256


# -- pools of workers -------------------------------------------------------------------------


def test_kinds_are_shared_out_by_speed() -> None:
    """Two workers of 5 ms and one of 10 ms for t; only the latter serves u."""
    pools = Pools(100.0)
    quick, slow = resident(QUICK, 0.005, 60.0), resident(SLOW, 0.010, 80.0)
    asked = [worker(name, quick) for name in ("w0", "w1")]
    asked.append(worker("g0", slow, resident("u/m/v@1", 0.01, 70.0), device_class="gpu-1"))
    found = [pools.on_idle(each, NOW_S) for each in asked]
    for pool, at in zip(found[1:], asked[1:], strict=True):
        for scope in ("t", "u"):
            pool.menu(at, scope, 0)
    kinds = [kind_of(due(1, 1.0)._replace(scope=scope)) for scope in ("t", "u", "x")]
    pools.share_out(dict.fromkeys(kinds[1:], 1.0), [QueueView("t", None, 1, [due(1, 1.0)])], NOW_S)
    assert [found[0].shares.get(kind, 0.0) for kind in kinds] == pytest.approx([0.8, 0.0, 0.0])
    assert [found[2].shares.get(kind, 0.0) for kind in kinds] == pytest.approx([0.2, 1.0, 0.0])


def test_scopes_of_one_task_leave_each_other_their_time() -> None:
    """With one worker and two tasks a batch may take a third of the limit, with one a half."""
    pools, kind = Pools(100.0), Kind("t", 0.0, 0.1, 1, 0)
    found = []
    for number, scope in enumerate(("t/m/mid", "u")):
        pool = pools.on_idle(worker(device_class=f"cpu-{number}"), NOW_S)
        for each in ("t", scope):
            pool.menu(worker(), each, 0)
        offered = pool.offer(kind)
        assert offered is not None
        found.append(offered)
    alone = offer_of(kind, ladder(), 0.5, 100.0)
    assert found[0].step_s.tolist() == alone.step_s.tolist()
    assert found[1].step_s.tolist() == offer_of(kind, ladder(), 1 / 3, 100.0).step_s.tolist()
    assert found[1].step_s.tolist() != alone.step_s.tolist()


def test_a_pool_knows_who_is_idle_next() -> None:
    pools = Pools(100.0)
    pool = pools.on_idle(worker("w0"), NOW_S)
    assert pool.next_idle_s("w0", NOW_S) == math.inf
    assert pools.on_idle(worker("w1"), NOW_S) is pool
    assert pool.next_idle_s("w0", NOW_S) == 0.0
    pool.until_s["w1"] = NOW_S + 0.03
    assert pool.next_idle_s("w0", NOW_S) == pytest.approx(0.03)
    assert pool.next_idle_s("w0", NOW_S + 0.04) == 0.0  # it should be back any moment
    assert pool.until_s == {"w0": NOW_S, "w1": NOW_S + 0.03}


def test_workers_that_are_gone_are_forgotten() -> None:
    pools = Pools(100.0)
    pool = pools.on_idle(worker("w0"), NOW_S)
    pools.on_idle(worker("w1"), NOW_S)
    pool.until_s["w1"] = NOW_S + 15.0
    other = pools.on_idle(worker("g0", device_class="gpu-1"), NOW_S)
    pools.on_idle(worker("w2"), NOW_S + 9.0)
    pools.share_out({}, [], NOW_S + 9.9)
    assert (len(pool.until_s), pools.all) == (3, [pool, other])
    pools.share_out({}, [], NOW_S + 10.1)  # w1 has not finished yet
    assert (sorted(pool.until_s), pools.all) == (["w1", "w2"], [pool])
    assert pool.next_idle_s("w2", NOW_S + 10.1) == pytest.approx(4.9)


def test_a_worker_whose_residents_change_moves_to_another_pool() -> None:
    pools = Pools(100.0)
    both = [pools.on_idle(worker(name), NOW_S) for name in ("w0", "w1")]
    changed = worker("w0", resident("u/m/v@1", 0.01, 70.0))
    moved = pools.on_idle(changed, NOW_S + 1.0)
    assert both[0] is both[1] is not moved
    assert (list(both[0].until_s), list(moved.until_s)) == (["w1"], ["w0"])
    pools.on_idle(worker("w1", *changed.residents.values()), NOW_S + 1.0)
    assert pools.all == [moved]


# -- as an object -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("target_utilisation", 0.0),
        ("target_utilisation", 2.1),
        ("memory_s", -1.0),
        ("reprice_s", math.nan),
        ("miss_penalty", -1.0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=setting):
        BestValue(**{setting: value})


def test_it_pickles_with_the_dispatchers_own_views_and_remembers_demand() -> None:
    policy = BestValue()
    asked = many(80, 0.25, max_cost_usd=1.0)
    for query in asked:
        arrive(policy, query)
    seen = worker()._replace(residents=MappingProxyType(dict(worker().residents)))
    before = ask(policy, *asked, at=seen)
    again = pickle.loads(pickle.dumps(policy))  # noqa: S301  (our own)
    arrive(again, asked[0])
    after = ask(again, *asked, at=seen)
    assert isinstance(after, Run)
    assert after == before
    assert after.variant_id == QUICK


# -- what nobody may block, and what nobody may fool ---------------------------------------------


def test_a_priority_that_this_worker_cannot_serve_blocks_no_lower_one() -> None:
    weak = worker("w0", resident("t/m/v@1", 0.01, 70.0))
    demanding = due(1, 0.5, min_accuracy_percent=80.0, priority=9)
    decision = ask(BestValue(), demanding, due(99, 0.5), at=weak)
    assert isinstance(decision, Run)
    assert [query.query_id for query in decision.queries] == [99]


def test_queues_that_this_worker_cannot_serve_hide_none_that_it_can() -> None:
    weak = worker("w0", resident("t/m/v@1", 0.01, 70.0))
    queues = [QueueView("t", None, n, (due(n, 0.3, min_accuracy_percent=80.0),)) for n in range(8)]
    last = QueueView("t", None, None, (due(99, 0.5),))
    decision = BestValue().on_idle(weak, [*queues, last], NOW_S, RNG)
    assert isinstance(decision, Run)
    assert [query.query_id for query in decision.queries] == [99]


def test_a_long_row_that_this_worker_cannot_serve_hides_nobody() -> None:
    weak = worker("w0", resident("t/m/v@1", 0.01, 70.0))
    decision = ask(BestValue(), *many(300, 0.3, min_accuracy_percent=80.0), due(999, 0.5), at=weak)
    assert isinstance(decision, Run)
    assert [query.query_id for query in decision.queries] == [999]


def test_under_load_those_that_only_a_slow_variant_may_serve_hide_none_that_a_quick_one_can() -> (
    None
):
    demanding = many(60, 0.30, min_accuracy_percent=75.0)
    others = [due(100 + number, 0.31) for number in range(20)]
    run = serve(*demanding, *others)
    assert (run.variant_id, ids(run.queries)) == (QUICK, list(range(100, 108)))


def test_at_a_price_a_part_full_batch_need_not_be_the_quickest() -> None:
    (later,) = worth_later(0.1, np.array([1.0]))
    assert best_of(1, 1.0, later, Terms(0.1, 0.125, 100.0, NOBODY, 0.0))[0] == SLOW


def test_batches_of_unknown_latency_are_not_run() -> None:
    part = ResidentView(
        "t/m/v@1", 70.0, (0.0, 0.01, 0.012, 0.014, math.inf), (0.0, 0.011, 0.013, 0.015, math.inf)
    )
    policy = BestValue()
    for number in range(400):
        at_s = NOW_S - 2.0 + 2.0 * number / 400
        arrive(policy, QueryView(number, "t", at_s, at_s + 0.25, items=2))
    decision = ask(policy, *many(2, 0.25, items=2), at=worker("w0", part))
    assert isinstance(decision, Run)
    assert len(decision.queries) == 1
