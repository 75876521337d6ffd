"""Best value: what it chooses where the right choice can be worked out by hand."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.batches import Line, best_batch, best_for_now
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.best_value.classes import prices_of_classes
from modelless.policies.selection.best_value.fleet import Fleet
from modelless.policies.selection.best_value.left import look_again_s
from modelless.policies.selection.best_value.market import Market
from modelless.policies.selection.best_value.menu import Menu, make_menu
from modelless.policies.selection.best_value.price import Devices, Rates, price_of_time
from modelless.policies.selection.best_value.table import Chances, ValueTable
from modelless.policies.views import (
    Candidates,
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
LADDER = {"t/m/quick@1": (0.005, 60.0), "t/m/mid@1": (0.020, 72.0), "t/m/slow@1": (0.050, 80.0)}
"""p50 of a batch of one and accuracy; a batch of b takes half as long as b batches, and a half."""


def resident(variant_id: str, one_s: float, accuracy: float, most: int = 8) -> ResidentView:
    p50_s = (0.0, *(one_s * (0.5 + 0.5 * b) for b in range(1, most + 1)))
    return ResidentView(variant_id, accuracy, p50_s, tuple(1.1 * s for s in p50_s))


def worker(
    name: str = "w0", speed: float = 1.0, device_class: str = "cpu-1", most: int = 8
) -> WorkerView:
    residents = {n: resident(n, one_s / speed, acc, most) for n, (one_s, acc) in LADDER.items()}
    return WorkerView(name, device_class, residents, most)


def queries(*slacks_s: float, **limits: object) -> tuple[QueryView, ...]:
    return tuple(
        QueryView(number, "t", NOW_S, NOW_S + slack_s, **limits)  # type: ignore[arg-type]
        for number, slack_s in enumerate(slacks_s)
    )


def ask(policy: BestValue, asked: tuple[QueryView, ...], at: WorkerView | None = None) -> object:
    queue = QueueView("t", None, None, asked)
    return policy.on_idle(at or worker(), [queue], NOW_S, RNG)


def arrive(policy: BestValue, query: QueryView) -> None:
    """Have a query come in, at the time that it bears, that the ladder can serve."""
    rows = candidates(*((one_s, accuracy, 0.0) for one_s, accuracy in LADDER.values()))
    at_s = query.arrival_s
    rows = replace(rows, free_at_s=np.full(3, at_s), now_s=at_s)
    assert isinstance(policy.on_arrival(query, rows, RNG), Defer)


def candidates(*rows: tuple[float, float, float]) -> Candidates:
    """Rows of latency, accuracy and cost."""
    latency_s, accuracy, cost = (np.array(column) for column in zip(*rows, strict=True))
    one = np.ones(len(rows))
    estimates = Estimates(latency_s, latency_s * 1.05, latency_s * 1.1, one, one)
    placements = tuple(Placement(f"t/m/v{n}@1", "cpu-1") for n in range(len(rows)))
    return Candidates(placements, accuracy, cost, estimates, NOW_S * one, NOW_S)


def test_a_lone_query_gets_the_most_accurate_variant_that_is_surely_in_time() -> None:
    for slack_s, variant in ((1.0, "slow"), (0.051, "mid"), (0.03, "mid"), (0.01, "quick")):
        run = ask(BestValue(), queries(slack_s))
        assert isinstance(run, Run)
        assert (run.variant_id, len(run.queries)) == (f"t/m/{variant}@1", 1), slack_s
        assert run.reason is Reason.BEST_VALUE


def test_the_queue_behind_makes_it_quick() -> None:
    """Eighty queries due in 100 ms: 8 at a time take 22.5 ms on the quickest, 90 ms on the next."""
    run = ask(BestValue(), queries(*[0.1] * 80))
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/quick@1"
    assert len(run.queries) == 8


def test_nobody_behind_takes_one_accurate_batch() -> None:
    run = ask(BestValue(), queries(*[5.0] * 4))
    assert isinstance(run, Run)
    assert (run.variant_id, len(run.queries)) == ("t/m/slow@1", 4)


@pytest.mark.parametrize("level", [60.0, 61.0, 72.0, 79.9])
@pytest.mark.parametrize("count", [1, 20, 200])
def test_it_never_goes_below_a_minimum(level: float, count: int) -> None:
    run = ask(BestValue(), queries(*[0.3] * count, min_accuracy_percent=level))
    assert isinstance(run, Run)
    assert worker().residents[run.variant_id].accuracy_percent >= level


def test_queries_of_other_minimums_share_a_batch_that_suits_all() -> None:
    strict = queries(0.5)[0]._replace(query_id=90, min_accuracy_percent=75.0)
    run = ask(BestValue(), (*queries(0.5), strict))
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/slow@1"
    assert {query.query_id for query in run.queries} == {0, 90}


def test_the_hopeless_are_dropped_and_the_others_served() -> None:
    policy = BestValue()
    ask(policy, queries(1.0))  # it must have seen a worker to know how quick one is
    run = ask(policy, queries(0.001, 0.002, 1.0))
    assert isinstance(run, Run)
    assert [query.query_id for query in run.dropped] == [0, 1]
    assert [query.query_id for query in run.queries] == [2]
    alone = ask(policy, queries(0.001))
    assert isinstance(alone, Wait)
    assert [query.query_id for query in alone.dropped] == [0]


def test_the_highest_priority_goes_first_whatever_its_deadline() -> None:
    urgent = queries(5.0)[0]._replace(query_id=50, priority=3)
    run = ask(BestValue(), (urgent, *queries(*[0.06] * 3)))
    assert isinstance(run, Run)
    assert [query.query_id for query in run.queries] == [50]


@pytest.mark.parametrize(
    ("priority", "peer_busy_s", "expected"),
    [(0, 1.0, "slow"), (3, 1.0, "quick"), (3, 0.004, "slow"), (3, None, "slow")],
)
def test_the_last_idle_worker_runs_what_is_short_if_a_higher_priority_cannot_wait(
    priority: int, peer_busy_s: float | None, expected: str
) -> None:
    """They come every 10 ms, take 5 and have 10; another worker may be idle soon, or now."""
    policy = BestValue()
    for number in range(200):
        at_s = NOW_S - 2.0 + number * 0.01
        arrive(policy, QueryView(number, "t", at_s, at_s + 0.01, 0.0, priority=priority))
    for name in ("w0", "w1"):
        policy.on_idle(worker(name), [QueueView("t", None, None, queries(9.0))], NOW_S - 0.5, RNG)
    if peer_busy_s is not None:
        peer = at("w1", "cpu-1", [resident("u/m/v@1", peer_busy_s, 80.0)])
        assert isinstance(idle(policy, peer, NOW_S, line(due(999, NOW_S + 9.0), scope="u")), Run)
    run = ask(policy, queries(0.5))
    assert isinstance(run, Run)
    assert run.variant_id == f"t/m/{expected}@1"


def test_a_higher_priority_without_a_limit_keeps_nobody_from_a_slow_batch() -> None:
    chosen = []
    for priority in (0, 3):
        policy = BestValue()
        for number in range(200):
            at_s = NOW_S - 2.0 + number * 0.01
            arrive(policy, QueryView(number, "t", at_s, math.inf, priority=priority))
        policy.on_idle(worker(), [QueueView("t", None, None, queries(9.0))], NOW_S - 0.5, RNG)
        run = ask(policy, queries(0.5))
        assert isinstance(run, Run)
        chosen.append(run.variant_id)
    assert chosen == ["t/m/mid@1"] * 2


def test_a_batch_never_holds_more_items_than_fit() -> None:
    asked = tuple(query._replace(items=3) for query in queries(*[1.0] * 6))
    run = ask(BestValue(), asked, worker(most=8))
    assert isinstance(run, Run)
    assert sum(query.items for query in run.queries) <= 8


def test_a_slow_device_leaves_a_query_to_a_better_one_that_is_free() -> None:
    policy = BestValue()
    fast, slow = worker("gpu-0", 10.0, "gpu"), worker("w0")
    for began_s in (NOW_S - 9.0, NOW_S - 8.5):
        for view in (fast, slow):  # both become known
            idle(policy, view, began_s, line(due(1, NOW_S + 9.0)))
    tight = queries(0.012)
    left = policy.on_idle(slow, [QueueView("t", None, None, tight)], NOW_S, RNG)
    assert isinstance(left, Wait)
    assert left.reason is Reason.WORTH_WAITING
    assert NOW_S < left.until_s < NOW_S + 0.01
    run = policy.on_idle(fast, [QueueView("t", None, None, tight)], NOW_S, RNG)
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/slow@1"


def test_what_was_left_is_looked_at_again_for_what_came_since() -> None:
    policy = BestValue()
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 90.0)])
    cpu = at("cpu-0", "cpu-1", [resident("t/s/v@1", 0.01, 60.0), resident("u/s/v@1", 0.01, 60.0)])
    for began_s in (NOW_S - 9.0, NOW_S - 8.5):
        for view in (gpu, cpu):  # both become known
            idle(policy, view, began_s, line(due(1, NOW_S)))
    for_gpu = line(due(2, NOW_S + 0.05))
    left = idle(policy, cpu, NOW_S, for_gpu)
    assert left == Wait(Reason.WORTH_WAITING, look_again_s(NOW_S), for_alike=True)
    assert idle(policy, cpu, NOW_S + 0.001, for_gpu) == left
    came = due(3, NOW_S + 0.5)._replace(scope="u")
    run = idle(policy, cpu, NOW_S + 0.001, for_gpu, line(came, scope="u"))
    assert isinstance(run, Run)
    assert run.queries == (came,)
    behind = line(due(2, NOW_S + 0.05), due(4, NOW_S + 0.06))
    assert idle(policy, cpu, NOW_S + 0.001, behind) == left
    deeper = line(due(4, NOW_S + 0.06))  # it was not looked at
    assert isinstance(idle(policy, cpu, NOW_S + 0.001, deeper), Wait)
    ahead = line(due(5, NOW_S + 0.049), due(2, NOW_S + 0.05))
    assert isinstance(idle(policy, cpu, NOW_S + 0.001, ahead), Wait)
    assert isinstance(idle(policy, cpu, NOW_S + 0.005, for_gpu), Wait)


@pytest.mark.parametrize("now_s", [0.0, 0.0013, 100.0, 123.4567, 1e6])
def test_what_is_left_is_looked_at_again_soon_and_all_at_once(now_s: float) -> None:
    again_s = look_again_s(now_s)
    assert now_s + 0.0019 < again_s < now_s + 0.0041
    assert look_again_s(again_s - 0.0039) == look_again_s(again_s - 0.0021)


def test_what_one_class_leaves_another_one_that_offers_the_same_may_take() -> None:
    policy = BestValue()
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 90.0)])
    dear, cheap = (at(f"{name}-0", name, [resident("t/s/v@1", 0.01, 60.0)]) for name in "ab")
    for began_s in (NOW_S - 9.0, NOW_S - 8.5):
        for view in (gpu, dear, cheap):  # all become known
            idle(policy, view, began_s, line(due(1, NOW_S)))
    waiting = line(due(2, NOW_S + 0.1))
    assert isinstance(idle(policy, dear, NOW_S, waiting), Wait)
    assert idle(policy, dear, NOW_S + 0.001, waiting) == Wait(
        Reason.WORTH_WAITING, look_again_s(NOW_S), for_alike=True
    )
    cheap_left = idle(policy, cheap, NOW_S + 0.0025, waiting)  # it is looked at, not looked up
    assert isinstance(cheap_left, Wait)
    assert cheap_left.until_s == look_again_s(NOW_S + 0.0025)


def test_what_one_worker_leaves_another_one_of_its_class_may_have_something_for() -> None:
    policy = BestValue()
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 90.0)])
    slow = at("cpu-0", "cpu-1", [resident("t/s/v@1", 0.04, 60.0)])
    good = at("cpu-2", "cpu-1", [resident("t/m/v@1", 0.01, 91.0)])
    for began_s in (NOW_S - 9.0, NOW_S - 8.5):
        for view in (gpu, slow, good):  # all become known
            idle(policy, view, began_s, line(due(1, NOW_S)))
    waiting = line(due(2, NOW_S + 0.1))
    left = idle(policy, slow, NOW_S, waiting)
    assert left == Wait(Reason.WORTH_WAITING, look_again_s(NOW_S), for_alike=True)
    alike = slow._replace(worker_id="cpu-1")
    assert idle(policy, alike, NOW_S + 0.001, waiting) == left
    run = idle(policy, good, NOW_S + 0.001, waiting)
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/v@1"


def test_what_nobody_could_ever_serve_is_rejected_on_arrival() -> None:
    rows = candidates((0.01, 60.0, 1e-6), (0.05, 80.0, 5e-6))
    for limits, reason in (
        ({"min_accuracy_percent": 81.0}, Reason.TOO_INACCURATE),
        ({"slack_s": 0.005}, Reason.TOO_SLOW),
        ({"min_accuracy_percent": 70.0, "slack_s": 0.03}, Reason.LIMITS_CONFLICT),
    ):
        slack_s = float(limits.pop("slack_s", 1.0))
        choice = BestValue().on_arrival(queries(slack_s, **limits)[0], rows, RNG)
        assert isinstance(choice, Reject)
        assert choice.reason is reason
    assert isinstance(BestValue().on_arrival(queries(1.0)[0], rows, RNG), Defer)


def test_a_cost_limit_binds_at_once_within_it() -> None:
    rows = candidates((0.01, 60.0, 1e-6), (0.05, 80.0, 5e-6))
    choice = BestValue().on_arrival(queries(1.0, max_cost_usd=2e-6)[0], rows, RNG)
    assert getattr(choice, "row", None) == 0
    choice = BestValue().on_arrival(queries(1.0, max_cost_usd=1e-5)[0], rows, RNG)
    assert getattr(choice, "row", None) == 1


def test_at_a_price_who_waits_is_taken_in_even_if_another_worker_is_about_to_be_idle() -> None:
    """Alone, each would be worth as much with the next worker; together they save its time."""
    policy = BestValue()
    for number in range(900):  # so many a second make time dear
        now_s = NOW_S - 1.0 + number / 900
        arrive(policy, QueryView(number, "t", now_s, now_s + 0.1))
    names = [f"w{number}" for number in range(4)]
    for name in names:
        policy.on_idle(worker(name), [QueueView("t", None, None, queries(9.0))], NOW_S - 0.5, RNG)
    asked = tuple(
        q._replace(arrival_s=NOW_S - 0.03, deadline_s=NOW_S + 0.07) for q in queries(*[0.07] * 6)
    )
    run = ask(policy, asked)
    assert isinstance(run, Run)
    assert len(run.queries) >= 5


def test_if_others_would_fill_batches_a_small_one_is_charged_in_full() -> None:
    accuracy = []
    for pressure in (0.0, 1.0):
        table = ValueTable(Chances(make_menu(worker().residents.values(), 8)), 400.0, 100.0)
        offer = best_batch(Line(table, queries(0.1, 0.1), [0.1, 0.1], [3, 3], math.inf, pressure))
        assert offer is not None
        accuracy.append(worker().residents[offer.variant_id].accuracy_percent)
    assert accuracy == [80.0, 72.0]


def test_who_has_waited_gets_a_quicker_variant_at_the_same_slack_and_price() -> None:
    """A batch of two where eight would be efficient: who pays for that depends on the waiting."""
    accuracy = []
    for waited_s in (0.0, 0.9):
        table = ValueTable(Chances(make_menu(worker().residents.values(), 8)), 400.0, 100.0)
        pair = [q._replace(arrival_s=q.arrival_s - waited_s) for q in queries(0.1, 0.1)]
        offer = best_batch(Line(table, pair, [0.1, 0.1], [3, 3], math.inf, 0.0))
        assert offer is not None
        assert len(offer.queries) == 2
        accuracy.append(worker().residents[offer.variant_id].accuracy_percent)
    assert accuracy == [80.0, 72.0]


def test_who_can_outwait_a_crowd_leaves_the_device_to_who_cannot() -> None:
    """Eight who can wait would fill a batch; but after the crowd their time costs nothing."""
    served = []
    chances = Chances(make_menu(worker().residents.values(), 8))
    dear, free = (ValueTable(chances, price, 100.0) for price in (4000.0, 0.0))
    asked = (*queries(0.06, 0.06), *queries(*[5.0] * 8, min_accuracy_percent=80.0))
    slacks_s = [query.deadline_s - NOW_S for query in asked]
    line = Line(dear, asked, slacks_s, [3, 3, *[1] * 8], 0.05, 1.0)
    for told in (line, line._replace(calm=free, patient_s=2.0)):
        offer = best_batch(told)
        assert offer is not None
        served.append(len(offer.queries))
    assert served == [8, 2]


def test_if_only_the_patient_are_there_they_run_in_whole_batches() -> None:
    """Each would do better later, and yet they run if nobody else wants the device."""
    chances = Chances(make_menu(worker().residents.values(), 8))
    dear, free = (ValueTable(chances, price, 100.0) for price in (4000.0, 0.0))
    asked = queries(*[5.0] * 8)
    line = Line(dear, asked, [5.0] * 8, [3] * 8, 0.05, 1.0, free, 2.0)
    offer = best_for_now(line)
    assert offer is not None
    assert len(offer.queries) == 8
    assert offer.worth < 0.0


def test_a_crowd_is_priced_without_those_who_can_outwait_it() -> None:
    prices = {}
    for limit_s in (1.0, 5.0):
        market, number = Market(0.95, 0.85, 100.0, 5.0, 0.02), 0
        market.on_idle(worker(), [QueueView("t", None, None, queries(9.0))], 90.0)
        for rate, begin_s, end_s in ((1, 90.0, 99.0), (80, 99.0, 100.0)):
            for count in range(int(rate * (end_s - begin_s))):
                now_s, number = begin_s + count / rate, number + 1
                market.on_query(QueryView(number, "t", now_s, now_s + limit_s), now_s)
        market.on_idle(worker(), [QueueView("t", None, None, queries(9.0))], NOW_S)
        prices[limit_s] = market.price_on("cpu-1")
    assert prices[1.0] > prices[5.0] == 0.0


def test_a_line_in_a_hurry_is_skipped_where_serving_it_would_cost_a_full_batch() -> None:
    """At a price above what one query is worth a second, the two at the front are given up."""
    table = ValueTable(Chances(make_menu(worker().residents.values(), 8)), 50_000.0, 100.0)
    asked = queries(0.006, 0.006, *[0.1] * 8)
    slacks_s = [query.deadline_s - NOW_S for query in asked]
    offer = best_batch(Line(table, asked, slacks_s, [3] * 10, math.inf, 0.0))
    assert offer is not None
    assert [query.query_id for query in offer.queries] == list(range(2, 10))


# -- the pieces -------------------------------------------------------------------------------


def menu(*variants: tuple[float, float]) -> Menu:
    """Of latency and accuracy; batches save nothing."""
    views = [
        ResidentView(f"t/m/{n}@1", accuracy, (0.0, one_s), (0.0, 1.2 * one_s))
        for n, (one_s, accuracy) in enumerate(variants)
    ]
    return make_menu(views, 1)


def test_a_menu_is_sorted_and_leaves_out_what_is_unknown() -> None:
    unknown = ResidentView("t/m/x@1", 99.0, (0.0, math.inf), (0.0, math.nan))
    known = resident("t/m/a@1", 0.01, 70.0), resident("t/m/b@1", 0.02, 80.0)
    made = make_menu([unknown, *known], 4)
    assert made.variant_ids == ("t/m/b@1", "t/m/a@1")
    assert made.typical_s.shape == (2, 4)
    assert made.item_s == pytest.approx([0.02 * 2.5 / 4, 0.01 * 2.5 / 4])
    within = made.within(0.016, 2)
    assert within.item_s == pytest.approx([math.inf, 0.015 / 2])
    assert (within.first_s, within.least_s) == pytest.approx((0.015 / 2, 0.015 / 2))
    assert made.within(0.016, 1).least_s == math.inf


def test_the_price_is_that_of_the_linear_program() -> None:
    """One worker; 1 s of work for 100 queries: mix x of (10 ms, 80) and the rest (5 ms, 70).

    150 queries a second: 0.01 x + 0.005 (150 - x) = 1 gives x = 50: both are in the mix, so a
    second is worth what both trade at: 10 points for 5 ms.
    """
    offered = {"cpu": Devices(1, {"t": menu((0.010, 80.0), (0.005, 70.0))})}
    kind = ("t", 0.0, 1.0)
    price = price_of_time({kind: 150.0}, offered, 1.0, 0.5, 0.0)
    assert price.per_s == pytest.approx(10.0 / 0.005, rel=0.01)
    assert price_of_time({kind: 99.0}, offered, 1.0, 0.5, 0.0).per_s == 0.0
    too_much = price_of_time({kind: 300.0}, offered, 1.0, 0.5, 0.0).per_s
    assert too_much == pytest.approx(70.0 / 0.005, rel=0.01)  # some are not served at all
    assert price_of_time({}, offered, 1.0, 0.5, 0.0).per_s == 0.0


def test_a_limit_that_only_the_quickest_meets_is_demand_too() -> None:
    """5 ms of 10 ms, which is rounded to 7.8: more than the share that leaves time to wait."""
    offered = {
        "cpu": Devices(1, {"t": menu((0.010, 80.0), (0.005, 70.0))}),
        "npu": Devices(1, {"t": menu((0.040, 80.0))}),  # which has no part in it
    }
    tight = ("t", 0.0, 2.0**-7)
    price = price_of_time({tight: 500.0}, offered, 1.0, 0.5, 0.0)
    assert price.per_s == pytest.approx(70.0 / 0.005, rel=0.01)
    assert price.speed == {"cpu": 1.0}
    assert prices_of_classes({tight: 500.0}, offered, 1.0, 0.5, 0.0) == pytest.approx(
        {"cpu": 70.0 / 0.005, "npu": 0.0}
    )
    too_tight = ("t", 0.0, 2.0**-8.5)  # 2.8 ms, of up to 3.9
    assert price_of_time({too_tight: 500.0}, offered, 1.0, 0.5, 0.0).per_s == 0.0


def test_who_can_never_be_in_time_is_no_demand() -> None:
    policy = BestValue()
    for number in range(1000):
        query = QueryView(number, "t", NOW_S, NOW_S + 0.009)
        assert isinstance(policy.on_arrival(query, candidates((0.01, 70.0, 1e-6)), RNG), Reject)
    run = ask(policy, queries(0.5))
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/slow@1"  # time costs nothing


def test_who_is_indifferent_is_mixed_as_there_is_time_for() -> None:
    """As above: 50 of 150 take the slower one; and near the price nobody needs one."""
    offered = {"cpu": Devices(1, {"t": menu((0.010, 80.0), (0.005, 70.0))})}
    price = price_of_time({("t", 0.0, 1.0): 150.0}, offered, 1.0, 0.5, 0.0)
    assert price.slower_share == pytest.approx(50.0 / 150.0)
    assert price_of_time({("t", 0.0, 1.0): 9.0}, offered, 1.0, 0.5, 0.0).slower_share == 1.0
    nearly_full = price_of_time({("t", 0.0, 1.0): 199.0}, offered, 1.0, 0.5, 0.0)
    assert nearly_full.slower_share == pytest.approx(1.0 / 199.0)
    alike = {"cpu": Devices(1, {"t": menu((0.010, 80.0), (0.005, 79.999))})}
    found = price_of_time({("t", 0.0, 1.0): 150.0}, alike, 1.0, 0.5, 0.0)
    assert (found.per_s, found.slower_share, found.short) == (1.0, 1.0, None)


def test_the_price_goes_up_and_down_as_often_as_that_mixes_them() -> None:
    """At 150 a second a third of the time it is below what both variants trade at, else above."""
    market = Market(1.0, 0.85, 100.0, 5.0, 0.02)
    ladder = (("t/m/a@1", 0.010, 80.0), ("t/m/b@1", 0.005, 70.0))
    views = {name: resident(name, one_s, accuracy, 1) for name, one_s, accuracy in ladder}
    one = WorkerView("w0", "cpu-1", views, 1)
    is_slower = []
    for number in range(3000):
        now_s = number / 150.0
        market.on_query(QueryView(number, "t", now_s, now_s + 1.0), now_s)
        market.on_idle(one, [QueueView("t", None, None, queries(9.0))], now_s)
        if now_s > 15.0:
            is_slower.append(market.price_on("cpu-1") < 10.0 / 0.005)
    assert sum(is_slower) / len(is_slower) == pytest.approx(1.0 / 3.0, abs=0.15)


def test_the_price_rises_with_demand() -> None:
    offered = {"cpu": Devices(2, {"t": menu((0.05, 80.0), (0.02, 75.0), (0.004, 60.0))})}
    kinds = [("t", 0.0, 1.0), ("t", 70.0, 0.2)]
    prices = [
        price_of_time(dict.fromkeys(kinds, rate), offered, 0.9, 0.5, 100.0).per_s
        for rate in (1.0, 10.0, 30.0, 60.0, 120.0, 1e4)
    ]
    assert prices == sorted(prices)
    assert prices[0] == 0.0 < prices[-1]


def test_slower_classes_count_as_what_they_can_do() -> None:
    quick, slow = menu((0.010, 80.0)), menu((0.040, 80.0))
    offered = {"gpu": Devices(1, {"t": quick}), "cpu": Devices(4, {"t": slow})}
    found = price_of_time({("t", 0.0, 1.0): 1.0}, offered, 1.0, 0.5, 0.0)
    assert found.speed == pytest.approx({"gpu": 1.0, "cpu": 0.25})
    assert price_of_time({("t", 0.0, 1.0): 199.0}, offered, 1.0, 0.5, 0.0).per_s == 0.0
    assert price_of_time({("t", 0.0, 1.0): 201.0}, offered, 1.0, 0.5, 0.0).per_s > 0.0


def test_a_quick_class_is_worth_what_it_spares_a_slow_one() -> None:
    """A GPU: 5 ms for 80 points. An NPU: 10 ms for 60 points, or 20 ms for 70.

    At 275 a second the GPU answers 200, and the NPU 75: 50 in 10 ms, 25 in 20. So a second of the
    NPU is worth 10 points in 10 ms; and 5 ms of the GPU are worth 10 points, and the 20 ms of the
    NPU that would else be taken.
    """
    gpu, npu = menu((0.005, 80.0)), menu((0.020, 70.0), (0.010, 60.0))
    offered = {"gpu": Devices(1, {"t": gpu}), "npu": Devices(1, {"t": npu})}
    kind = ("t", 0.0, 1.0)
    prices = prices_of_classes({kind: 275.0}, offered, 1.0, 0.5, 0.0)
    assert prices == pytest.approx({"gpu": 30.0 / 0.005, "npu": 10.0 / 0.010})
    with_time = prices_of_classes({kind: 180.0}, offered, 1.0, 0.5, 0.0)
    assert with_time == pytest.approx({"gpu": 0.0, "npu": 0.0})
    # From 200 to 250 the NPU has time to spare, and the GPU gains 10 points in 5 ms.
    near = prices_of_classes({kind: 220.0}, offered, 1.0, 0.5, 0.0)
    assert near == pytest.approx({"gpu": 10.0 / 0.005, "npu": 0.0})
    assert prices_of_classes({}, offered, 1.0, 0.5, 0.0) == {}
    for never in (("u", 0.0, 1.0), ("t", 0.0, 0.003), ("t", 99.0, 1.0)):
        assert prices_of_classes({never: 9.0}, offered, 1.0, 0.5, 0.0) == {}


def test_kinds_beyond_the_most_are_taken_to_be_like_the_others() -> None:
    offered = {
        "a": Devices(1, {"t": menu((0.010, 80.0))}),
        "b": Devices(1, {"u": menu((9.0, 9.0))}),
    }
    many = {("t", 0.0, 1.0 + number): 1.0 for number in range(150)}
    few = dict(list(many.items())[:60])
    assert prices_of_classes(many, offered, 1.0, 0.5, 0.0)["a"] == pytest.approx(80.0 / 0.010)
    assert prices_of_classes(few, offered, 1.0, 0.5, 0.0)["a"] == 0.0


def test_each_class_has_the_price_that_lasting_demand_gives_it() -> None:
    """The example above, met query by query."""
    market = Market(1.0, 0.85, 100.0, 5.0, 0.02)
    gpu = at("g", "gpu", [resident("t/m/a@1", 0.005, 80.0, 1)], 1)
    ladder = (("t/n/a@1", 0.020, 70.0), ("t/n/b@1", 0.010, 60.0))
    npu = at("n", "npu", [resident(name, p50_s, points, 1) for name, p50_s, points in ladder], 1)
    for number in range(2750):
        now_s = number / 275.0
        market.on_query(QueryView(number, "t", now_s, now_s + 1.0), now_s)
        for each in (gpu, npu):
            market.on_idle(each, [line(due(number, now_s + 9.0))], now_s)
            market.menu(each, "t")
            market.on_run(each, 1.0 / 275.0, 1.0 / 275.0, now_s)
    assert market.price_on("gpu") == pytest.approx(6000.0, rel=0.1)
    assert market.price_on("npu") == pytest.approx(1000.0, rel=0.1)


def test_in_a_crowd_little_is_left_for_a_class_that_is_said_to_be_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 10,000 a second 2 ms cost 20 points here, which the others ask 5 for: that is in doubt."""
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 80.0)])
    npu = at("npu-0", "npu", [resident("t/small/v@1", 0.010, 78.0)])
    for price, expected in ((10_000.0, Run), (20_000.0, Wait)):
        policy = acquainted(gpu, npu)
        prices = {"gpu": price, "npu": 500.0}
        monkeypatch.setattr(Market, "price_on", lambda market, name, prices=prices: prices[name])
        assert isinstance(idle(policy, gpu, NOW_S, line(due(8, NOW_S + 0.5))), expected)


def test_a_batch_keeps_a_worker_that_is_asked_early_for_less_than_its_latency() -> None:
    views = [resident("t/m/a@1", 0.040, 80.0, 4)]  # 40, 60, 80 and 100 ms
    early = make_menu(views, 4, lead_s=0.030)
    assert early.typical_s[0] == pytest.approx([0.040, 0.060, 0.080, 0.100])
    assert early.busy_s[0] == pytest.approx([0.020, 0.030, 0.050, 0.070])  # two at a time at most
    assert early.item_s == pytest.approx([0.015])
    assert early.within(0.070, 1).item_s == pytest.approx([0.015])
    assert make_menu(views, 4).busy_s[0] == pytest.approx([0.040, 0.060, 0.080, 0.100])


def test_a_class_that_is_busy_all_the_time_is_left_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """More urgent ones will come first there; who would wait for long is served here."""
    kept = []
    for is_busy in (False, True):
        policy = BestValue(reprice_s=60.0)
        gpu, cpu = worker("g", speed=10.0, device_class="gpu"), worker()
        for each, ago_s in ((cpu, 1.0), (gpu, 0.9), (gpu, 0.05)):
            queue = QueueView("t", None, None, queries(9.0))
            policy.on_idle(each, [queue], NOW_S - ago_s, RNG)
        monkeypatch.setattr(
            Market, "delay_of", lambda market, name, times=7.0 if is_busy else 1.0: times
        )
        decision = ask(policy, queries(*[0.02] * 40), cpu)
        kept.append(len(decision.queries) if isinstance(decision, Run) else 0)
    assert kept[0] < kept[1]


def test_the_price_is_looked_for_from_another_on() -> None:
    offered = {"cpu": Devices(1, {"t": menu((0.010, 80.0), (0.005, 70.0))})}
    few, many = {("t", 0.0, 1.0): 90.0}, {("t", 0.0, 1.0): 150.0}
    assert price_of_time(few, offered, 1.0, 0.5, 0.0, 50.0).per_s == 50.0
    dearer = price_of_time(many, offered, 1.0, 0.5, 0.0, 50.0)
    assert dearer.per_s == pytest.approx(10.0 / 0.005, rel=0.02)
    assert dearer.short is None


def test_batches_may_run_longer_where_workers_outnumber_queues() -> None:
    """One worker must leave a query half its limit to wait; nine leave it a tenth."""
    both = {"t": menu((0.080, 80.0), (0.010, 60.0))}
    kind = (
        "t",
        0.0,
        0.1,
    )  # a worker has time for 100 a second with the quick one, 12 with the slow
    assert price_of_time({kind: 90.0}, {"cpu": Devices(1, both)}, 1.0, 1.0, 0.0).per_s == 0.0
    assert price_of_time({kind: 810.0}, {"cpu": Devices(9, both)}, 1.0, 1.0, 0.0).per_s > 0.0


def test_the_value_function_rises_with_slack_and_falls_with_price() -> None:
    chances = Chances(make_menu(worker().residents.values(), 8))
    slacks_s = [0.001, 0.004, 0.006, 0.02, 0.04, 0.06, 0.3, math.inf]
    free, dear = ValueTable(chances, 0.0, 100.0), ValueTable(chances, 1500.0, 100.0)
    worth = [free.worth(slack_s, 3) for slack_s in slacks_s]
    assert worth == sorted(worth)
    assert worth[0] == -100.0
    assert worth[-1] == pytest.approx(80.0, abs=0.1)
    assert all(dear.worth(s, 3) <= free.worth(s, 3) for s in slacks_s)
    # 5 ms x 4.5 for 8 on the quickest: 2.8 ms an item and 60, or 11.25 ms and 72.
    assert dear.worth(1.0, 3) == pytest.approx(60.0 - 1500.0 * 0.0225 / 8, abs=0.1)
    assert free.worth(math.nan, 3) == -100.0
    assert free.worth(0.3, 1) == pytest.approx(80.0, abs=0.1)  # of the first alone: the best


def test_a_query_alone_is_charged_as_in_a_batch_that_has_not_waited() -> None:
    """It gets the same variant by its table as by looking at all batches."""
    chances = Chances(make_menu(worker().residents.values(), 8))
    for price in (0.0, 200.0, 400.0, 700.0, 3000.0):
        table = ValueTable(chances, price, 100.0)
        offer = best_batch(Line(table, queries(0.3), [0.3], [3], math.inf, 0.0))
        worth, row = table.alone(0.3, 3)
        assert offer is not None
        assert table.menu.variant_ids[row] == offer.variant_id
        assert worth + 100.0 == pytest.approx(offer.worth, abs=0.5)


def test_from_its_ample_slack_on_a_query_is_worth_that_much() -> None:
    table = ValueTable(Chances(make_menu(worker().residents.values(), 8)), 0.0, 100.0)
    slack_s = table.ample_s(71.0, 3)
    assert table.worth(slack_s * 1.001, 3) >= 71.0 > table.worth(slack_s * 0.95, 3)
    assert table.ample_s(81.0, 3) == math.inf


def test_a_menu_leaves_out_what_another_variant_betters() -> None:
    views = [resident("t/m/a@1", 0.01, 70.0), resident("t/m/b@1", 0.02, 70.0)]
    assert make_menu([*views, resident("t/m/c@1", 0.005, 60.0)], 4).variant_ids == (
        "t/m/a@1",
        "t/m/c@1",
    )


def test_the_fleet_knows_who_is_idle_next() -> None:
    fleet = Fleet()
    assert fleet.free("cpu-1", NOW_S) == (0, math.inf)
    for name in ("w0", "w1"):
        fleet.on_idle(worker(name), NOW_S)
    assert fleet.free("cpu-1", NOW_S, without="w0") == (1, 0.0)
    fleet.on_run(worker("w1"), 0.03, 0.03, NOW_S)
    assert fleet.free("cpu-1", NOW_S, without="w0") == (1, pytest.approx(0.03))
    fleet.on_run(worker("w0"), 0.02, 0.02, NOW_S)
    assert fleet.free("cpu-1", NOW_S + 0.01) == (2, pytest.approx(0.01))
    assert fleet.free("cpu-1", NOW_S + 0.025) == (2, 0.0)  # w0 should be back any moment
    fleet.on_idle(worker("w1"), NOW_S + 0.026)  # sooner than expected
    fleet.on_run(worker("w1"), 0.05, 0.05, NOW_S + 0.026)
    assert fleet.free("cpu-1", NOW_S + 0.03, without="w0") == (1, pytest.approx(0.046))


def test_the_fleet_knows_how_long_batches_take_of_late() -> None:
    fleet = Fleet()
    assert fleet.batch_s("cpu-1") == math.inf
    fleet.on_idle(worker(), NOW_S)
    assert fleet.batch_s("cpu-1") == math.inf
    for latency_s, expected_s in ((0.03, 0.03), (0.13, 0.04)):
        fleet.on_run(worker(), latency_s, latency_s, NOW_S)
        assert fleet.batch_s("cpu-1") == pytest.approx(expected_s)
        fleet.on_idle(worker(), NOW_S + latency_s)


def test_a_worker_that_runs_a_little_longer_than_expected_is_not_taken_for_lost() -> None:
    fleet = Fleet()
    for name in ("late", "lost", "here"):
        fleet.on_idle(worker(name), NOW_S)
    fleet.on_run(worker("late"), 0.02, 0.02, NOW_S)
    for name in ("cpu", "alike"):
        fleet.on_idle(at(name, "cpu-4", []), NOW_S)
    # What "cpu" leaves all of cpu-1 who are idle are asked about. "here" takes it; then nobody.
    fleet.on_left("cpu-4", NOW_S + 0.03, NOW_S + 0.03)
    fleet.on_idle(worker("here"), NOW_S + 0.03)
    fleet.on_left("cpu-4", NOW_S + 0.03, NOW_S + 0.0305)
    assert fleet.counts() == {"cpu-1": 3, "cpu-4": 2}
    fleet.on_left("cpu-4", NOW_S + 0.03, NOW_S + 0.033)
    assert fleet.counts() == {"cpu-1": 2, "cpu-4": 2}  # "alike" was not asked, as "cpu" was


def test_who_is_alike_and_was_not_asked_is_not_taken_for_lost() -> None:
    fleet = Fleet()
    for name in ("w0", "w1"):
        fleet.on_idle(worker(name), NOW_S)
        fleet.on_idle(at(f"cpu-{name}", "cpu-4", []), NOW_S)
    for ms in range(0, 100, 4):  # nobody wants it
        now_s = NOW_S + 0.03 + ms / 1e3
        fleet.on_idle(worker("w0"), now_s)
        fleet.on_left("cpu-1", NOW_S + 0.03, now_s)
        fleet.on_idle(at("cpu-w0", "cpu-4", []), now_s)
        fleet.on_left("cpu-4", NOW_S + 0.03, now_s)
    assert fleet.counts() == {"cpu-1": 2, "cpu-4": 2}


def test_rates_settle_at_the_rate_and_forget() -> None:
    rates, kind = Rates(2.0), ("t", 0.0, 1.0)
    for number in range(1, 1001):
        rates.count(kind, 1, number * 0.01)
    assert rates.per_s(10.0)[kind] == pytest.approx(100.0, rel=0.03)
    assert rates.per_s(14.0)[kind] == pytest.approx(100.0 * math.exp(-2.0), rel=0.05)
    assert rates.per_s(1000.0) == {}


def test_rates_of_ever_new_kinds_are_bounded() -> None:
    rates = Rates(100.0)
    for number in range(5000):
        rates.count((f"t/{number}", 0.0, 1.0), 1, number * 0.001)
    assert len(rates.per_s(5.0)) <= 512


def test_the_chance_is_one_half_at_the_median_and_99_percent_at_p99() -> None:
    view = ResidentView("t/m/v@1", 70.0, (0.0, 0.010), (0.0, 0.013))
    at = make_menu([view], 1).chance(np.array([0.01, 0.013, 0.001, math.inf])).reshape(4)
    assert at[0] == pytest.approx(0.5)
    assert at[1] == pytest.approx(0.99, abs=0.01)
    assert at[2] == pytest.approx(0.0, abs=1e-6)
    assert at[3] == 1.0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("target_utilisation", 0.0),
        ("batching_share", 1.5),
        ("memory_s", -1.0),
        ("reprice_s", math.nan),
        ("miss_penalty", -1.0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=setting):
        BestValue(**{setting: value})


def at(name: str, device_class: str, views: list[ResidentView], most: int = 8) -> WorkerView:
    return WorkerView(name, device_class, {view.variant_id: view for view in views}, most)


def idle(policy: BestValue, worker_view: WorkerView, now_s: float, *queues: QueueView) -> object:
    return policy.on_idle(worker_view, queues, now_s, RNG)


def line(*asked: QueryView, batch_key: object = None, scope: str = "t") -> QueueView:
    return QueueView(scope, None, batch_key, asked)  # type: ignore[arg-type]


def due(query_id: int, deadline_s: float, **limits: object) -> QueryView:
    return QueryView(query_id, "t", deadline_s - 0.5, deadline_s, **limits)  # type: ignore[arg-type]


def acquainted(*views: WorkerView) -> BestValue:
    """A policy that has met these, and finds no price anew."""
    policy = BestValue(reprice_s=60.0)
    for step in range(2):
        for view in views:
            idle(policy, view, NOW_S - 0.6 + step * 0.3, line(due(step, NOW_S + 9.0)))
    return policy


def test_a_variant_that_was_unloaded_elsewhere_attracts_no_more_queries() -> None:
    policy = BestValue()
    big, small = resident("t/big/v@1", 0.001, 90.0), resident("t/small/v@1", 0.010, 60.0)
    other = resident("u/x/v@1", 0.001, 90.0)
    cpu = at("cpu-0", "cpu-1", [small])
    for step in range(4):  # both become known, with the task on both
        now_s = 90.0 + step * 0.3
        for view in (at("gpu-0", "gpu", [big, other]), cpu):
            idle(policy, view, now_s, line(due(step, now_s + 0.5)))
    served = 0
    for step in range(40):
        now_s = 92.0 + step * 0.3
        idle(policy, at("gpu-0", "gpu", [other]), now_s, line(due(1, now_s + 0.5), scope="u"))
        served += isinstance(idle(policy, cpu, now_s, line(due(2, now_s + 0.5))), Run)
    assert served >= 38


def test_a_lost_worker_is_not_waited_for() -> None:
    policy = BestValue()
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 90.0)])
    cpu = at("cpu-0", "cpu-1", [resident("t/small/v@1", 0.010, 60.0)])
    for step in range(4):
        now_s = 90.0 + step * 0.3
        for view in (gpu, cpu):
            idle(policy, view, now_s, line(due(step, now_s + 0.5)))
    served = 0
    for step in range(10):  # the GPU is gone
        now_s = 92.0 + step * 0.25
        asked = line(due(10 + step, now_s + 0.04))
        answer = idle(policy, cpu, now_s, asked)
        if isinstance(answer, Wait):
            answer = idle(policy, cpu, answer.until_s, asked)
        served += isinstance(answer, Run)
    assert served >= 9


def test_a_little_better_elsewhere_is_waited_for_only_with_time_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three points, and the GPU is idle in 2 ms; on a CPU whose time is dear that is too little."""
    gpu = at("gpu-0", "gpu", [resident("t/big/v@1", 0.002, 83.0)])
    cpu = at("cpu-0", "cpu-1", [resident("t/small/v@1", 0.010, 80.0)])
    for price, expected in ((0.0, Wait), (100.0, Run)):
        policy = acquainted(gpu, cpu)
        monkeypatch.setattr(Market, "price_on", lambda market, name, price=price: price)
        assert isinstance(idle(policy, gpu, NOW_S, line(due(7, NOW_S + 0.5))), Run)
        assert isinstance(idle(policy, cpu, NOW_S, line(due(8, NOW_S + 0.5))), expected)


def test_what_this_worker_cannot_serve_does_not_block_what_it_can() -> None:
    view = at("cpu-0", "cpu-1", [resident("t/m/v@1", 0.01, 70.0)])
    beyond = due(1, NOW_S + 0.5, min_accuracy_percent=80.0, priority=9)
    many = [due(n, NOW_S + 0.4, min_accuracy_percent=80.0) for n in range(10, 80)]
    good = due(99, NOW_S + 0.5)
    for ahead in ([beyond], many):
        run = idle(BestValue(), view, NOW_S, line(*ahead, good))
        assert isinstance(run, Run)
        assert run.queries == (good,)
    queues = [line(query, batch_key=query.query_id) for query in many[:8]]
    run = idle(BestValue(), view, NOW_S, *queues, line(good))
    assert isinstance(run, Run)
    assert run.queries == (good,)


def test_ever_new_limits_are_priced_as_the_demand_they_are() -> None:
    """At 1,000 queries a second, each with another limit, time is dear."""
    market = Market(0.95, 0.85, 100.0, 5.0, 0.02)
    view = at("cpu-0", "cpu-1", [resident("t/m/v@1", 0.01, 70.0)])
    for n in range(1000):
        now_s = NOW_S + n * 0.001
        query = QueryView(n, "t", now_s, now_s + 0.25 + n * 1e-4)
        market.on_query(query, now_s)
        if n % 100 == 0:
            market.on_idle(view, [line(query)], now_s)
    assert market.price_on("cpu-1") > 0.0


def test_a_batching_policy_that_waits_is_waited_for() -> None:
    class Waits(EarliestDeadlineFirst):
        def next_batch(self, worker, queues, now_s):  # type: ignore[no-untyped-def]
            return Wait(Reason.FILLING_BATCH, now_s + 0.01)

    bound = QueueView("t", "t/m/mid@1", None, queries(1.0))
    answer = idle(BestValue(batching=Waits()), worker(), NOW_S, bound)
    assert answer == Wait(Reason.FILLING_BATCH, NOW_S + 0.01)


def test_it_pickles_with_the_cores_own_views() -> None:
    policy = BestValue()
    seen = worker()._replace(residents=MappingProxyType(dict(worker().residents)))
    assert isinstance(ask(policy, queries(1.0), seen), Run)
    again = pickle.loads(pickle.dumps(policy))  # noqa: S301  (our own)
    assert isinstance(ask(again, queries(1.0), seen), Run)
