"""Judged points are not trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelless.profiler.cost_model.evaluation.hold_out import MOST_JUDGED, evaluate, plan_cases
from modelless.profiler.cost_model.unmeasured.features import sort_rows
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from . import worlds


def row(device: str, number: int, gmacs: float) -> TableRow:
    return worlds.row(device=device, model=f"net{number}", gmacs=gmacs)


def test_a_table_that_is_given_twice_is_unseen_all_the_same() -> None:
    rows = [row(device, number, 1.0) for device in ("a", "b") for number in range(5)]
    earlier = [row("a", number, 1.0) for number in range(5, 8)]
    first, second = plan_cases(rows, [*rows, *earlier], [])
    assert [one.device for one in first.wanted] == ["a"] * 5
    assert [one.device for one in first.training] == ["b"] * 5 + ["a"] * 3
    assert [one.device for one in second.training] == ["a"] * 8


def test_the_most_shots_leave_an_item_to_judge() -> None:
    sizes = {0: 3, 1: 2, 2: 4}  # batches of each model
    rows = [
        replace(row("a", number, 1.0), batch=batch)
        for number, batches in sizes.items()
        for batch in range(1, batches + 1)
    ]
    (case,) = plan_cases(rows, None, [])
    assert case.most_shots == 7
    scores = evaluate(case, shipped_prior(), (7, 8), 1)
    assert {(one.shots, one.points) for one in scores} == {(7, 2)}


@pytest.mark.slow
def test_of_a_very_large_device_so_many_rows_are_judged_as_memory_allows() -> None:
    rows = [row("a", number, 1.0) for number in range(MOST_JUDGED + 7)] + [row("b", 0, 1.0)]
    large, small = plan_cases(rows, None, [])
    assert (len(large.wanted), large.passed_over) == (MOST_JUDGED, 7)
    assert (len(small.wanted), small.passed_over) == (1, 0)
    assert list(large.wanted) == [each for each in sort_rows(rows) if each in set(large.wanted)]
    assert len(small.training) == MOST_JUDGED + 7
    again, _ = plan_cases(list(reversed(rows)), None, [])
    assert again == large
