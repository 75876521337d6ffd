"""The regression against itself done the long way: refitting."""

from __future__ import annotations

import numpy as np
import pytest

from modelless.profiler.cost_model.learned.points import Points
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.cost_model.learned.process import Adapted, Process

from .worlds import FloatArray, encoded, multiples, varied

KERNEL = shipped_prior().kernel
NOISE = KERNEL.noise_variance


def calm(seed: int = 0) -> tuple[Points, FloatArray]:
    """Points and values so near to what is expected that none is an outlier."""
    points = encoded(varied(devices=5, models=14, seed=seed), elsewhere_seed=seed)
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
    belief = Process(KERNEL, points.take(train), values[train]).believe(points.take(rest))
    mean, variance = long_way(points.take(train), values[train], points.take(rest))
    np.testing.assert_allclose(belief.mean, mean, atol=1e-5)
    np.testing.assert_allclose(belief.variance + NOISE, variance, rtol=1e-4)


@pytest.mark.parametrize("rows", [[0], [69], [3, 4, 5], list(range(14)), list(range(0, 70, 3))])
def test_left_out_is_as_if_fitted_without(rows: list[int]) -> None:
    points, values = calm()
    error, variance = Process(KERNEL, points, values).left_out(np.array(rows))
    rest = np.setdiff1d(np.arange(len(points)), rows)
    mean, long_variance = long_way(points.take(rest), values[rest], points.take(rows))
    np.testing.assert_allclose(error, values[rows] - mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3)


def test_all_left_out_leaves_the_prior() -> None:
    points, values = calm()
    error, variance = Process(KERNEL, points, values).left_out(np.arange(len(points)))
    np.testing.assert_allclose(error, values, atol=1e-4)
    np.testing.assert_allclose(variance, KERNEL.variance(points) + NOISE, rtol=1e-3)


@pytest.mark.parametrize("shots", [1, 2, 10, 40])
def test_adapting_is_as_if_the_shots_had_been_trained_on(shots: int) -> None:
    points, values = calm(4)
    order = np.random.default_rng(1).permutation(len(points))
    train, given, rest = np.split(order, [20, 20 + shots])
    process = Process(KERNEL, points.take(train), values[train])
    adapted = Adapted(process, process.believe(points.take(given)), values[given])
    mean, variance = adapted.predict(process.believe(points.take(rest)))
    both = np.concatenate([train, given])
    noise = np.repeat([NOISE, adapted.noise_variance], [20, shots])  # many tell their own
    long_mean, long_variance = long_way(points.take(both), values[both], points.take(rest), noise)
    np.testing.assert_allclose(mean, long_mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3)


def test_adapting_to_nothing_changes_nothing() -> None:
    points, values = calm()
    process = Process(KERNEL, points.take(range(30)), values[:30])
    belief = process.believe(points.take(range(30, 70)))
    adapted = Adapted(process, belief.take(np.arange(0)), np.empty(0))
    mean, variance = adapted.predict(belief)
    np.testing.assert_array_equal(mean, belief.mean)
    np.testing.assert_array_equal(variance, belief.variance + NOISE)
    assert [each.shape for each in adapted.left_out()] == [(0,), (0,)]


def test_a_process_that_saw_nothing_believes_the_prior() -> None:
    points, values = calm()
    process = Process(KERNEL, points.take([]), np.empty(0))
    belief = process.believe(points)
    assert not belief.mean.any()
    np.testing.assert_allclose(belief.variance, KERNEL.variance(points))
    assert process.believe(points.take([])).mean.shape == (0,)
    adapted = Adapted(process, belief.take(np.arange(10)), values[:10])
    mean, variance = adapted.predict(belief)
    long_mean, long_variance = long_way(points.take(range(10)), values[:10], points)
    np.testing.assert_allclose(mean, long_mean, atol=1e-4)
    np.testing.assert_allclose(variance, long_variance, rtol=1e-3, atol=1e-6)


def test_posterior_covariance_is_symmetric_and_semidefinite() -> None:
    points, values = calm()
    process = Process(KERNEL, points.take(range(40)), values[:40])
    belief = process.believe(points)
    covariance = process.covariance(belief, belief)
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-10)
    assert np.linalg.eigvalsh(covariance).min() >= -1e-7
    np.testing.assert_allclose(np.diag(covariance), belief.variance, atol=1e-8)


def test_the_same_point_many_times_is_no_trouble() -> None:
    points, values = calm()
    again = np.zeros(200, dtype=np.intp)
    process = Process(KERNEL, points.take(again), values[again])
    belief = process.believe(points.take([0]))
    assert belief.mean == pytest.approx(values[:1], abs=0.01)
    assert 0.0 <= belief.variance[0] <= NOISE / 100


@pytest.mark.parametrize("size", [1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_one_training_outlier_moves_the_others_little(size: float, sign: float) -> None:
    points, values = calm()
    points, values = points.take(range(56)), values[:56]
    spoiled = values.copy()
    spoiled[20] += sign * size
    others = np.setdiff1d(np.arange(56), [20])
    before = Process(KERNEL, points, values).believe(points.take(others)).mean
    after = Process(KERNEL, points, spoiled).believe(points.take(others)).mean
    assert np.abs(after - before).mean() < 0.1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_values_may_be_anything(count: int) -> None:
    points = encoded(multiples({"a": 1.0}, models=count))
    for values in (np.zeros(count), np.full(count, 40.0), np.linspace(-40.0, 40.0, count)):
        process = Process(KERNEL, points, values)
        belief = process.believe(points)
        assert np.isfinite(belief.mean).all()
        assert np.isfinite(process.left_out(np.arange(count))).all()
