"""Rates from reports that come at any time."""

from __future__ import annotations

from itertools import product

import pytest

from modelless.controller.control.messages import MemberReport
from modelless.controller.control.rates import RateWindow

WINDOW_S = 0.9


def test_one_query_in_a_moment_is_no_high_rate() -> None:
    window = RateWindow(WINDOW_S)
    regular = MemberReport(
        "g", True, None, interval_s=1.0, arrivals={"a": 10}, kinds={("a", 1.0, 0.0): [10, 20]}
    )
    assert window.add(regular) is regular
    early = MemberReport(
        "g",
        True,
        None,
        interval_s=0.05,
        arrivals={"a": 1},
        unmet={"a": 1},
        outcomes={"refused": 1},
        kinds={("a", 1.0, 0.0): [1, 1]},
        served={"v": 1},
    )
    told = window.add(early)
    assert told.interval_s == pytest.approx(1.05)
    assert (told.arrivals, told.unmet, told.outcomes) == ({"a": 11}, {"a": 1}, {"refused": 1})
    assert told.kinds == {("a", 1.0, 0.0): (11, 21)}
    assert told.served == {"v": 1}
    assert window.add(regular).interval_s == pytest.approx(1.05), "the early one counts a second"
    assert window.add(regular) is regular, "enough by itself"
    for _ in range(1000):
        told = window.add(early)
    assert told.interval_s == pytest.approx(0.95, abs=0.051)


@pytest.mark.parametrize(
    ("intervals_s", "place"),
    [
        ((1.0, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.5, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.05, 1.0, 1.0), 2),
        ((1.0, 0.05, 0.3, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.86, 1.0, 1.0), 2),
        ((1.0, 0.05, 1.0, 1.0), 2),
        ((1.0, 0.5, 0.5, 1.0, 1.0, 1.0), 2),
    ],
)
def test_a_query_weighs_as_much_as_any_whenever_its_report_was_made(
    intervals_s: tuple[float, ...], place: int
) -> None:
    window = RateWindow(WINDOW_S)
    queries = 0.0
    for number, interval_s in enumerate(intervals_s):
        came = {"a": 1} if number == place else {}
        told = window.add(MemberReport("g", True, None, interval_s=interval_s, arrivals=came))
        queries += told.arrivals.get("a", 0) / told.interval_s * interval_s
    assert queries == pytest.approx(1.0, abs=0.1)
    assert "a" not in told.arrivals


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_query_weighs_half_as_much_again_at_most_whatever_comes_early(
    place: int,
) -> None:
    for early_s in product((0.05, 0.3, 0.5, 0.86, 1.0), repeat=4):
        window = RateWindow(WINDOW_S)
        queries = 0.0
        for number, interval_s in enumerate((1.0, *early_s, 1.0, 1.0, 1.0)):
            came = {"a": 1} if number == place else {}
            told = window.add(MemberReport("g", True, None, interval_s=interval_s, arrivals=came))
            queries += told.arrivals.get("a", 0) / told.interval_s * interval_s
        assert 0.9 <= queries < 1.55


def test_the_first_report_of_all_is_no_high_rate() -> None:
    told = RateWindow(WINDOW_S).add(
        MemberReport("g", True, None, interval_s=0.05, arrivals={"a": 1})
    )
    assert told.arrivals["a"] / told.interval_s == pytest.approx(1 / 0.9)
