"""Item effects: how much slower or quicker an item is on other devices than its sizes suggest.

For each device setting, log latency is regressed on the features; the residual is the item's own
effect. An item's mean effect over all devices but the point's own is a feature that carries from
device to device and that no published size contains.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modelless.profiler.cost_model.unmeasured.features import IntArray, Points
from modelless.variants.estimates import FloatArray

_POOLED_RIDGE = 1.0
_SETTING_RIDGE = 3.0
_LEAST_POINTS = 40  # of a device setting, for a regression of its own
_SCALE = 0.4  # a typical residual, in log latency


class ItemEffects:
    """The mean residual of each item on each device.

    Args:
        points: n measured points.
        residual_log: log latency less the roofline's, shape (n,).
    """

    def __init__(self, points: Points, residual_log: FloatArray) -> None:
        residuals = np.zeros(len(points))
        for source in np.unique(points.level("source")):
            rows = np.flatnonzero(points.level("source") == source)
            residuals[rows] = _regression_residuals(
                points.features[rows], points.level("setting")[rows], residual_log[rows]
            )
        pairs, inverse = np.unique(
            np.stack([points.item, points.level("device")], axis=1), axis=0, return_inverse=True
        )
        inverse = inverse.reshape(-1)
        means = np.bincount(inverse, residuals) / np.bincount(inverse)
        self._by_device: dict[tuple[int, int], float] = {}
        self._sums: dict[int, tuple[float, int]] = {}
        for (item, device), mean in zip(pairs.tolist(), means.tolist(), strict=True):
            self._by_device[item, device] = mean
            total, count = self._sums.get(item, (0.0, 0))
            self._sums[item] = (total + mean, count + 1)

    def add_to(self, points: Points) -> Points:
        """Returns the points with ``item_effect`` and ``has_item_effect`` filled in."""
        values = np.zeros(len(points))
        known = np.zeros(len(points))
        devices = points.level("device").tolist()
        for row, key in enumerate(zip(points.item.tolist(), devices, strict=True)):
            total, count = self._sums.get(key[0], (0.0, 0))
            on_device = self._by_device.get(key)
            if on_device is not None:
                total, count = total - on_device, count - 1
            if count:
                values[row] = total / count / _SCALE
                known[row] = 1.0
        return replace(points, item_effect=values, has_item_effect=known)


def _regression_residuals(
    features: FloatArray, settings: IntArray, residual_log: FloatArray
) -> FloatArray:
    """Returns the residuals of one source's linear regression, with a level for each setting."""
    _, group = np.unique(settings, return_inverse=True)
    count = np.bincount(group)

    def centred(column: FloatArray) -> FloatArray:
        return column - (np.bincount(group, column) / count)[group]

    inputs = np.stack([centred(column) for column in features.T], axis=1)
    residuals = centred(residual_log)
    residuals = residuals - inputs @ ridge_weights(inputs, residuals, _POOLED_RIDGE)
    for setting in np.flatnonzero(count >= _LEAST_POINTS):
        rows = group == setting
        weights = ridge_weights(inputs[rows], residuals[rows], _SETTING_RIDGE)
        residuals[rows] -= inputs[rows] @ weights
    return residuals


def ridge_weights(inputs: FloatArray, outputs: FloatArray, penalty: float) -> FloatArray:
    """Returns the weights of a ridge regression without a constant, shape (columns,)."""
    gram = inputs.T @ inputs + penalty * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, inputs.T @ outputs))
