"""The course of a run: counted by arrival, bounded, and of the same sums as the summary."""

from __future__ import annotations

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.series import Series
from modelless.controller.sim.summary import Summary

from .worlds import world


def test_queries_count_where_they_arrived() -> None:
    series = Series()
    series.add(2.5, 80.0, is_good=True, cost_usd=0.25)
    series.add(0.1, None, is_good=False)
    series.add(2.9, 60.0, is_good=False, cost_usd=0.5)
    assert series.figures() == {
        "step_s": 1.0,
        "queries": [1, 0, 2],
        "good": [0, 0, 1],
        "answered": [0, 0, 2],
        "mean_accuracy": [None, None, 70.0],
        "cost_usd": [0.0, 0.0, 0.75],
        "rent_usd": [0.0, 0.0, 0.0],
    }


def test_rent_counts_while_a_device_is_there() -> None:
    series = Series()
    series.rent(0.0, 9.0, 1.0)
    series.rent(0.5, 2.25, 2.0)
    series.rent(0.5, 2.25, 2.0)
    series.add(3.5, None, is_good=False)
    assert series.figures()["rent_usd"] == [3.0, 5.0, 2.0, 1.0]


def test_there_are_never_more_points_than_wanted() -> None:
    series = Series(most=4)
    series.rent(0.0, 6.0, 1.0)
    for second in range(11):
        series.add(float(second), float(second), is_good=second % 2 == 0, cost_usd=1.0)
    assert series.figures() == {
        "step_s": 4.0,
        "queries": [4, 4, 3],
        "good": [2, 2, 2],
        "answered": [4, 4, 3],
        "mean_accuracy": [1.5, 5.5, 9.0],
        "cost_usd": [4.0, 4.0, 3.0],
        "rent_usd": [4.0, 2.0, 0.0],
    }
    series.add(1e6, None, is_good=False)
    assert len(series.figures()["queries"]) <= 4
    assert sum(series.figures()["queries"]) == 12


def test_the_sums_are_the_summary_s() -> None:
    summary = Summary(7, "small", series=Series(most=3))
    figures = simulate(world(duration_s=5), summary=summary).figures()
    assert summary.series is not None
    course = summary.series.figures()
    assert sum(course["queries"]) == figures["queries"]
    assert sum(course["good"]) == figures["good"]
    assert sum(course["answered"]) == figures["answered"]
    weighed = sum(
        mean * count
        for mean, count in zip(course["mean_accuracy"], course["answered"], strict=True)
        if mean is not None
    )
    assert sum(course["cost_usd"]) == pytest.approx(figures["cost_usd"])
    assert 0.9 * figures["rent_usd"] < sum(course["rent_usd"]) <= figures["rent_usd"]
    assert weighed / figures["answered"] == pytest.approx(figures["mean_accuracy"], abs=1e-3)


def test_nobody_pays_for_a_course_that_is_not_wanted() -> None:
    assert simulate(world(duration_s=0.5)).series is None
