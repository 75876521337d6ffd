"""Baselines that the learned model is compared with.

Each gets the same training rows and the same few measurements of the device as the learned model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from modelless.profiler.cost_model.unmeasured.features import (
    MOST_LOG,
    IntArray,
    NameCodes,
    Points,
    encode,
    item_latency_log,
)
from modelless.profiler.cost_model.unmeasured.proxies import fill_in, proxies_of
from modelless.profiler.cost_model.unmeasured.roofline import Roofline
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

_RIDGE = 1e-3
_PENALTIES = np.logspace(-3.0, 3.0, 13)
_NEIGHBOURS = 5


class Baselines:
    """Trains all baselines once, and predicts with each from any few measurements of the device.

    Args:
        training: measured rows; may be empty.
        wanted: rows to predict; their latencies are not used.
        roofline: the analytical estimate, for the encoding of features.
    """

    def __init__(
        self, training: Sequence[TableRow], wanted: Sequence[TableRow], roofline: Roofline
    ) -> None:
        names = NameCodes()
        self._training = encode(training, names, roofline)
        self._wanted = encode(wanted, names, roofline)
        self._training_log = item_latency_log(training)
        self._batch_log = np.log([float(row.batch) for row in wanted])
        self._proxies = proxies_of(training, wanted)

    def predict(
        self, name: str, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> FloatArray:
        """Returns the milliseconds of the whole batch at n wanted rows, shape (n,).

        Args:
            name: one of ``BASELINES``.
            shots: the k wanted rows that were measured; k may be 0.
            latency_ms: their measured latencies, shape (k,).
            rows: the n wanted rows to predict.
        """
        seen_log = np.log(latency_ms) - self._batch_log[shots]
        found_log = BASELINES[name](self, shots, seen_log, rows) + self._batch_log[rows]
        return np.asarray(np.exp(np.clip(found_log, -MOST_LOG, MOST_LOG)))

    # Each takes the shots, their log milliseconds an item, and the rows, and returns the log
    # milliseconds an item of the rows.

    def constant_factor(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """The rows of the device that, scaled by one factor, fits the measurements best.

        Without measurements it is the median of the devices.
        """
        fallback = self.log_linear(shots, seen_log, rows)
        if not len(self._proxies):
            return fallback
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # for rows that no device has
            apart = seen_log - self._proxies[:, shots]
            factor_log = np.nanmedian(apart, axis=1, keepdims=True)
            misfit = np.nanmean(np.abs(apart - factor_log), axis=1)
            if np.isfinite(misfit).any():
                found = (self._proxies + factor_log)[np.nanargmin(misfit), rows]
            else:
                found = np.nanmedian(self._proxies[:, rows], axis=0)
        return np.where(np.isfinite(found), found, fallback)

    def log_linear(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """A linear regression on the features, with levels of devices, engines and precisions."""
        from sklearn.linear_model import Ridge

        inputs = np.concatenate([self._training.features, self._wanted.features])
        for level in ("device", "engine", "precision"):
            codes = np.concatenate([self._training.level(level), self._wanted.level(level)])
            inputs = np.concatenate([inputs, _indicators(codes)], axis=1)
        count = len(self._training)
        outputs = np.concatenate([self._training_log, seen_log])
        if not len(outputs):
            return np.zeros(len(rows))
        known = np.concatenate([inputs[:count], inputs[count + shots]])
        return np.asarray(Ridge(_RIDGE).fit(known, outputs).predict(inputs[count + rows]))

    def boosted_trees(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """Gradient-boosted trees over all devices; the median of the errors corrects the level."""
        apart = seen_log - self._by_trees[shots]
        level_log = float(np.median(apart)) if len(apart) else 0.0
        return np.asarray(self._by_trees[rows] + level_log)

    def log_linear_alone(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """A ridge regression of the measurements on the sizes; without any, ``log_linear``."""
        if not len(shots):
            return self.log_linear(shots, seen_log, rows)
        return _ridge(self._sizes, shots, seen_log, rows)

    def proxy_ridge(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """A ridge regression of the measurements on other devices' latencies and on sizes."""
        if not len(shots):
            return self.constant_factor(shots, seen_log, rows)
        inputs = np.concatenate([self._whole_proxies.T, self._sizes], axis=1)
        return _ridge(inputs, shots, seen_log, rows)

    def proxy_neighbours(self, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
        """The mean of other devices, corrected as at the shots on which they are most alike.

        Without other devices, the sizes tell which rows are alike.
        """
        from sklearn.neighbors import KNeighborsRegressor

        if not len(shots):
            return self.constant_factor(shots, seen_log, rows)
        proxies = self._whole_proxies
        base = proxies.mean(axis=0) if len(proxies) else np.zeros(len(self._wanted))
        inputs = proxies.T if len(proxies) else self._sizes
        fitted = KNeighborsRegressor(min(_NEIGHBOURS, len(shots)), weights="distance")
        fitted.fit(inputs[shots], seen_log - base[shots])
        return np.asarray(base[rows] + fitted.predict(inputs[rows]))

    @cached_property
    def _by_trees(self) -> FloatArray:
        """What trees over all devices predict of the wanted rows, shape (n,).

        Some tables publish no sizes, so the numbers in names distinguish their models.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor

        def inputs(points: Points) -> FloatArray:
            codes = [
                points.level(level)[:, None] == np.unique(self._training.level(level))
                for level in ("kind", "precision")
            ]
            return np.concatenate([points.features, *codes, points.name_numbers], axis=1)

        if not len(self._training):
            return np.zeros(len(self._wanted))
        trees = HistGradientBoostingRegressor(max_iter=200, random_state=0)
        trees.fit(inputs(self._training), self._training_log)
        return np.asarray(trees.predict(inputs(self._wanted)))

    @cached_property
    def _whole_proxies(self) -> FloatArray:
        """The proxies without NaN, shape (p, n)."""
        level = np.nanmedian(self._proxies, axis=1, keepdims=True)
        return fill_in(self._proxies - level) + level

    @cached_property
    def _sizes(self) -> FloatArray:
        codes = [_indicators(self._wanted.level(level)) for level in ("setting", "kind")]
        return np.concatenate([self._wanted.features, *codes], axis=1)


BASELINES: Mapping[str, Callable[[Baselines, IntArray, FloatArray, IntArray], FloatArray]] = {
    "constant-factor": Baselines.constant_factor,
    "log-linear": Baselines.log_linear,
    "log-linear-alone": Baselines.log_linear_alone,
    "proxy-ridge": Baselines.proxy_ridge,
    "proxy-neighbours": Baselines.proxy_neighbours,
    "boosted-trees": Baselines.boosted_trees,
}


def _ridge(inputs: FloatArray, shots: IntArray, seen_log: FloatArray, rows: IntArray) -> FloatArray:
    """Returns what a ridge regression predicts, its penalty chosen by left-out errors."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(shots) == 1:
        return np.full(len(rows), seen_log[0])
    fitted = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES)).fit(inputs[shots], seen_log)
    return np.asarray(fitted.predict(inputs[rows]))


def _indicators(codes: IntArray) -> FloatArray:
    return np.asarray(codes[:, None] == np.unique(codes), dtype=np.float64)
