"""Leaving devices out: what is left out is wholly left out, and outliers do not hide."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.calibration import score_devices
from modelless.profiler.cost_model.learned.features import NameCodes, Points, encode
from modelless.profiler.cost_model.learned.gaussian_process import GaussianProcess
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.measure.table import TableRow


def row(device: str, number: int, gmacs: float) -> TableRow:
    return TableRow(
        source="bench",
        task="t",
        model=f"net{number}",
        family="net",
        device=device,
        device_kind="cpu",
        engine="e",
        precision="fp32",
        resolution_px=224,
        batch=1,
        concurrency=1,
        params_m=5.0,
        gmacs=gmacs,
        mactivations_m=None,
        layers=50,
        latency_ms=1.0,
        latency_p99_ms=None,
        throughput_per_s=None,
        memory_mib=None,
        accuracy=None,
        accuracy_metric="",
    )


def points_of(devices: int, items: int) -> Points:
    rows = [
        row(f"d{device}", number, 0.1 + 0.05 * number)
        for device in range(devices)
        for number in range(items)
    ]
    return encode(rows, NameCodes(), shipped_prior().roofline)


def test_rows_left_out_are_predicted_as_by_a_process_without_them() -> None:
    points, rng = points_of(2, 30), np.random.default_rng(0)
    kernel = shipped_prior().kernel
    values = rng.normal(0.0, 0.8 * np.sqrt(kernel.noise_variance), len(points))
    rows = np.arange(40, 60)
    errors, variances = GaussianProcess(kernel, points, values).leave_out(rows)
    rest = np.setdiff1d(np.arange(len(points)), rows)
    belief = GaussianProcess(kernel, points.select(rest), values[rest]).posterior_at(
        points.select(rows)
    )
    # Nothing here lies far off, so no point is played down in either.
    assert errors == pytest.approx(values[rows] - belief.mean, abs=1e-6)
    assert variances == pytest.approx(belief.variance + kernel.noise_variance, rel=1e-5)


def test_an_outlier_that_is_played_down_still_counts_as_far_off() -> None:
    points, rng = points_of(2, 30), np.random.default_rng(0)
    values = rng.normal(0.0, 0.05, len(points))
    values[7] += 3.0
    kernel = shipped_prior().kernel
    errors, variances = GaussianProcess(kernel, points, values).leave_out(np.array([7, 8]))
    assert errors[0] == pytest.approx(3.0, abs=0.3)
    assert variances[0] < 2.0 * variances[1]


class Watched(GaussianProcess):
    """Keeps which rows were left out."""

    def leave_out(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        LEFT.append(len(rows))
        return super().leave_out(rows)


LEFT: list[int] = []


def test_a_device_of_many_points_is_left_out_whole() -> None:
    """Points beyond those looked at used to stay in, which made an unseen device seem known."""
    points, rng = points_of(2, 320), np.random.default_rng(0)
    values = np.repeat([0.0, 2.0], 320) + rng.normal(0.0, 0.05, len(points))
    LEFT.clear()
    scores = score_devices(Watched(shipped_prior().kernel, points, values), rng)
    assert LEFT == [310, 310]
    assert len(scores.values) == 2 * 300 + 12
