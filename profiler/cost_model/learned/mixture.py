"""The process leaning on proxies in several ways, each believed as the shots bear it out.

Another device's latencies of the same items tell much or nothing of this one: a sister device all,
one of another make little. Whether to follow all of them a little, one far, or one to the letter is
not known before a device is measured; so all of these predict, and count by how likely each made
the measurements: Bayesian model averaging (Hoeting, Madigan, Raftery and Volinsky, "Bayesian Model
Averaging: A Tutorial", 1999). Where they disagree, bands are wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.learned.process import Adapted, Belief, Process
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]
Way = Callable[[Belief, IntArray], Belief]

# How far a proxy is followed where it differs from the process: half the way, or none, or all.
_WEIGHT, _WEIGHT_VARIANCE = 0.5, 0.25
# A sister is the same device at another speed: all measurements differ by one factor and by a few
# per cent, and one that does not tells that it is none.
_SISTER_LEVEL_VARIANCE, _SISTER_NOISE_VARIANCE = 1.0, 0.08**2
# Evidence counts for half: no way is quite true, and ten measurements would choose too surely
# (Grunwald, "The Safe Bayesian", 2012).
_TEMPER = 0.5
_LEAST_SHARE = 1e-3  # of the belief, for a way to be worth its time


class Mixture:
    """A process that has seen a device's shots.

    Args:
        process: fitted to other devices.
        belief: what it expects of the device's n rows.
        contrasts: how each of p proxies differs from that, shape (p, n), NaN for items that it
            lacks; see ``contrasts_of``.
        shots: which rows were measured, k of them; may be none.
        values: what they turned out to be, shape (k,).
    """

    def __init__(
        self,
        process: Process,
        belief: Belief,
        contrasts: FloatArray,
        shots: IntArray,
        values: FloatArray,
    ) -> None:
        self._belief = belief
        each = [contrast[None] for contrast in contrasts]
        leaning = [contrasts, *each] if len(each) > 1 else [contrasts]
        # Whether a device has a sister is for measurements to say.
        sisters = contrasts if len(shots) else contrasts[:0]
        ways: list[Way] = [partial(_leaning, some) for some in leaning]
        ways += [partial(_sister, contrast) for contrast in sisters]
        noise = [None] * len(leaning) + [_SISTER_NOISE_VARIANCE] * len(sisters)
        members = [
            Adapted(process, way(belief, shots), values, noise_variance)
            for way, noise_variance in zip(ways, noise, strict=True)
        ]
        priors = [1.0] + [1.0 / max(len(each), 1)] * (len(ways) - 1)
        evidence = np.array([member.evidence for member in members])
        shares_log = np.log(priors) + _TEMPER * evidence
        kept = np.flatnonzero(_shares_of(shares_log) > _LEAST_SHARE)
        self._shares_log = shares_log[kept]
        self._members = [(ways[number], members[number]) for number in kept]

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """(mean, variance with noise) at some rows, shape (n,) each."""
        means, variances = _stacked(
            member.predict(way(self._belief, rows)) for way, member in self._members
        )
        return _mixed(_shares_of(self._shares_log)[:, None], means, variances)

    def covariance(self, rows: IntArray) -> tuple[FloatArray, float]:
        """(covariance of what is not known of some rows, variance of one measurement's noise).

        Where ways disagree, that is not known either: the law of total covariance.

        Args:
            rows: n of them; the covariance is of shape (n, n).
        """
        shares = _shares_of(self._shares_log)
        beliefs = [way(self._belief, rows) for way, _ in self._members]
        members = [member for _, member in self._members]
        means, _ = _stacked(
            member.predict(belief) for member, belief in zip(members, beliefs, strict=True)
        )
        apart = means - shares @ means
        total = (shares[:, None] * apart).T @ apart
        for share, member, belief in zip(shares, members, beliefs, strict=True):
            total += share * member.covariance(belief)
        noise_variance = shares @ [member.noise_variance for member in members]
        return np.asarray(total), float(noise_variance)

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Each shot's error and its variance, noise included, had it been left out, shape (k,).

        Without the shot its evidence is missing as well: ways that it alone spoke for count less.
        """
        errors, variances = _stacked(member.left_out() for _, member in self._members)
        density_log = -0.5 * (errors**2 / variances + np.log(variances))
        shares = _shares_of(self._shares_log[:, None] - _TEMPER * density_log)
        return _mixed(shares, errors, variances)


def _shares_of(shares_log: FloatArray) -> FloatArray:
    """Shares of the first axis, from their logs up to a constant."""
    shares = np.exp(shares_log - shares_log.max(axis=0))
    return np.asarray(shares / shares.sum(axis=0))


def _stacked(each: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    means, variances = (np.array(some) for some in zip(*each, strict=True))
    return means, variances


def _mixed(
    shares: FloatArray, means: FloatArray, variances: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of a mixture of m members at n points, shape (n,), by total variance.

    Args:
        shares: of the members, shape (m, 1) or (m, n).
        means, variances: shape (m, n).
    """
    mean = (shares * means).sum(axis=0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(axis=0)


def _leaning(contrasts: FloatArray, belief: Belief, rows: IntArray) -> Belief:
    known = np.nan_to_num(contrasts[:, rows], nan=0.0)
    return belief.take(rows).leaning_on(known, _WEIGHT, _WEIGHT_VARIANCE)


def _sister(contrast: FloatArray, belief: Belief, rows: IntArray) -> Belief:
    # Of items that the sister does not have the process is as unsure as ever.
    doubt = np.isnan(contrast[rows]).astype(float)
    known = np.nan_to_num(contrast[rows], nan=0.0)
    return belief.take(rows).following(known, doubt, _SISTER_LEVEL_VARIANCE)
