"""The process leaning on proxies in several ways, each believed as the shots bear it out.

Another device's latencies of the same items tell much or nothing of this one: a sister device all,
one of another make little. Whether to follow all of them a little or one far is not known before
a device is measured; so all of these predict, and count by how likely each made the measurements:
Bayesian model averaging (Hoeting, Madigan, Raftery and Volinsky, "Bayesian Model Averaging: A
Tutorial", 1999). Where they disagree, bands are wider.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.learning.process import Adapted, Belief, Process
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

# How far a proxy is followed where it differs from the process: half the way, or none, or all.
_WEIGHT, _WEIGHT_VARIANCE = 0.5, 0.25
# Evidence counts for half: no way is quite true, and ten measurements would choose too surely
# (Grunwald, "The Safe Bayesian", 2012).
_TEMPER = 0.5
_LEAST_SHARE = 1e-3  # of the belief, for a way to be worth its time


class Mixture:
    """A process that has seen a device's shots.

    Args:
        process: fitted to other devices.
        belief: what it expects of the device's n rows.
        contrasts: how each of p proxies differs from that, shape (p, n); see ``contrasts_of``.
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
        ways, priors = [contrasts], [1.0]
        if len(contrasts) > 1:
            ways += [contrast[None] for contrast in contrasts]
            priors += [1.0 / len(contrasts)] * len(contrasts)
        seen = belief.take(shots)
        members = [Adapted(process, _leaning(seen, way[:, shots]), values) for way in ways]
        evidence = np.array([member.evidence for member in members])
        shares_log = np.log(priors) + _TEMPER * evidence
        shares = np.exp(shares_log - shares_log.max())
        shares /= shares.sum()
        kept = np.flatnonzero(shares > _LEAST_SHARE)
        self._shares = shares[kept] / shares[kept].sum()
        self._members = [(ways[number], members[number]) for number in kept]

    def predict(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """(mean, variance with noise) at some rows, shape (n,) each."""
        belief = self._belief.take(rows)
        return self._mixed(
            member.predict(_leaning(belief, way[:, rows])) for way, member in self._members
        )

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Each shot's error and its variance, noise included, had it been left out, shape (k,)."""
        return self._mixed(member.left_out() for _, member in self._members)

    def _mixed(
        self, each: Iterable[tuple[FloatArray, FloatArray]]
    ) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the mixture, by the law of total variance."""
        means, variances = (np.array(some) for some in zip(*each, strict=True))
        mean = self._shares @ means
        return mean, self._shares @ (variances + (means - mean) ** 2)


def _leaning(belief: Belief, contrasts: FloatArray) -> Belief:
    return belief.leaning_on(contrasts, _WEIGHT, _WEIGHT_VARIANCE)
