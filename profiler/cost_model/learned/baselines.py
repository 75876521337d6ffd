"""Baselines that the learned model is compared with.

Each gets the same training rows and the same few measurements of the device as the learned model.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.features import (
    MOST_LOG,
    NameCodes,
    Points,
    encode,
    item_latency_log,
)
from modelless.profiler.cost_model.learned.proxies import fill_in, proxies_of
from modelless.profiler.cost_model.learned.roofline import Roofline
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

_RIDGE = 1e-3
_PENALTIES = np.logspace(-3.0, 3.0, 13)
_LEAST_SCALE = 1e-6
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


class BoostedTrees(Baseline):
    """Gradient-boosted trees on the features, indicators, and the numbers in names.

    Some tables publish no sizes, so only names distinguish their models. The median corrects the
    level.
    """

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        super().__init__(training, wanted, roofline)
        self._expected: FloatArray = np.zeros(len(wanted))
        if training:
            trees = HistGradientBoostingRegressor(max_iter=200, random_state=_SEED)
            trees.fit(self._inputs(self.training_points), self.training_log)
            self._expected = trees.predict(self._inputs(self.wanted_points))

    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        apart = seen_log - self._expected[shots]
        level_log = float(np.median(apart)) if len(apart) else 0.0
        return self._expected[rows] + level_log

    def _inputs(self, points: Points) -> FloatArray:
        known = self.training_points
        codes = [
            points.level(level)[:, None] == np.unique(known.level(level))
            for level in ("kind", "precision")
        ]
        return np.concatenate([points.features, *codes, points.name_numbers], axis=1)


class _OnShots(Baseline):
    """A method that learns from the device's measurements alone, which all have some inputs.

    Without a measurement it is the best that does without: ``_unseen``.
    """

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        super().__init__(training, wanted, roofline)
        proxies = proxies_of(training, wanted)
        level = np.nanmedian(proxies, axis=1, keepdims=True)
        self._proxies = fill_in(proxies - level) + level
        self._sizes = np.concatenate(
            [
                self.wanted_points.features,
                *(_indicators(self.wanted_points.level(one)) for one in ("setting", "kind")),
            ],
            axis=1,
        )
        self._unseen = self._without_shots()(training, wanted, roofline)

    def _without_shots(self) -> type[Baseline]:
        return ConstantFactor if len(self._proxies) else LogLinear

    def predict_log(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        if not len(shots):
            return self._unseen.predict_log(shots, seen_log, rows)
        return self._learn(shots, seen_log, rows)

    @abstractmethod
    def _learn(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray: ...

    @staticmethod
    def _ridge(
        inputs: FloatArray, shots: IntArray, seen_log: FloatArray, rows: IntArray
    ) -> FloatArray:
        """Returns what a ridge regression predicts, its penalty chosen by left-out errors."""
        from sklearn.linear_model import RidgeCV

        if len(shots) == 1:
            return np.full(len(rows), seen_log[0])
        seen = inputs[shots]
        scale = seen.std(axis=0)
        scaled = (inputs - seen.mean(axis=0)) / np.where(scale > _LEAST_SCALE, scale, 1.0)
        fitted = RidgeCV(_PENALTIES).fit(scaled[shots], seen_log)
        return np.asarray(fitted.predict(scaled[rows]))


class LogLinearAlone(_OnShots):
    """A log-linear model of the measurements alone; without any, ``LogLinear``."""

    def _without_shots(self) -> type[Baseline]:
        return LogLinear

    def _learn(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        return self._ridge(self._sizes, shots, seen_log, rows)


class ProxyRidge(_OnShots):
    """A ridge regression of the measurements on other devices' latencies and on sizes."""

    def _learn(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        inputs = np.concatenate([self._proxies.T, self._sizes], axis=1)
        return self._ridge(inputs, shots, seen_log, rows)


class ProxyNeighbours(_OnShots):
    """The mean of other devices, corrected as at the measured rows on which they are most alike.

    Without other devices, the sizes tell which rows are alike.
    """

    def _learn(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        from sklearn.neighbors import KNeighborsRegressor

        base = self._proxies.mean(axis=0) if len(self._proxies) else np.zeros(len(self.wanted))
        inputs = self._proxies.T if len(self._proxies) else self._sizes
        fitted = KNeighborsRegressor(min(_NEIGHBOURS, len(shots)), weights="distance")
        fitted.fit(inputs[shots], seen_log - base[shots])
        return np.asarray(base[rows] + fitted.predict(inputs[rows]))


BASELINES: Mapping[str, type[Baseline]] = {
    "constant-factor": ConstantFactor,
    "log-linear": LogLinear,
    "log-linear-alone": LogLinearAlone,
    "proxy-ridge": ProxyRidge,
    "proxy-neighbours": ProxyNeighbours,
    "boosted-trees": BoostedTrees,
}


def _design(points: Points) -> FloatArray:
    return np.concatenate([points.features, np.ones((len(points), 1))], axis=1)


def _indicators(codes: IntArray) -> FloatArray:
    return np.asarray(codes[:, None] == np.unique(codes), dtype=np.float64)
