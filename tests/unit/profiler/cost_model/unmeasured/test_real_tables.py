"""On published profiles: better than every baseline, and no surer than it should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from modelless.profiler.cost_model.evaluation.baselines import BASELINES
from modelless.profiler.cost_model.evaluation.hold_out import (
    MODELLESS,
    Holdout,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow, read_table

from .worlds import latencies_ms, parted

PROFILES = Path(__file__).parents[6] / "shared" / "data" / "profiles"
pytestmark = pytest.mark.shared_data


def some_of(table: str, models: int, seed: int = 0) -> list[TableRow]:
    """The rows of some of a table's models, on all its devices."""
    rows = read_table(PROFILES / f"{table}.csv")
    names = np.random.default_rng(seed).permutation(sorted({one.model for one in rows}))[:models]
    kept = set(names.tolist())
    return [one for one in rows if one.model in kept]


def scores_of(
    rows: list[TableRow], device: str, shots: int, seeds: int
) -> Mapping[str, MethodScore]:
    """By method."""
    (trial,) = plan_cases(rows, None, [Holdout("device", device)])
    return {one.method: one for one in evaluate(trial, shipped_prior(), (shots,), seeds)}


@pytest.mark.parametrize(
    ("table", "models", "device"),
    [
        ("yolobench", 50, "raspberry-pi-4"),
        pytest.param(
            "qualcomm_ai_hub",
            8,
            "QCS8550 (Proxy)",
            marks=pytest.mark.xfail(
                strict=True, reason="one factor from its sister device is better: 5.8 %, not 7.6"
            ),
        ),
        ("qualcomm_ai_hub", 8, "QCS8450 (Proxy)"),
    ],
)
def test_ten_shots_of_a_device_beat_every_baseline(table: str, models: int, device: str) -> None:
    scores = scores_of(some_of(table, models), device, 10, 3)
    errors = {name: score.mape_percent for name, score in scores.items()}
    assert set(errors) == {MODELLESS, *BASELINES}
    others = {name: error for name, error in errors.items() if name != MODELLESS}
    assert errors[MODELLESS] < min(others.values()), errors
    coverage = scores[MODELLESS].band_coverage_percent
    assert coverage is not None
    assert coverage >= 80.0


def test_a_real_device_without_shots_is_not_believed_to_be_known() -> None:
    """Of every device's rows most lie in their bands, though nothing of it was measured."""
    rows = some_of("qualcomm_ai_hub", 5)
    coverage: dict[str, float] = {}
    for device in ("Dragonwing Q-6690 MTP", "QCS8550 (Proxy)", "Samsung Galaxy S25"):
        training, wanted = parted(rows, device)
        prediction = DevicePredictor(shipped_prior(), training, wanted).predict(
            np.arange(0), np.empty(0), np.arange(len(wanted))
        )
        true_ms = latencies_ms(wanted)
        inside = (true_ms >= prediction.low_ms) & (true_ms <= prediction.high_ms)
        coverage[device] = float(inside.mean())
    assert np.mean(list(coverage.values())) >= 0.80, coverage
