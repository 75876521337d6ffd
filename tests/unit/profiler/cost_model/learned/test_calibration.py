"""Bands hold what they promise where the model's own assumptions are true, and are told by it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from modelless.profiler.cost_model.learned.calibration import (
    ErrorScores,
    score_devices,
    score_families,
)
from modelless.profiler.cost_model.learned.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
)
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import band_width, drawn, encoded, predict, row

KERNEL = shipped_prior().kernel
DEVICES, MODELS = 12, 22


def rows_as_supposed(seed: int) -> list[TableRow]:
    """Rows whose latencies are drawn from the shipped prior."""
    rng = np.random.default_rng(seed)
    rows = [
        row(
            device=f"d{device}",
            device_kind=("cpu", "gpu", "npu")[device % 3],
            model=f"net{number}",
            family=f"family-{number % 5}",
            gmacs=float(np.exp(rng.normal())),
            params_m=float(np.exp(rng.normal(2.0))),
        )
        for device in range(DEVICES)
        for number in range(MODELS)
    ]
    points = encoded(rows)
    covariance = KERNEL.covariance(points, points) + KERNEL.noise_variance * np.eye(len(points))
    values = np.linalg.cholesky(covariance) @ rng.normal(size=len(points))
    latency_ms = np.exp(values + points.roofline_log)
    return [
        replace(one, latency_ms=float(value)) for one, value in zip(rows, latency_ms, strict=True)
    ]


@cache
def inside_bands(shots: int, seed: int) -> tuple[float, float]:
    """(share of all devices' rows in their 90 % bands, median width), each device left out."""
    rows = rows_as_supposed(seed)
    inside, widths = [], []
    for device in range(DEVICES):
        prediction, true_ms = predict(rows, f"d{device}", shots)
        inside += ((true_ms >= prediction.low_ms) & (true_ms <= prediction.high_ms)).tolist()
        widths.append(band_width(prediction))
    return float(np.mean(inside)), float(np.median(widths))


@pytest.mark.slow
@pytest.mark.parametrize("shots", [5, 10])
def test_bands_hold_nine_in_ten_where_the_model_is_true(shots: int) -> None:
    share = np.mean([inside_bands(shots, seed)[0] for seed in range(2)])
    assert 0.85 <= share <= 0.95


@pytest.mark.slow
def test_bands_without_shots_hold_about_nine_in_ten_too() -> None:
    share = np.mean([inside_bands(0, seed)[0] for seed in range(2)])
    assert 0.80 <= share <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_bands_narrow_as_shots_are_added(seed: int) -> None:
    none, five, ten = (inside_bands(shots, seed)[1] for shots in (0, 5, 10))
    assert none > 2.0 * five
    assert five > ten


@pytest.mark.slow
def test_bands_follow_from_the_process_alone() -> None:
    """The same without ``elsewhere``, which the draw above does not know of."""
    inside = []
    for seed in range(2, 4):
        rows = rows_as_supposed(seed)
        points = encoded(rows)
        values = np.log([one.latency_ms for one in rows]) - points.roofline_log
        devices = points.level("device")
        for device in np.unique(devices):
            own = np.flatnonzero(devices == device)
            other = np.flatnonzero(devices != device)
            process = GaussianProcess(KERNEL, points.select(other), values[other])
            scores = score_devices(process, np.random.default_rng(0))
            belief = process.posterior_at(points.select(own))
            given, rest = drawn(10, len(own))
            adapted = ConditionedProcess(process, belief.select(given), values[own][given])
            mean, variance = adapted.predict(belief.select(rest))
            error, error_variance = adapted.leave_groups_out(np.arange(10)[:, None])
            width = scores.quantile(0.9, error / np.sqrt(error_variance)) * np.sqrt(variance)
            inside += (np.abs(values[own][rest] - mean) <= width).tolist()
    assert 0.85 <= np.mean(inside) <= 0.95


def scores(values: list[float]) -> ErrorScores:
    return ErrorScores(np.array(values), np.ones(len(values)), 0.0)


def test_quantiles_ascend() -> None:
    some = scores([0.1, 0.5, 1.0, 1.5, 2.5])
    for shot_errors in (np.empty(0), np.array([0.3, -2.0])):
        found = [some.quantile(share, shot_errors) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]
        assert found == sorted(found)
        assert found[0] > 0.0


def test_shots_that_are_far_off_widen_and_those_that_are_near_narrow() -> None:
    some = scores([0.1, 0.5, 1.0, 1.5, 2.5])
    usual = some.quantile(0.9, np.array([0.9, -1.1, 1.0]))
    assert some.quantile(0.9, np.array([3.0, -3.5, 2.8])) > 1.3 * usual
    assert some.quantile(0.9, np.array([0.1, -0.05, 0.1])) < usual
    assert some.quantile(0.9, np.zeros(5)) > 0.0


def test_the_sign_and_order_of_errors_do_not_matter() -> None:
    some = scores([0.1, 0.5, 1.0, 1.5, 2.5])
    assert some.quantile(0.9, np.array([0.4, -2.0])) == pytest.approx(
        some.quantile(0.9, np.array([2.0, 0.4]))
    )


def test_one_far_error_counts_as_less_far() -> None:
    some = scores([0.1, 0.5, 1.0, 1.5, 2.5])
    errors = np.array([1.0, -1.0, 0.8, 1.2, 1.0, 0.9, 1.0])
    far = np.append(errors, 1e6)
    assert some.quantile(0.9, far) < 2.0 * some.quantile(0.9, errors)


@pytest.mark.parametrize("count", [0, 1, 19, 30])
def test_where_no_device_can_be_left_out_a_heavy_tail_is_supposed(count: int) -> None:
    points = encoded([row(model=f"net{number}") for number in range(count)])
    process = GaussianProcess(KERNEL, points, np.zeros(count))
    found = score_devices(process, np.random.default_rng(0))
    assert found.quantile(0.9, np.empty(0)) > 1.6449  # a Gaussian's


def test_a_device_that_is_badly_predicted_makes_wider_bands() -> None:
    rows = rows_as_supposed(0)[: 6 * MODELS]
    points = encoded(rows)
    values = np.log([one.latency_ms for one in rows]) - points.roofline_log
    noisy = values + np.random.default_rng(1).normal(0.0, 0.8, len(values))
    calm, wild = (
        score_devices(GaussianProcess(KERNEL, points, each), np.random.default_rng(0)).quantile(
            0.9, np.empty(0)
        )
        for each in (values, noisy)
    )
    assert wild > 1.3 * calm


def test_models_new_to_a_known_device_have_narrower_bands_than_a_new_device() -> None:
    rows = rows_as_supposed(0)[: 6 * MODELS]
    points = encoded(rows)
    values = np.log([one.latency_ms for one in rows]) - points.roofline_log
    found = score_families(GaussianProcess(KERNEL, points, 0.3 * values))
    new_device = score_devices(
        GaussianProcess(KERNEL, points, 0.3 * values), np.random.default_rng(0)
    )
    assert found.quantile(0.9, np.empty(0)) < new_device.quantile(0.9, np.empty(0))
