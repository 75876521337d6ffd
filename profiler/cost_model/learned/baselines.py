"""Baselines that the learned model is compared with.

Each gets the same training rows and the same few measurements of the device as the learned model,
and corrects its level by the median of those, which favours it over its published form.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.features import (
    MOST_LOG,
    NameCodes,
    Points,
    encode,
    item_latency_log,
)
from modelless.profiler.cost_model.learned.proxies import proxies_of
from modelless.profiler.cost_model.learned.roofline import Roofline
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

_RIDGE = 1e-3
_NEIGHBOURS = 5
_SEED = 0


class Baseline(ABC):
    """A method that trains once and then predicts from any few measurements of the device.

    Args:
        training: measured rows; may be empty.
        wanted: rows to predict; their latencies are not used.
        roofline: the analytical estimate, for the encoding of features.
    """

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        names = NameCodes()
        self.training, self.wanted = training, wanted
        self.training_points = encode(training, names, roofline)
        self.wanted_points = encode(wanted, names, roofline)
        self.training_log = item_latency_log(training)
        self.batch_log = np.log([float(row.batch) for row in wanted])

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> FloatArray:
        """Returns the milliseconds of the whole batch at n wanted rows, shape (n,).

        Args:
            shots: the k wanted rows that were measured; k may be 0.
            latency_ms: their measured latencies, shape (k,).
            rows: the n wanted rows to predict.
        """
        seen_log = np.log(latency_ms) - self.batch_log[shots]
        found_log = self.predict_log(shots, seen_log, rows) + self.batch_log[rows]
        return np.asarray(np.exp(np.clip(found_log, -MOST_LOG, MOST_LOG)))

    @abstractmethod
    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """Returns the same in log milliseconds an item; ``seen_log`` is that of the shots."""


class ConstantFactor(Baseline):
    """The rows of the device that, scaled by one factor, fits the measurements best."""

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        super().__init__(training, wanted, roofline)
        self._fallback = LogLinear(training, wanted, roofline)
        self._proxies = proxies_of(training, wanted)

    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        fallback = self._fallback.predict_log(shots, seen_log, rows)
        if not len(self._proxies):
            return fallback
        best = best_proxy(self._proxies, shots, seen_log)
        if best is not None:
            found = best[rows]
        else:  # no measurement distinguishes the devices: their median
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # for rows that no device has
                found = np.nanmedian(self._proxies[:, rows], axis=0)
        return np.where(np.isfinite(found), found, fallback)


def best_proxy(proxies: FloatArray, shots: IntArray, seen_log: FloatArray) -> FloatArray | None:
    """Returns the proxy that, scaled by one factor, has the least error; None without any overlap.

    Args:
        proxies: see ``proxies_of``.
        shots: the k wanted rows that were measured.
        seen_log: their measured log milliseconds an item, shape (k,).

    Returns:
        Log milliseconds an item of each wanted row, shape (n,); NaN where the proxy has no such
        item.
    """
    best, least = None, np.inf
    for proxy in proxies:
        apart = seen_log - proxy[shots]
        known = np.isfinite(apart)
        if not known.any():
            continue
        factor_log = float(np.median(apart[known]))
        misfit = float(np.abs(apart[known] - factor_log).mean())
        if best is None or misfit < least:
            best, least = proxy + factor_log, misfit
    return best


class LogLinear(Baseline):
    """A linear regression of log latency on the features.

    Each device, each of its engines and each precision has a level.
    """

    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        inputs = np.concatenate([_design(self.training_points), _design(self.wanted_points)])
        for level in ("device", "engine", "precision"):
            codes = np.concatenate(
                [self.training_points.level(level), self.wanted_points.level(level)]
            )
            inputs = np.concatenate([inputs, codes[:, None] == np.unique(codes)], axis=1)
        training = np.concatenate(
            [np.arange(len(self.training)), len(self.training) + shots]
        ).astype(np.intp)
        outputs = np.concatenate([self.training_log, seen_log])
        level_log = float(np.median(outputs)) if len(outputs) else 0.0
        known = inputs[training]
        gram = known.T @ known + _RIDGE * np.eye(inputs.shape[1])
        weights = np.linalg.solve(gram, known.T @ (outputs - level_log))
        return np.asarray(inputs[len(self.training) + rows] @ weights + level_log)


class _Levelled(Baseline):
    """A method with one expected log latency for each wanted row; the median corrects its level."""

    _expected: FloatArray

    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        apart = seen_log - self._expected[shots]
        return self._expected[rows] + (float(np.median(apart)) if len(apart) else 0.0)


class _Fitted(_Levelled):
    """A regressor of scikit-learn on the training rows."""

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        super().__init__(training, wanted, roofline)
        self._expected = np.zeros(len(wanted))
        if len(training) >= self._least():
            regressor = self._regressor()
            regressor.fit(self._inputs(self.training_points), self.training_log)
            self._expected = regressor.predict(self._inputs(self.wanted_points))

    @abstractmethod
    def _regressor(self) -> Any: ...

    def _inputs(self, points: Points) -> FloatArray:
        """Returns the features and indicators of device kind and precision."""
        known = self.training_points
        codes = [
            points.level(level)[:, None] == np.unique(known.level(level))
            for level in ("kind", "precision")
        ]
        return np.concatenate([points.features, *codes], axis=1).astype(np.float64)

    def _least(self) -> int:
        return 1


class BoostedTrees(_Fitted):
    """Gradient-boosted trees on the features and the numbers in names.

    Some tables publish no sizes, so only names distinguish their models. Trees ignore uninformative
    inputs; for nearest neighbours the numbers would be noise.
    """

    def _regressor(self) -> Any:
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(max_iter=200, random_state=_SEED)

    def _inputs(self, points: Points) -> FloatArray:
        return np.concatenate([super()._inputs(points), points.name_numbers], axis=1)


class NearestNeighbour(_Fitted):
    """The mean of the nearest training rows in the features."""

    def _regressor(self) -> Any:
        from sklearn.neighbors import KNeighborsRegressor

        return KNeighborsRegressor(min(_NEIGHBOURS, len(self.training)), weights="distance")


class LookupTable(_Levelled):
    """An item's mean over all devices, without their levels, linear between batch sizes.

    INFaaS keeps such a table. An item that it lacks gets the mean of its family, or of all rows.
    """

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        super().__init__(training, wanted, roofline)
        settings = self.training_points.level("setting")
        levelled_ms = np.array(self.training_log)
        for setting in np.unique(settings):
            rows = settings == setting
            levelled_ms[rows] -= np.median(levelled_ms[rows])
        tables = _curves(self.training_points.item, training, levelled_ms)
        families = _curves(self.training_points.family, training, levelled_ms)
        everything = float(np.median(levelled_ms)) if len(training) else 0.0
        self._expected = np.array(
            [
                _look_up((tables.get(item), families.get(family)), row.batch, everything)
                for row, item, family in zip(
                    wanted,
                    self.wanted_points.item.tolist(),
                    self.wanted_points.family.tolist(),
                    strict=True,
                )
            ]
        )


BASELINES: Mapping[str, type[Baseline]] = {
    "constant-factor": ConstantFactor,
    "log-linear": LogLinear,
    "boosted-trees": BoostedTrees,
    "nearest-neighbour": NearestNeighbour,
    "lookup-table": LookupTable,
}


def _design(points: Points) -> FloatArray:
    return np.concatenate([points.features, np.ones((len(points), 1))], axis=1)


def _curves(
    codes: IntArray, rows: Sequence[TableRow], values: FloatArray
) -> dict[int, tuple[FloatArray, FloatArray]]:
    """Returns ascending batch sizes and their mean values by code."""
    by_code: dict[int, dict[int, list[float]]] = {}
    for code, row, value in zip(codes.tolist(), rows, values.tolist(), strict=True):
        by_code.setdefault(code, {}).setdefault(row.batch, []).append(value)
    return {
        code: (
            np.array(sorted(by_batch), dtype=np.float64),
            np.array([float(np.mean(by_batch[batch])) for batch in sorted(by_batch)]),
        )
        for code, by_batch in by_code.items()
    }


def _look_up(
    tables: Sequence[tuple[FloatArray, FloatArray] | None], batch: int, otherwise: float
) -> float:
    for table in tables:
        if table is not None:
            return float(np.interp(batch, *table))
    return otherwise
