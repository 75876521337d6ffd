"""Proxies: other devices' latencies of the same items, and how much to trust them.

The latencies of another device tell all of a device that differs from it by one factor, and little
of one of another make. Before a device is measured, nobody knows whether to follow all proxies a
little, one proxy in part, or one proxy exactly. So one model for each of these assumptions
predicts, and each counts by how likely it makes the measurements: Bayesian model averaging
(Hoeting, Madigan, Raftery and Volinsky, "Bayesian Model Averaging: A Tutorial", 1999). Bands are
wider where the models disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.features import item_latency_log, normalise_precision
from modelless.profiler.cost_model.learned.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
    Posterior,
)
from modelless.profiler.measure.table import TableRow
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]
Assumption = Callable[[Posterior, IntArray], Posterior]
"""Returns the distribution at some rows with what an assumption adds to it."""

_LEAST_MATCHED = 0.5  # share of the wanted rows that a proxy must have
_MOST_CONTRAST = 2.0  # in log latency; a larger difference means that something else was measured

# The weight of a proxy where it differs from the process, for a proxy that is followed in part.
_WEIGHT, _WEIGHT_VARIANCE = 0.5, 0.25
# A device that differs from its proxy by one factor: the variance of the factor's log, and of what
# one measurement deviates besides. A measurement that deviates more speaks against the assumption.
_FACTOR_VARIANCE, _FACTOR_NOISE_VARIANCE = 1.0, 0.08**2
# Evidence counts half: no assumption is quite true, and ten measurements would choose too surely
# (Grunwald, "The Safe Bayesian", 2012).
_TEMPER = 0.5
_LEAST_SHARE = 1e-3  # of the weight, for a model to be kept


def proxies_of(training: Sequence[TableRow], wanted: Sequence[TableRow]) -> FloatArray:
    """Returns the log milliseconds an item on each device that has enough of the items.

    Args:
        training: measured rows.
        wanted: n rows to predict.

    Returns:
        Shape (p, n), a row for each of p devices; NaN where a device has no such item.
    """
    by_device: dict[Hashable, list[TableRow]] = {}
    for row in training:
        by_device.setdefault((row.source, row.device), []).append(row)
    found = [_match(known, item_latency_log(known), wanted) for known in by_device.values()]
    kept = [each for each in found if np.isfinite(each).sum() >= _LEAST_MATCHED * len(wanted)]
    return np.array(kept).reshape(len(kept), len(wanted))


def contrasts_of(proxies: FloatArray, expected_log: FloatArray) -> FloatArray:
    """Returns the difference between each proxy and the expectation, without its level.

    A contrast says only how rows differ from each other.

    Args:
        proxies: see ``proxies_of``.
        expected_log: expected log milliseconds an item of each wanted row, shape (n,).

    Returns:
        Shape (p, n); NaN where a device has no such item.
    """
    if not proxies.size:
        return np.empty((0, len(expected_log)))
    apart = proxies - expected_log
    apart -= np.nanmedian(apart, axis=1, keepdims=True)
    return np.clip(apart, -_MOST_CONTRAST, _MOST_CONTRAST)


class ProxyMixture:
    """A mixture of processes that use proxies in several ways, conditioned on a device's shots.

    Args:
        process: a process fitted to other devices.
        posterior: its distribution at the device's n rows.
        contrasts: contrast of each of p proxies, shape (p, n); see ``contrasts_of``.
        shots: the k measured rows; k may be 0.
        values: their measured values, shape (k,).
    """

    def __init__(
        self,
        process: GaussianProcess,
        posterior: Posterior,
        contrasts: FloatArray,
        shots: IntArray,
        values: FloatArray,
    ) -> None:
        self._posterior = posterior
        each = [contrast[None] for contrast in contrasts]
        partly = [contrasts, *each] if len(each) > 1 else [contrasts]
        # Only measurements can show that a device differs from a proxy by one factor.
        exactly = contrasts if len(shots) else contrasts[:0]
        assumptions: list[Assumption] = [partial(_follow_partly, some) for some in partly]
        assumptions += [partial(_follow_exactly, contrast) for contrast in exactly]
        noise = [None] * len(partly) + [_FACTOR_NOISE_VARIANCE] * len(exactly)
        members = [
            ConditionedProcess(process, assume(posterior, shots), values, noise_variance)
            for assume, noise_variance in zip(assumptions, noise, strict=True)
        ]
        priors = [1.0] + [1.0 / max(len(each), 1)] * (len(assumptions) - 1)
        evidence = np.array([member.evidence for member in members])
        shares_log = np.log(priors) + _TEMPER * evidence
        kept = np.flatnonzero(_normalise_logs(shares_log) > _LEAST_SHARE)
        self._shares_log = shares_log[kept]
        self._members = [(assumptions[number], members[number]) for number in kept]

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean and the variance with noise at some rows, shape (n,) each."""
        means, variances = _stack(
            member.predict(assume(self._posterior, rows)) for assume, member in self._members
        )
        return _mix(_normalise_logs(self._shares_log)[:, None], means, variances)

    def covariance(self, rows: IntArray) -> tuple[FloatArray, float]:
        """Returns the covariance between n rows, shape (n, n), and the noise of one measurement.

        It includes the disagreement between the models, by the law of total covariance.
        """
        shares = _normalise_logs(self._shares_log)
        posteriors = [assume(self._posterior, rows) for assume, _ in self._members]
        members = [member for _, member in self._members]
        means, _ = _stack(
            member.predict(posterior) for member, posterior in zip(members, posteriors, strict=True)
        )
        apart = means - shares @ means
        total = (shares[:, None] * apart).T @ apart
        for share, member, posterior in zip(shares, members, posteriors, strict=True):
            total += share * member.covariance(posterior)
        noise_variance = shares @ [member.noise_variance for member in members]
        return np.asarray(total), float(noise_variance)

    def leave_one_out(self) -> tuple[FloatArray, FloatArray]:
        """Returns each shot's error, and its variance with noise, if that shot were left out.

        The weights of the models are then also without the evidence of that shot.
        """
        errors, variances = _stack(member.leave_one_out() for _, member in self._members)
        density_log = -0.5 * (errors**2 / variances + np.log(variances))
        shares = _normalise_logs(self._shares_log[:, None] - _TEMPER * density_log)
        return _mix(shares, errors, variances)


def _follow_partly(contrasts: FloatArray, posterior: Posterior, rows: IntArray) -> Posterior:
    known = np.nan_to_num(contrasts[:, rows], nan=0.0)
    return posterior.select(rows).with_linear_term(known, _WEIGHT, _WEIGHT_VARIANCE)


def _follow_exactly(contrast: FloatArray, posterior: Posterior, rows: IntArray) -> Posterior:
    # The process stays as uncertain as before of items that the proxy does not have.
    deviation_scale = np.isnan(contrast[rows]).astype(float)
    known = np.nan_to_num(contrast[rows], nan=0.0)
    return posterior.select(rows).with_offset(known, deviation_scale, _FACTOR_VARIANCE)


def _normalise_logs(shares_log: FloatArray) -> FloatArray:
    """Returns shares of the first axis that add up to 1, from their logs up to a constant."""
    shares = np.exp(shares_log - shares_log.max(axis=0))
    return np.asarray(shares / shares.sum(axis=0))


def _stack(each: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    means, variances = (np.array(some) for some in zip(*each, strict=True))
    return means, variances


def _mix(
    shares: FloatArray, means: FloatArray, variances: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the mean and the total variance of a mixture of m members at n points, shape (n,).

    Args:
        shares: shares of the members, shape (m, 1) or (m, n).
        means, variances: shape (m, n).
    """
    mean = (shares * means).sum(axis=0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(axis=0)


def _match(
    known: Sequence[TableRow], known_log: FloatArray, wanted: Sequence[TableRow]
) -> FloatArray:
    """Returns the log latency of the row most like each wanted row; NaN where there is none."""
    keys: list[Callable[[TableRow], Hashable]] = [
        lambda row: (*row.item, row.engine, row.precision, row.batch, row.concurrency),
        lambda row: (*row.item, normalise_precision(row.precision), row.batch, row.concurrency),
        lambda row: (*row.item, row.batch, row.concurrency),
        lambda row: row.item,
    ]
    found = np.full(len(wanted), np.nan)
    for key in keys:
        by_key: dict[Hashable, list[float]] = {}
        for row, value in zip(known, known_log.tolist(), strict=True):
            by_key.setdefault(key(row), []).append(value)
        for position, row in enumerate(wanted):
            if np.isnan(found[position]) and (values := by_key.get(key(row))):
                found[position] = float(np.mean(values))
    return found
