"""Who is served when there is not time for everyone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from modelless.policies.selection.best_value.admission import (
    EVERYONE,
    Admission,
    Demand,
    admission_of,
)
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.best_value.crowd import Crowd
from modelless.policies.selection.best_value.market import Market
from modelless.policies.selection.best_value.menu import make_menu
from modelless.policies.selection.best_value.price import (
    Devices,
    Kind,
    Price,
    Short,
    kind_of,
    price_of_time,
)
from modelless.policies.views import (
    Candidates,
    Defer,
    QueryView,
    QueueView,
    ResidentView,
    Run,
    WorkerView,
)
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import Placement

RNG = np.random.default_rng(0)


def query(
    number: int, min_accuracy: float = 0.0, slack_s: float = 1.0, tenant: str = ""
) -> QueryView:
    return QueryView(number, "t", 0.0, slack_s, min_accuracy_percent=min_accuracy, tenant=tenant)


def resident(name: str, one_s: float, accuracy: float) -> ResidentView:
    p50_s = (0.0, *(one_s * (0.5 + 0.5 * b) for b in range(1, 9)))
    return ResidentView(f"t/m/{name}@1", accuracy, p50_s, tuple(1.1 * s for s in p50_s))


VIEWS = [resident("quick", 0.005, 60.0), resident("slow", 0.050, 80.0)]
WORKER = WorkerView("w0", "cpu", {view.variant_id: view for view in VIEWS}, 8)
MENU = make_menu(VIEWS, 8)
QUICK_S = 0.005 * 4.5 / 8.0
LOOSE, STRICT = kind_of(query(0)), kind_of(query(0, 78.0))


def loose(tenant: str = "", priority: int = 0) -> Demand:
    return Demand(LOOSE, tenant, priority)


def strict(tenant: str = "", priority: int = 0) -> Demand:
    return Demand(STRICT, tenant, priority)


def priced(rates: dict[Kind, float]) -> Price:
    return price_of_time(rates, {"cpu": Devices(1, {"t": MENU})}, 1.0, 1.0, 100.0)


def test_the_price_tells_for_whom_there_is_not_time_and_how_much_there_is() -> None:
    """80 a second of 4.5 / 8 x 5 ms, and 60 a second of 4.5 / 8 x 50 ms; one worker."""
    price = priced({LOOSE: 80.0, STRICT: 60.0})
    assert price.per_s == pytest.approx(180.0 / (10 * QUICK_S), rel=0.02)
    assert price.short is not None
    assert price.short.item_s == pytest.approx({LOOSE: QUICK_S, STRICT: 10 * QUICK_S})
    assert price.short.is_worth_it == {STRICT: True}
    assert price.short.spare == pytest.approx(1.0 - 80.0 * QUICK_S)
    assert price.short.capacity == 1.0


def test_where_even_the_quickest_is_too_much_everyone_is_short() -> None:
    rates = {LOOSE: 1000.0, STRICT: 1.0}
    short = priced(rates).short
    assert short is not None
    assert short.is_worth_it == {LOOSE: True, STRICT: False}
    assert short.spare == pytest.approx(1.0)
    admission = admission_of(short, {loose(): 1000.0, strict(): 1.0})
    assert admission.share(loose()) == pytest.approx(1.0 / (1000.0 * QUICK_S))
    assert admission.share(strict()) == 0.0


def test_nothing_that_is_worth_anything_has_no_price() -> None:
    menu = make_menu([ResidentView("t/m/v@1", 0.0, (0.0, 0.1), (0.0, 0.1))], 1)
    price = price_of_time({LOOSE: 100.0}, {"cpu": Devices(1, {"t": menu})}, 1.0, 1.0, 0.0)
    assert (price.per_s, price.short) == (0.0, None)


def test_while_there_is_time_for_all_everyone_is_in() -> None:
    assert admission_of(None, {loose("a"): 5.0}) is EVERYONE
    assert not EVERYONE
    assert EVERYONE.admits(query(3))


def test_tenants_share_what_there_is_and_the_modest_get_all_they_ask_for() -> None:
    """Of 9 workers' time, with 1 s an item: 2 for a, and 3.5 each for b and c."""
    rates = {strict("a"): 2.0, strict("b"): 7.0, strict("c"): 35.0, loose("c"): 9.0}
    short = Short({STRICT: 1.0, LOOSE: 0.0}, {STRICT: True}, 9.0, 9.0)
    admission = admission_of(short, rates)
    shares = {tenant: admission.share(strict(tenant)) for tenant in "abc"}
    assert shares == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.1})
    assert admission.share(loose("c")) == 1.0


@pytest.mark.parametrize(("flood_per_s", "small_per_s"), [(999.0, 1.0), (325.0, 5.4)])
def test_who_asks_for_less_than_an_even_share_is_in_whatever_the_kind(
    flood_per_s: float, small_per_s: float
) -> None:
    """Though what the flood asks for is cheaper, and would earn more."""
    short = priced({LOOSE: flood_per_s, STRICT: small_per_s}).short
    rates = {loose("flood"): flood_per_s, strict("small"): small_per_s}
    admission = admission_of(short, rates)
    assert admission.share(strict("small")) == 1.0
    assert admission.is_first(query(1, 78.0, tenant="small"))
    flood = admission.share(loose("flood")) * flood_per_s * QUICK_S
    assert flood + small_per_s * 10 * QUICK_S == pytest.approx(1.0, abs=0.02)


def test_a_higher_priority_is_in() -> None:
    short = priced({LOOSE: 1000.0, STRICT: 1.0}).short
    rates = {loose(): 900.0, loose(priority=5): 100.0, strict(priority=9): 1.0}
    admission = admission_of(short, rates)
    assert admission.share(strict(priority=9)) == 1.0
    assert admission.share(loose(priority=5)) == 1.0
    left = 1.0 - 100.0 * QUICK_S - 10 * QUICK_S
    assert admission.share(loose()) == pytest.approx(left / (900.0 * QUICK_S))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.9, 1.0])
@pytest.mark.parametrize("step", [1, 13, 144])
def test_a_share_is_served_over_time_whoever_comes_in_turn(share: float, step: int) -> None:
    admission = Admission({loose(): share})
    is_in = [admission.admits(query(number)) for number in range(0, 1000 * step, step)]
    assert sum(is_in) == pytest.approx(1000.0 * share, abs=50.0)
    for first in range(0, 1000, 100):
        assert sum(is_in[first : first + 100]) == pytest.approx(100.0 * share, abs=20.0)


def test_who_is_in_a_small_share_is_in_a_larger_one() -> None:
    few, many = (Admission({loose(): share}) for share in (0.2, 0.6))
    numbers = range(1000)
    assert all(many.admits(query(n)) for n in numbers if few.admits(query(n)))


def test_shares_of_shares() -> None:
    one, other = Admission({loose(): 0.5}), Admission({loose(): 0.5, strict(): 0.1})
    both = one.times(other)
    assert (both.share(loose()), both.share(strict())) == (0.25, 0.1)


def test_a_crowd_holds_enough_of_each_sort_at_a_price_and_of_the_most_urgent_without() -> None:
    asked = [query(n, 78.0 if n % 10 else 0.0) for n in range(100)]
    for is_choosy, loose in ((True, 7), (False, 1)):
        crowd = Crowd(MENU, is_choosy=is_choosy)
        for each in asked:
            reach = MENU.reach_for(each.min_accuracy_percent, 1)
            if not crowd.take(each, 5.0, reach):
                break
        served = [each.min_accuracy_percent for each in crowd.queries]
        assert served.count(78.0) >= 7
        assert served.count(0.0) >= loose
        assert len(served) <= 64


def arrive(policy: BestValue, asked: QueryView, at_s: float) -> None:
    """Have a query come in that what ``WORKER`` holds can serve."""
    p50_s = np.array([view.p50_s[1] for view in VIEWS])
    estimates = Estimates(p50_s, 1.05 * p50_s, 1.1 * p50_s, np.ones(2), np.ones(2))
    placements = tuple(Placement(view.variant_id, "cpu") for view in VIEWS)
    accuracy = np.array([view.accuracy_percent for view in VIEWS])
    idle_s = np.full(2, at_s)
    rows = Candidates(placements, accuracy, np.zeros(2), estimates, idle_s, at_s)
    asked = asked._replace(arrival_s=at_s, deadline_s=at_s + asked.deadline_s - asked.arrival_s)
    assert isinstance(policy.on_arrival(asked, rows, RNG), Defer)


def crowded(per_s: float, strict_part: float = 0.0, **limits: Any) -> BestValue:
    """A policy that has seen so much come for two seconds, up to now (2.0)."""
    policy = BestValue()
    policy.on_idle(WORKER, [], 0.0, RNG)
    for number in range(int(2 * per_s)):
        is_strict = number % 100 < 100.0 * strict_part
        asked = query(number, 78.0 if is_strict else 0.0, **limits)
        arrive(policy, asked, number / per_s)
    return policy


def waiting(*numbers: int, **limits: Any) -> tuple[QueryView, ...]:
    asked = (query(10_000 + number, **limits) for number in numbers)
    return tuple(each._replace(arrival_s=2.0, deadline_s=2.0 + each.deadline_s) for each in asked)


def run_of(policy: BestValue, queries: tuple[QueryView, ...], now_s: float = 2.0) -> Run:
    run = policy.on_idle(WORKER, [QueueView("t", None, None, queries)], now_s, RNG)
    assert isinstance(run, Run)
    return run


def test_beyond_capacity_batches_are_full_though_others_stand_between() -> None:
    """Nine of ten who wait must have the slow variant, for which there is hardly time."""
    queue = sorted(
        (*waiting(*range(270), min_accuracy=78.0, slack_s=0.8), *waiting(*range(300, 330))),
        key=lambda each: (each.query_id * 7) % 300,
    )
    run = run_of(crowded(1000.0, 0.9), tuple(queue))
    assert run.variant_id == "t/m/quick@1"
    assert len(run.queries) >= 6
    assert {each.min_accuracy_percent for each in run.queries} == {0.0}


def test_nobody_is_refused_while_a_device_is_idle() -> None:
    """After a crowd, whoever comes alone is served, though not in and a full batch too slow."""
    policy = crowded(2000.0, slack_s=0.015)
    for number in range(50):
        (alone,) = waiting(number, slack_s=0.015)
        run = run_of(policy, (alone._replace(arrival_s=2.0),))
        assert (run.queries, run.dropped) == ((alone,), ())


def test_a_higher_priority_is_served_beyond_capacity() -> None:
    policy = crowded(2000.0)
    urgent = tuple(each._replace(priority=9) for each in waiting(*range(6)))
    run = run_of(policy, (*urgent, *waiting(*range(10, 60))))
    assert {each.priority for each in run.queries} == {9}


def test_a_higher_priority_is_served_though_time_is_worth_more() -> None:
    policy = crowded(2000.0)
    for number in range(4):
        asked = query(50_000 + number, 78.0)._replace(priority=9)
        arrive(policy, asked, 1.0 + number / 4.0)
    urgent = [each._replace(priority=9) for each in waiting(*range(4), min_accuracy=78.0)]
    run = run_of(policy, (*urgent, *waiting(*range(10, 60))))
    assert {each.priority for each in run.queries} == {9}


def test_a_higher_priority_is_served_though_it_can_outwait_the_crowd() -> None:
    policy = crowded(2000.0)
    urgent = [
        each._replace(priority=9, deadline_s=each.deadline_s + 9.0)
        for each in waiting(*range(4), min_accuracy=78.0)
    ]
    for number, each in enumerate(urgent):
        asked = each._replace(query_id=50_000 + number)
        arrive(policy, asked, 1.0 + number / 4.0)
    run = run_of(policy, (*urgent, *waiting(*range(10, 60))))
    assert {each.priority for each in run.queries} == {9}


def test_a_higher_priority_is_in_though_only_the_patient_are_of_a_lower_one() -> None:
    high, low = Demand(("t", 0.0, 0.5), "", 9), Demand(("t", 0.0, 9.0), "", 0)
    short = Short({high.kind: 0.01}, {high.kind: True}, 0.5, 0.9)
    asked = QueryView(1, "t", 0.0, 0.5, priority=9)
    alone, beside = admission_of(short, {high: 100.0}), admission_of(short, {high: 100.0}, [low])
    assert alone.share(high) == pytest.approx(0.5)
    assert not alone.is_first(asked)
    assert beside.share(high) == 1.0
    assert beside.is_first(asked)


def test_who_cannot_be_served_here_hides_nobody() -> None:
    hopeless = waiting(*range(600), min_accuracy=95.0)
    run = run_of(crowded(10.0), (*hopeless, *waiting(700, 701)))
    assert len(run.queries) == 2


def test_a_query_of_many_items_is_no_crowd() -> None:
    market = Market(0.95, 0.85, 100.0, 5.0, 0.02)
    market.on_idle(WORKER, [], 0.0)
    for number in range(5):
        market.on_query(query(number)._replace(items=8), 4.0 * number)
    (alone,) = waiting(1)
    queue = QueueView("t", None, None, (alone._replace(arrival_s=16.0, deadline_s=18.0),))
    market.on_idle(WORKER, [queue], 16.0)
    assert market.price_on("cpu") == 0.0


def test_a_tenant_that_floods_the_queue_crowds_out_only_itself() -> None:
    policy = crowded(2000.0, tenant="flood")
    for number in range(8):
        arrive(policy, query(9000 + number, tenant="small"), 1.0 + number / 8.0)
    small = waiting(900, 901, tenant="small")
    run = run_of(policy, (*waiting(*range(200), tenant="flood"), *small))
    flood = [each for each in run.queries if each.tenant == "flood"]
    assert len(flood) == 8  # full of those who are in
    again = run_of(policy, (*small, *waiting(*range(200), tenant="flood", slack_s=2.0)))
    assert set(small) <= set(again.queries)


def test_who_is_asked_about_again_does_not_count_again() -> None:
    prices = []
    for times in (1, 500):
        market = Market(0.95, 0.85, 100.0, 5.0, 0.02)
        market.on_idle(WORKER, [], 0.0)
        for number in range(1000):
            market.on_query(query(number), number / 500.0)
        for _ in range(times):
            market.on_query(query(500), 2.0)
        market.on_idle(WORKER, [QueueView("t", None, None, waiting(1))], 2.0)
        prices.append(market.price_on("cpu"))
    assert prices[0] == prices[1] > 0.0


def test_a_long_queue_is_not_gone_through_to_its_end() -> None:
    policy = crowded(1000.0, 0.9)
    seen = 0

    class Counted(tuple[QueryView, ...]):
        def __iter__(self) -> Iterator[QueryView]:
            nonlocal seen
            for each in super().__iter__():
                seen += 1
                yield each

    run_of(policy, waiting(1))  # finds the price
    run_of(policy, Counted(waiting(*range(2048), min_accuracy=78.0)), 2.001)
    assert 0 < seen <= 260
