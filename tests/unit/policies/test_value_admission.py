"""Who is served when there is not time for everyone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelless.policies.selection.best_value import BestValue
from modelless.policies.selection.value_admission import EVERYONE, Admission, admission_of
from modelless.policies.selection.value_crowd import Crowd
from modelless.policies.selection.value_menu import make_menu
from modelless.policies.selection.value_price import Devices, Short, kind_of, price_of_time
from modelless.policies.views import QueryView, QueueView, ResidentView, Run, WorkerView

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
LOOSE, STRICT = kind_of(query(0)), kind_of(query(0, 78.0))


def test_the_price_tells_for_whom_there_is_not_time_and_how_much_there_is() -> None:
    """80 a second of 4.5 / 8 x 5 ms, and 60 a second of 4.5 / 8 x 50 ms; one worker."""
    rates = {LOOSE: 80.0, STRICT: 60.0}
    price = price_of_time(rates, {"cpu": Devices(1, {"t": MENU})}, 1.0, 1.0, 100.0)
    strict_s = 0.050 * 4.5 / 8.0
    assert price.per_s == pytest.approx(180.0 / strict_s, rel=0.02)
    assert price.short is not None
    assert price.short.item_s == pytest.approx({STRICT: strict_s})
    assert price.short.spare == pytest.approx(1.0 - 80.0 * 0.005 * 4.5 / 8.0)


def test_where_even_the_quickest_is_too_much_everyone_is_short() -> None:
    rates = {LOOSE: 1000.0, STRICT: 1.0}
    price = price_of_time(rates, {"cpu": Devices(1, {"t": MENU})}, 1.0, 1.0, 100.0)
    assert price.short is not None
    assert price.short.item_s == pytest.approx({LOOSE: 0.005 * 4.5 / 8.0, STRICT: math.inf})
    assert price.short.spare == pytest.approx(1.0)
    admission = admission_of(price.short, {(LOOSE, ""): 1000.0, (STRICT, ""): 1.0})
    assert admission.share((LOOSE, "")) == pytest.approx(1.0 / (1000.0 * 0.005 * 4.5 / 8.0))
    assert admission.share((STRICT, "")) == 0.0


def test_while_there_is_time_for_all_everyone_is_in() -> None:
    assert admission_of(None, {(LOOSE, "a"): 5.0}) is EVERYONE
    assert not EVERYONE
    assert EVERYONE.admits(query(3))


def test_tenants_share_what_there_is_and_the_modest_get_all_they_ask_for() -> None:
    """Of 9 workers' time, with 1 s an item: 2 for a, and 3.5 each for b and c."""
    rates = {(STRICT, "a"): 2.0, (STRICT, "b"): 7.0, (STRICT, "c"): 35.0, (LOOSE, "c"): 9.0}
    admission = admission_of(Short({STRICT: 1.0}, 9.0), rates)
    shares = {tenant: admission.share((STRICT, tenant)) for tenant in "abc"}
    assert shares == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.1})
    assert admission.share((LOOSE, "c")) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.9, 1.0])
def test_a_share_is_served_evenly_over_time(share: float) -> None:
    admission = Admission({(LOOSE, ""): share})
    is_in = [admission.admits(query(number)) for number in range(5000)]
    for first in range(0, 5000, 100):
        assert sum(is_in[first : first + 100]) == pytest.approx(100.0 * share, abs=2.0)


def test_who_is_in_a_small_share_is_in_a_larger_one() -> None:
    few, many = (Admission({(LOOSE, ""): share}) for share in (0.2, 0.6))
    numbers = range(1000)
    assert all(many.admits(query(n)) for n in numbers if few.admits(query(n)))


def test_shares_of_shares() -> None:
    one, other = Admission({(LOOSE, ""): 0.5}), Admission({(LOOSE, ""): 0.5, (STRICT, ""): 0.1})
    both = one.times(other)
    assert (both.share((LOOSE, "")), both.share((STRICT, ""))) == (0.25, 0.1)


def test_a_crowd_holds_enough_of_each_sort_at_a_price_and_of_the_most_urgent_without() -> None:
    asked = [query(n, 78.0 if n % 10 else 0.0) for n in range(100)]
    for is_scarce, loose in ((True, 7), (False, 1)):
        crowd = Crowd(MENU, is_scarce=is_scarce)
        for each in asked:
            reach = MENU.reach_for(each.min_accuracy_percent, 1)
            if not crowd.take(each, 5.0, reach):
                break
        served = [each.min_accuracy_percent for each in crowd.queries]
        assert served.count(78.0) >= 7
        assert served.count(0.0) >= loose
        assert len(served) <= 64


def test_beyond_capacity_batches_are_full_though_others_stand_between() -> None:
    """Nine of ten who wait must have the slow variant, for which there is no time at all."""
    policy = BestValue()
    policy.on_idle(WORKER, [], 0.0, RNG)
    waiting = [query(n, 0.0 if n % 10 == 0 else 78.0, slack_s=0.9) for n in range(300)]
    for number in range(2000):
        now_s = number / 1000.0
        policy._market.on_query(query(number, 0.0 if number % 10 == 0 else 78.0), now_s)
    late = [each._replace(arrival_s=2.0, deadline_s=2.9) for each in waiting]
    run = policy.on_idle(WORKER, [QueueView("t", None, None, tuple(late))], 2.0, RNG)
    assert isinstance(run, Run)
    assert run.variant_id == "t/m/quick@1"
    assert len(run.queries) >= 6
    assert {each.min_accuracy_percent for each in run.queries} == {0.0}
