"""What is judged is not learned from."""

from __future__ import annotations

from modelless.profiler.learning.evaluation import plan_trials

from .test_review_calibration import row


def test_a_table_that_is_given_twice_is_unseen_all_the_same() -> None:
    rows = [row(device, number, 1.0) for device in ("a", "b") for number in range(5)]
    earlier = [row("a", number, 1.0) for number in range(5, 8)]
    first, second = plan_trials(rows, [*rows, *earlier], [])
    assert [one.device for one in first.wanted] == ["a"] * 5
    assert [one.device for one in first.training] == ["b"] * 5 + ["a"] * 3
    assert [one.device for one in second.training] == ["a"] * 8
