"""The regression against itself done the long way: refitting."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.features import Points
from modelless.profiler.cost_model.unmeasured.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
)
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior

from .worlds import FloatArray, encoded, multiples, varied

KERNEL = shipped_prior().kernel
NOISE = KERNEL.noise_variance


def calm(seed: int = 0) -> tuple[Points, FloatArray]:
    """Points and values so near to what is expected that none is an outlier."""
    points = encoded(varied(devices=5, models=14, seed=seed), item_effect_seed=seed)
    rng = np.random.default_rng(seed)
    covariance = KERNEL.covariance(points, points) + NOISE * np.eye(len(points))
    return points, 0.3 * (np.linalg.cholesky(covariance) @ rng.normal(size=len(points)))


def long_way(
    points: Points, values: FloatArray, wanted: Points, noise: FloatArray | float = NOISE
) -> tuple[FloatArray, FloatArray]:
    """(mean, variance with the last point's noise), by the textbook."""
    noise = np.broadcast_to(noise, len(points))
    gram = KERNEL.covariance(points, points) + np.diag(noise)
    cross = KERNEL.covariance(points, wanted)
    solved = np.linalg.solve(gram, cross)
    return solved.T @ values, KERNEL.variance(wanted) - (cross * solved).sum(axis=0) + noise[-1]


@pytest.mark.parametrize("seed", range(3))
def test_belief_is_the_textbooks(seed: int) -> None:
    points, values = calm(seed)
    train, rest = np.arange(0, 70, 2), np.arange(1, 70, 2)
    belief = GaussianProcess(KERNEL, points.select(train), values[train]).posterior_at(
        points.select(rest)
    )
    mean, variance = long_way(points.select(train), values[train], points.select(rest))
    np.testing.assert_allclose(belief.mean, mean, atol=1e-5)
    np.testing.assert_allclose(belief.variance + NOISE, variance, rtol=1e-4)


@pytest.mark.parametrize("rows", [[0], [69], [3, 4, 5], list(range(14)), list(range(0, 70, 3))])
def test_left_out_is_as_if_fitted_without(rows: list[int]) -> None:
    points, values = calm()
    error, variance = GaussianProcess(KERNEL, points, values).leave_out(np.array(rows))
    rest = np.setdiff1d(np.arange(len(points)), rows)
    mean, long_variance = long_way(points.select(rest), values[rest], points.select(rows))
    np.testing.assert_allclose(error, values[rows] - mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3)


def test_all_left_out_leaves_the_prior() -> None:
    points, values = calm()
    error, variance = GaussianProcess(KERNEL, points, values).leave_out(np.arange(len(points)))
    np.testing.assert_allclose(error, values, atol=1e-4)
    np.testing.assert_allclose(variance, KERNEL.variance(points) + NOISE, rtol=1e-3)


@pytest.mark.parametrize("shots", [1, 2, 10, 40])
def test_adapting_is_as_if_the_shots_had_been_trained_on(shots: int) -> None:
    points, values = calm(4)
    order = np.random.default_rng(1).permutation(len(points))
    train, given, rest = np.split(order, [20, 20 + shots])
    process = GaussianProcess(KERNEL, points.select(train), values[train])
    adapted = ConditionedProcess(process, process.posterior_at(points.select(given)), values[given])
    mean, variance = adapted.predict(process.posterior_at(points.select(rest)))
    both = np.concatenate([train, given])
    noise = np.repeat([NOISE, adapted.noise_variance], [20, shots])  # many tell their own
    long_mean, long_variance = long_way(
        points.select(both), values[both], points.select(rest), noise
    )
    np.testing.assert_allclose(mean, long_mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3)


def test_adapting_to_nothing_changes_nothing() -> None:
    points, values = calm()
    process = GaussianProcess(KERNEL, points.select(range(30)), values[:30])
    belief = process.posterior_at(points.select(range(30, 70)))
    adapted = ConditionedProcess(process, belief.select(np.arange(0)), np.empty(0))
    mean, variance = adapted.predict(belief)
    np.testing.assert_array_equal(mean, belief.mean)
    np.testing.assert_array_equal(variance, belief.variance + NOISE)
    assert [each.shape for each in adapted.leave_groups_out([])] == [(0,), (0,)]


def test_a_process_that_saw_nothing_believes_the_prior() -> None:
    points, values = calm()
    process = GaussianProcess(KERNEL, points.select([]), np.empty(0))
    belief = process.posterior_at(points)
    assert not belief.mean.any()
    np.testing.assert_allclose(belief.variance, KERNEL.variance(points))
    assert process.posterior_at(points.select([])).mean.shape == (0,)
    adapted = ConditionedProcess(process, belief.select(np.arange(10)), values[:10])
    mean, variance = adapted.predict(belief)
    long_mean, long_variance = long_way(points.select(range(10)), values[:10], points)
    np.testing.assert_allclose(mean, long_mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3, atol=1e-6)


def test_posterior_covariance_is_symmetric_and_semidefinite() -> None:
    points, values = calm()
    process = GaussianProcess(KERNEL, points.select(range(40)), values[:40])
    belief = process.posterior_at(points)
    covariance = process.covariance(belief, belief)
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-10)
    assert np.linalg.eigvalsh(covariance).min() >= -1e-7
    np.testing.assert_allclose(np.diag(covariance), belief.variance, atol=1e-8)


def test_the_same_point_many_times_is_no_trouble() -> None:
    points, values = calm()
    again = np.zeros(200, dtype=np.intp)
    process = GaussianProcess(KERNEL, points.select(again), values[again])
    belief = process.posterior_at(points.select([0]))
    assert belief.mean == pytest.approx(values[:1], abs=0.01)
    assert 0.0 <= belief.variance[0] <= NOISE / 100


@pytest.mark.parametrize("size", [1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_one_training_outlier_moves_the_others_little(size: float, sign: float) -> None:
    points, values = calm()
    points, values = points.select(range(56)), values[:56]
    spoiled = values.copy()
    spoiled[20] += sign * size
    others = np.setdiff1d(np.arange(56), [20])
    before = GaussianProcess(KERNEL, points, values).posterior_at(points.select(others)).mean
    after = GaussianProcess(KERNEL, points, spoiled).posterior_at(points.select(others)).mean
    assert np.abs(after - before).mean() < 0.1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_values_may_be_anything(count: int) -> None:
    points = encoded(multiples({"a": 1.0}, models=count))
    for values in (np.zeros(count), np.full(count, 40.0), np.linspace(-40.0, 40.0, count)):
        process = GaussianProcess(KERNEL, points, values)
        belief = process.posterior_at(points)
        assert np.isfinite(belief.mean).all()
        assert np.isfinite(process.leave_out(np.arange(count))).all()
