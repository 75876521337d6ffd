"""The course of a run: counted by arrival, bounded, and of the same sums as the summary."""

from __future__ import annotations

import pytest

from modelless.controller.sim.run import simulate
from modelless.controller.sim.series import Series
from modelless.controller.sim.summary import Summary

from .worlds import world


def test_queries_count_where_they_arrived() -> None:
    series = Series()
    series.add(2.5, 80.0, is_good=True)
    series.add(0.1, None, is_good=False)
    series.add(2.9, 60.0, is_good=False)
    assert series.figures() == {
        "step_s": 1.0,
        "queries": [1, 0, 2],
        "good": [0, 0, 1],
        "answered": [0, 0, 2],
        "mean_accuracy": [None, None, 70.0],
    }


def test_there_are_never_more_points_than_wanted() -> None:
    series = Series(most=4)
    for second in range(11):
        series.add(float(second), float(second), is_good=second % 2 == 0)
    assert series.figures() == {
        "step_s": 4.0,
        "queries": [4, 4, 3],
        "good": [2, 2, 2],
        "answered": [4, 4, 3],
        "mean_accuracy": [1.5, 5.5, 9.0],
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
    assert weighed / figures["answered"] == pytest.approx(figures["mean_accuracy"], abs=1e-3)


def test_nobody_pays_for_a_course_that_is_not_wanted() -> None:
    assert simulate(world(duration_s=0.5)).series is None
