"""The worth of a measurement is the reduction of the expected errors of all points."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.profiler.cost_model.learned.experiment_design import ErrorReduction

from .worlds import FloatArray

POINTS, NOISE_VARIANCE = 12, 0.05


def covariance_of(seed: int) -> FloatArray:
    """Of some points that tell of one another; no two alike."""
    roots = np.random.default_rng(seed).normal(size=(POINTS, POINTS - 3))
    return np.asarray(roots @ roots.T)


def left_after(covariance: FloatArray, measured: list[int]) -> float:
    """The sum of all standard deviations once some points were measured, all at once."""
    seen = covariance[np.ix_(measured, measured)] + NOISE_VARIANCE * np.eye(len(measured))
    across = covariance[measured]
    left = np.diag(covariance - across.T @ np.linalg.solve(seen, across))
    return float(np.sqrt(left + NOISE_VARIANCE).sum())


@pytest.mark.parametrize("before", [[], [4], [7, 0, 3]])
def test_a_gain_is_what_measuring_takes_off(before: list[int]) -> None:
    covariance = covariance_of(len(before))
    gains = ErrorReduction(covariance, NOISE_VARIANCE)
    for row in before:
        gains.condition_on(row)
    expected = [
        left_after(covariance, before) - left_after(covariance, [*before, row])
        for row in range(POINTS)
        if row not in before
    ]
    others = np.setdiff1d(np.arange(POINTS), before)
    np.testing.assert_allclose(gains.by_point()[others], expected, rtol=1e-8)


def test_the_callers_covariance_stays_as_it_was() -> None:
    covariance = covariance_of(0)
    ErrorReduction(covariance, NOISE_VARIANCE).condition_on(2)
    np.testing.assert_array_equal(covariance, covariance_of(0))


def test_what_tells_of_many_is_worth_more_than_what_is_least_known() -> None:
    covariance = np.diag([1.5, *[1.0] * 9])
    covariance[1:, 1:] = 0.8 + 0.2 * np.eye(9)
    gains = ErrorReduction(covariance, NOISE_VARIANCE).by_point()
    assert gains[0] < 0.3 * gains[1:].min()
