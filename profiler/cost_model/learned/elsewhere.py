"""How an item fares on other devices than its own: a feature that carries from device to device.

On each device setting, latencies are regressed on the features; what the regression leaves over is
the item's own. Its mean over all devices but the point's own says whether an item is slower or
quicker than it looks, in a way that no published size tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.points import Points
from modelless.variants.estimates import FloatArray

_POOLED_RIDGE = 1.0
_OWN_RIDGE = 3.0
_OWN_LEAST = 40  # points for a regression of a device setting's own
_SCALE = 0.4  # a usual residual, in log latency


class Elsewhere:
    """What is left over of each item, by device.

    Args:
        points, residual_log: n measured points, and log latency over roofline, shape (n,).
    """

    def __init__(self, points: Points, residual_log: FloatArray) -> None:
        left = np.zeros(len(points))
        for source in np.unique(points.level("source")):
            rows = np.flatnonzero(points.level("source") == source)
            left[rows] = _left_over(
                points.features[rows], points.level("setting")[rows], residual_log[rows]
            )
        pairs, inverse = np.unique(
            np.stack([points.item, points.level("device")], axis=1), axis=0, return_inverse=True
        )
        inverse = inverse.reshape(-1)
        means = np.bincount(inverse, left) / np.bincount(inverse)
        self._own: dict[tuple[int, int], float] = {}
        self._sums: dict[int, tuple[float, int]] = {}
        for (item, device), mean in zip(pairs.tolist(), means.tolist(), strict=True):
            self._own[item, device] = mean
            total, count = self._sums.get(item, (0.0, 0))
            self._sums[item] = (total + mean, count + 1)

    def mark(self, points: Points) -> Points:
        """The points with ``elsewhere`` filled in."""
        values = np.zeros(len(points))
        known = np.zeros(len(points))
        devices = points.level("device").tolist()
        for row, key in enumerate(zip(points.item.tolist(), devices, strict=True)):
            total, count = self._sums.get(key[0], (0.0, 0))
            own = self._own.get(key)
            if own is not None:
                total, count = total - own, count - 1
            if count:
                values[row] = total / count / _SCALE
                known[row] = 1.0
        return replace(points, elsewhere=values, is_known_elsewhere=known)


def _left_over(
    features: FloatArray, settings: NDArray[np.intp], residual_log: FloatArray
) -> FloatArray:
    """What a linear regression in the features, a level for each setting, leaves of one source."""
    _, group = np.unique(settings, return_inverse=True)
    count = np.bincount(group)

    def centred(column: FloatArray) -> FloatArray:
        return column - (np.bincount(group, column) / count)[group]

    inputs = np.stack([centred(column) for column in features.T], axis=1)
    left = centred(residual_log)
    left = left - inputs @ _ridge(inputs, left, _POOLED_RIDGE)
    for setting in np.flatnonzero(count >= _OWN_LEAST):
        rows = group == setting
        left[rows] -= inputs[rows] @ _ridge(inputs[rows], left[rows], _OWN_RIDGE)
    return left


def _ridge(inputs: FloatArray, outputs: FloatArray, penalty: float) -> FloatArray:
    gram = inputs.T @ inputs + penalty * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, inputs.T @ outputs))
