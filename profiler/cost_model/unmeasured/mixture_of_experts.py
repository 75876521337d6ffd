"""A mixture of three experts on a device, weighted by their errors on its measurements.

- ``transfer``: the process of all devices, with the contrasts of the proxies as linear terms;
- ``closest``: the proxies that, each scaled by one factor, fit the measurements best;
- ``alone``: a process that knows this device only.

The weights come from left-out absolute errors: each measurement is predicted without any of its
item. An expert's share falls with the power of its mean error that a Laplace likelihood of known
mean error has; the items count as ten at most, because experts with nearly equal errors predict
better together than the better of them does. So what other devices tell counts only as far as it
helps, and a few measurements that are far off do not decide.

The band is as many predicted standard deviations wide as the left-out errors were, on average,
shrunk to what is usual because they are few. This is split conformal prediction (Vovk, Gammerman
and Shafer, "Algorithmic Learning in a Random World", 2005, section 4.1) with normalised errors, of
which only the mean is estimated: their distribution lies between a normal and a Laplace one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from modelless.profiler.cost_model.unmeasured.features import IntArray
from modelless.profiler.cost_model.unmeasured.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
    Posterior,
)
from modelless.variants.estimates import FloatArray

# Of all contrasts together.
_CONTRAST_WEIGHT, _CONTRAST_VARIANCE = 0.8, 0.5
_MOST_CONTRAST = 2.0  # in log latency; a larger difference means that something else was measured
_MOST_ERROR = 1.5  # in log latency; a larger error counts as this one
_USUAL_ERROR, _USUAL_COUNT = 0.3, 1.0  # assumed of every expert, as so many measurements
_CLOSEST_ERROR = 0.2  # assumed of every proxy, as one measurement
_MOST_MISFIT = 1.0
BAND_OF_MEAN = 2.2
"""The bound of 90 % of the errors over their mean: 2.06 for a normal variable, 2.30 for a Laplace
variable."""

_LEAST_SHARE = 1e-3  # of the weight, for a expert to be used
_MOST_ITEMS = 10.0  # as which any number of items counts in the weights
_USUAL_SCORES = 2.0  # items that weigh as much as what is usual
_MOST_SCORE = 8.0  # standard deviations; a larger error counts as this one


class Expert(Protocol):
    """A prediction of a device from k measured rows; values are logs."""

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean and the variance with noise at n rows, shape (n,) each."""
        ...

    def leave_items_out(self, groups: Sequence[IntArray]) -> tuple[FloatArray, FloatArray]:
        """Returns each measurement's error and variance without those of its group, shape (k,)."""
        ...


def follow(posterior: Posterior, contrasts: FloatArray) -> Posterior:
    """Returns the distribution with the contrasts of p proxies as linear terms.

    Args:
        posterior: the distribution at n rows.
        contrasts: shape (p, n); NaN where a proxy has no such item.
    """
    if not len(contrasts):
        return posterior
    known = np.clip(np.nan_to_num(contrasts, nan=0.0), -_MOST_CONTRAST, _MOST_CONTRAST)
    return posterior.with_linear_terms(known, _CONTRAST_WEIGHT, _CONTRAST_VARIANCE)


class ProcessExpert:
    """An expert that is a Gaussian process.

    Args:
        process: the process.
        posterior: its distribution at n rows.
        shots: the k measured rows.
        values: their measured values, shape (k,).
    """

    def __init__(
        self, process: GaussianProcess, posterior: Posterior, shots: IntArray, values: FloatArray
    ) -> None:
        self._conditioned = ConditionedProcess(process, posterior.select(shots), values)
        self._posterior = posterior
        self.noise_variance = self._conditioned.noise_variance

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        return self._conditioned.predict(self._posterior.select(rows))

    def covariance(self, rows: IntArray) -> FloatArray:
        """Returns the covariance of n rows without noise, shape (n, n)."""
        return self._conditioned.covariance(self._posterior.select(rows))

    def leave_items_out(self, groups: Sequence[IntArray]) -> tuple[FloatArray, FloatArray]:
        return self._conditioned.leave_groups_out(groups)


class ClosestDeviceExpert:
    """An expert that takes proxies as the same device at another speed.

    Each proxy's factor is the median over the measurements. A proxy's share falls with its mean
    absolute deviation, by a Laplace likelihood, so an outlier rules no proxy out.

    Args:
        proxies_log: log latency of n rows on p devices, shape (p, n), without NaN.
        shots: the k measured rows, at least one.
        values: their measured log latency, shape (k,).
    """

    def __init__(self, proxies_log: FloatArray, shots: IntArray, values: FloatArray) -> None:
        self._proxies_log, self._shots, self._values = proxies_log, shots, values

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        every = np.arange(len(self._shots))
        _, variance = self.leave_items_out([every[[number]] for number in every])
        return self._fit(every, rows), np.full(len(rows), variance.mean())

    def leave_items_out(self, groups: Sequence[IntArray]) -> tuple[FloatArray, FloatArray]:
        every = np.arange(len(self._shots))
        error = np.empty(len(every))
        for group in groups:
            error[group] = self._values[group] - self._fit(
                np.setdiff1d(every, group), self._shots[group]
            )
        squares = np.minimum(np.abs(error), _MOST_MISFIT) ** 2
        return error, np.full(len(every), squares.mean() + 1e-4)

    def _fit(self, kept: IntArray, rows: IntArray) -> FloatArray:
        """Returns the log latency of rows by some of the measurements."""
        proxies_log = self._proxies_log[:, rows]
        if not len(kept):
            return np.asarray(proxies_log.mean(axis=0))
        apart = self._values[kept] - self._proxies_log[:, self._shots[kept]]
        factor_log = np.median(apart, axis=1, keepdims=True)
        misfit = np.minimum(np.abs(apart - factor_log), _MOST_MISFIT).sum(axis=1)
        shares = _shares((misfit + _CLOSEST_ERROR) / (len(kept) + 1.0), len(kept))
        return np.asarray(shares @ (proxies_log + factor_log))


class MixtureOfExperts:
    """Members, weighted by their left-out errors.

    Args:
        experts: each with its share before anything is measured.
        groups: measurements that are left out together, as numbers from 0 to k - 1.
        usual_deviations: ``band_deviations`` without any measurement.
    """

    def __init__(
        self,
        experts: Sequence[tuple[Expert, float]],
        groups: Sequence[IntArray],
        usual_deviations: float = BAND_OF_MEAN,
    ) -> None:
        left_out = [expert.leave_items_out(groups) for expert, _ in experts]
        self._errors, self._variances = (np.array(some) for some in zip(*left_out, strict=True))
        self._priors = np.array([share for _, share in experts])
        self._groups = groups
        self._usual_deviations = usual_deviations
        apart = np.minimum(np.abs(self._errors), _MOST_ERROR)
        by_group = [apart[:, group].mean(axis=1) for group in groups]
        self._by_group = np.array(by_group).reshape(len(groups), len(experts))
        shares = self._weigh(self._by_group)
        kept = np.flatnonzero(shares > _LEAST_SHARE).tolist()
        self._shares = shares[kept] / shares[kept].sum()
        self._experts = [experts[number][0] for number in kept]

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean and the variance with noise at n rows, shape (n,) each."""
        found = [expert.predict(rows) for expert in self._experts]
        means, variances = (np.array(some) for some in zip(*found, strict=True))
        return _mix(self._shares, means, variances)

    def disagreement(self, rows: IntArray) -> FloatArray:
        """Returns the covariance between n rows that the experts' differences make, (n, n)."""
        means = np.array([expert.predict(rows)[0] for expert in self._experts])
        apart = means - self._shares @ means
        return np.asarray((self._shares[:, None] * apart).T @ apart)

    @property
    def is_measured(self) -> bool:
        """Whether there are any measurements."""
        return bool(self._groups)

    @cached_property
    def band_deviations(self) -> float:
        """The predicted standard deviations within which 90 % of the errors are expected."""
        count = len(self._groups)
        if not count:
            return self._usual_deviations
        scores = np.minimum(np.abs(self.left_out_scores()), _MOST_SCORE)
        mean = float(np.mean([scores[group].mean() for group in self._groups])) + 1e-3
        own = count / (_USUAL_SCORES + count)
        return float((BAND_OF_MEAN * mean) ** own * self._usual_deviations ** (1.0 - own))

    def left_out_scores(self) -> FloatArray:
        """Returns each measurement's error if its group were left out, shape (k,).

        Errors are in predicted standard deviations.
        """
        scores = np.empty(self._errors.shape[1])
        for number, group in enumerate(self._groups):
            shares = self._weigh(np.delete(self._by_group, number, axis=0))
            error, variance = _mix(shares, self._errors[:, group], self._variances[:, group])
            scores[group] = error / np.sqrt(variance)
        return scores

    def _weigh(self, errors: FloatArray) -> FloatArray:
        """Returns the experts' shares by their mean errors on g groups, shape (g, experts)."""
        count = len(errors)
        mean = (errors.sum(axis=0) + _USUAL_COUNT * _USUAL_ERROR) / (count + _USUAL_COUNT)
        shares = self._priors * _shares(mean, count / (1.0 + count / _MOST_ITEMS))
        return np.asarray(shares / shares.sum())


def _shares(mean_error: FloatArray, count: float) -> FloatArray:
    """Returns shares by the Laplace likelihood of ``count`` errors with these mean errors."""
    logs = -count * np.log(mean_error)
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def _mix(
    shares: FloatArray, means: FloatArray, variances: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the mean and the total variance of a mixture of m experts at n points, shape (n,)."""
    mean = shares @ means
    return mean, shares @ (variances + (means - mean) ** 2)
