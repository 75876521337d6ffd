"""Bands hold what they promise where the model's own assumptions are true, and are told by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.mixture_of_experts import MixtureOfExperts
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import FloatArray, IntArray, band_width, encoded, multiples, predict, row

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
    share = np.mean([inside_bands(0, seed)[0] for seed in range(4)])
    assert 0.80 <= share <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_bands_narrow_as_shots_are_added(seed: int) -> None:
    none, five, ten = (inside_bands(shots, seed)[1] for shots in (0, 5, 10))
    assert none > 2.0 * five
    assert five > ten


class Wrong:
    """A member whose left-out errors are known."""

    def __init__(self, errors: Sequence[float]) -> None:
        self._errors = np.array(errors, dtype=np.float64)

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        return np.zeros(len(rows)), np.ones(len(rows))

    def leave_items_out(self, groups: Sequence[IntArray]) -> tuple[FloatArray, FloatArray]:
        return self._errors, np.ones(len(self._errors))


def deviations(errors: Sequence[float], size: int = 1) -> float:
    """The band of one member with these errors, of items of ``size`` measurements each."""
    groups = np.arange(len(errors)).reshape(-1, size)
    return MixtureOfExperts([(Wrong(errors), 1.0)], list(groups)).band_deviations


def test_large_left_out_errors_widen_bands_and_small_ones_narrow_them() -> None:
    usual = deviations([])
    assert usual > 1.6449  # a Gaussian's
    assert deviations([3.0, -3.5, 2.8]) > 1.5 * usual
    assert deviations([0.1, -0.05, 0.1]) < 0.6 * usual
    assert deviations([0.0] * 50) > 0.0


def test_many_errors_decide_and_few_do_so_in_part() -> None:
    shares = [np.log(deviations([2.0] * count) / deviations([])) for count in (1, 5, 50)]
    assert shares == sorted(shares)
    assert shares[0] < 0.4 * np.log(2.0)
    assert shares[2] > 0.9 * np.log(2.0)


def test_signs_and_order_do_not_matter_and_an_outlier_is_bounded() -> None:
    assert deviations([0.4, -2.0]) == pytest.approx(deviations([2.0, 0.4]))
    errors = [1.0, -1.0, 0.8, 1.2, 1.0, 0.9, 1.0]
    assert deviations([*errors, 1e6]) < 2.0 * deviations(errors)


def test_measurements_of_one_item_count_as_one() -> None:
    assert deviations([2.0] * 6, size=3) == pytest.approx(deviations([2.0] * 2))


def test_one_similar_device_of_unknown_speed_does_not_narrow_the_band() -> None:
    unknown = predict(multiples({"a": 1.0, "b": 20.0}), "b", 0)
    known = predict(multiples({"rtx3090": 1.0, "rtx4090": 1.0}, device_kind="gpu"), "rtx4090", 0)
    assert band_width(unknown[0]) > 100.0
    assert band_width(known[0]) == pytest.approx(10.0)
    truth_ms = unknown[1]
    assert ((truth_ms >= unknown[0].low_ms) & (truth_ms <= unknown[0].high_ms)).mean() > 0.8
