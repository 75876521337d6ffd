"""Baselines are to be beaten fairly: they see what there is to see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modelless.profiler.cost_model.learned.baselines import BoostedTrees
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .test_left_out_scores import row


def without_sizes(device: str, width: int) -> TableRow:
    return replace(
        row(device, width, 1.0),
        model=f"net-w{width}",
        gmacs=None,
        params_m=None,
        layers=None,
        latency_ms=0.1 * width,
    )


def test_trees_tell_models_apart_by_name_where_no_sizes_are_published() -> None:
    training = [without_sizes("known", width) for width in range(10, 210)]
    wanted = [without_sizes("new", width) for width in range(10, 210)]
    trees = BoostedTrees(training, wanted, shipped_prior().roofline)
    latency_ms = np.array([one.latency_ms for one in wanted])
    shots, rows = np.arange(0, 200, 20), np.arange(1, 200, 2)
    predicted_ms = trees.predict(shots, latency_ms[shots], rows)
    assert np.median(np.abs(predicted_ms / latency_ms[rows] - 1.0)) < 0.2
