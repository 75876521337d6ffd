"""Gaussian-process regression with outliers played down, and cheap adapting to a few more points.

Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section
5.4.2 (leave-one-out from the inverse). Profiles hold outliers (a run that was throttled, a
fallback to another processor): a point that the others find unlikely is believed less, by iterated
reweighting (Huber, "Robust Statistics", 1981, section 7.8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from modelless.profiler.cost_model.learned.kernel import Kernel
from modelless.profiler.cost_model.learned.points import Points
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

_HUBER = 1.7  # standard deviations beyond which a point is played down
_REJECTED = 7.5  # and beyond which it is taken for a fault: it is as noisy as it is far off
_REWEIGHTINGS, _FEW_REWEIGHTINGS = 8, 2
_MANY = 300  # points, for each reweighting to take long
_SETTLED = 0.01  # relative change of every point's noise at which reweighting ends
_JITTER = 1e-8
_NOISE_STEPS = np.array([30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01])
_LEAST_FOR_NOISE = 12  # points, for their noise to be told from them
_MOST_FOR_NOISE = 300  # looked at for that: it takes a dozen factorisations


@dataclass(frozen=True, slots=True)
class Belief:
    """What is expected at n points after the training points were seen.

    Attributes:
        points: which.
        mean: shape (n,).
        variance: of the function, without noise, shape (n,).
        whitened: covariance with the training points in their whitened basis, shape (t, n).
        inputs: further inputs, each of which counts for an unknown standard normal number of times,
            shape (q, n).
        doubt: how far the function may be from the mean, but for the inputs, in units of what the
            process says, shape (n,).
    """

    points: Points
    mean: FloatArray
    variance: FloatArray
    whitened: FloatArray
    inputs: FloatArray
    doubt: FloatArray

    def take(self, rows: IntArray) -> Belief:
        """Some of the points."""
        return Belief(
            self.points.take(rows),
            self.mean[rows],
            self.variance[rows],
            self.whitened[:, rows],
            self.inputs[:, rows],
            self.doubt[rows],
        )

    def leaning_on(self, inputs: FloatArray, weight: float, weight_variance: float) -> Belief:
        """With a linear term in ``inputs``, shape (q, n), of which each counts a q-th.

        How much they count is known as a normal variable: Bayesian linear regression, in the same
        solve as the process (Rasmussen and Williams, section 2.7).
        """
        count = max(len(inputs), 1)
        scaled = np.sqrt(weight_variance / count) * inputs
        return replace(
            self,
            mean=self.mean + weight / count * inputs.sum(axis=0),
            variance=self.variance + (scaled**2).sum(axis=0),
            inputs=scaled,
        )

    def following(self, contrast: FloatArray, doubt: FloatArray, level_variance: float) -> Belief:
        """With ``contrast`` added to the mean, which is then right but for a constant and a doubt.

        Args:
            contrast: shape (n,).
            doubt: see ``Belief``.
            level_variance: of the constant.
        """
        return replace(
            self,
            mean=self.mean + contrast,
            variance=doubt**2 * self.variance + level_variance,
            inputs=np.full((1, len(contrast)), np.sqrt(level_variance)),
            doubt=doubt,
        )


class Process:
    """A fitted process.

    Args:
        kernel: the covariance.
        points, values: t training points, values of shape (t,); t may be 0.
    """

    def __init__(self, kernel: Kernel, points: Points, values: FloatArray) -> None:
        self.kernel = kernel
        self.points = points
        covariance = kernel.covariance(points, points)
        self._noise, self._factor, self._weights = _fit(covariance, values, kernel.noise_variance)

    def believe(self, points: Points) -> Belief:
        """What is expected at ``points``."""
        covariance = self.kernel.covariance(self.points, points)
        mean = covariance.T @ self._weights
        whitened = (
            solve_triangular(self._factor, covariance, lower=True) if len(mean) else covariance
        )
        variance = self.kernel.variance(points) - (whitened**2).sum(axis=0)
        none, usual = np.empty((0, len(points))), np.ones(len(points))
        return Belief(points, mean, np.maximum(variance, 0.0), whitened, none, usual)

    def covariance(self, left: Belief, right: Belief) -> FloatArray:
        """Between n and m points after the training points were seen, shape (n, m)."""
        prior = self.kernel.covariance(left.points, right.points)
        seen = prior - left.whitened.T @ right.whitened
        doubts = np.outer(left.doubt, right.doubt)
        return np.asarray(doubts * seen + left.inputs.T @ right.inputs)

    def left_out(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Errors and variances of training rows had they all been left out.

        Args:
            rows: k of them.

        Returns:
            Two arrays of shape (k,). Variances are of ordinary measurements: a point that was
            played down was so for lying far off, and must not seem less far off for it.
        """
        block = self._precision[np.ix_(rows, rows)] + _JITTER * np.eye(len(rows))
        left = cho_solve((cholesky(block, lower=True), True), np.eye(len(rows)))
        variance = np.maximum(np.diag(left) - self._noise[rows], 0.0) + self.kernel.noise_variance
        return left @ self._weights[rows], variance

    @cached_property
    def _precision(self) -> FloatArray:
        """The inverse of the training points' covariance with noise, shape (t, t)."""
        half = solve_triangular(self._factor, np.eye(len(self.points)), lower=True)
        return np.asarray(half.T @ half)


class Adapted:
    """A process that has seen a few points more.

    With enough of them, how noisy they are is told by evidence: measurements of one's own repeat
    better than those of a public table.

    Args:
        process: what came before.
        shots: k points more, as the process believes them to be; k may be 0.
        values: what they turned out to be, shape (k,).
        noise_variance: of one measurement, if known; then no shot is taken for an outlier either.

    Attributes:
        noise_variance: of one measurement.
        evidence: log marginal likelihood of the values, up to a constant of the process.
    """

    def __init__(
        self,
        process: Process,
        shots: Belief,
        values: FloatArray,
        noise_variance: float | None = None,
    ) -> None:
        self._process = process
        self._shots = shots
        covariance = process.covariance(shots, shots)
        surprise = values - shots.mean
        some = np.linspace(0, len(values) - 1, min(len(values), _MOST_FOR_NOISE)).astype(int)
        steps = _NOISE_STEPS if len(values) >= _LEAST_FOR_NOISE else np.ones(1)
        noises = (process.kernel.noise_variance * steps).tolist()
        has_outliers = noise_variance is None
        self.evidence: float
        self.noise_variance: float
        self.evidence, self.noise_variance = max(
            (_evidence(covariance[np.ix_(some, some)], surprise[some], each, has_outliers), each)
            for each in (noises if noise_variance is None else [noise_variance])
        )
        self._noise, self._factor, self._weights = _fit(
            covariance, surprise, self.noise_variance, has_outliers
        )

    def predict(self, belief: Belief) -> tuple[FloatArray, FloatArray]:
        """(mean, variance with noise) at the points of ``belief``, shape (n,) each."""
        if not len(self._weights):
            return belief.mean, belief.variance + self.noise_variance
        covariance = self._process.covariance(self._shots, belief)
        whitened = solve_triangular(self._factor, covariance, lower=True)
        variance = np.maximum(belief.variance - (whitened**2).sum(axis=0), 0.0)
        return belief.mean + covariance.T @ self._weights, variance + self.noise_variance

    def covariance(self, belief: Belief) -> FloatArray:
        """Between the points of ``belief``, noise left out, shape (n, n)."""
        prior = self._process.covariance(belief, belief)
        if not len(self._weights):
            return prior
        covariance = self._process.covariance(self._shots, belief)
        whitened = solve_triangular(self._factor, covariance, lower=True)
        return np.asarray(prior - whitened.T @ whitened)

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Each shot's error and its variance, noise included, had it been left out, shape (k,)."""
        if not len(self._weights):
            return np.empty(0), np.empty(0)
        return _left_out(self._factor, self._weights, self._noise, self.noise_variance)


def _evidence(
    covariance: FloatArray, values: FloatArray, noise_variance: float, has_outliers: bool
) -> float:
    """Log marginal likelihood of values, up to a constant (Rasmussen and Williams, equation 5.8).

    Outliers are played down by heavier noise first, so that a few do not speak for all.
    """
    noise, factor, weights = _fit(covariance, values, noise_variance, has_outliers)
    played_down = 0.5 * float(np.log(noise / noise_variance).sum())
    return -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum()) - played_down


def _fit(
    covariance: FloatArray, values: FloatArray, noise_variance: float, has_outliers: bool = True
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(noise of each point, Cholesky factor with that noise, the values solved by it)."""
    noise = np.full(len(values), noise_variance)
    if not len(values):
        return noise, covariance, values
    reweightings = _REWEIGHTINGS if len(values) <= _MANY else _FEW_REWEIGHTINGS
    for _ in range(reweightings if has_outliers else 0):
        factor = cholesky(covariance + np.diag(noise + _JITTER), lower=True)
        weights = cho_solve((factor, True), values)
        error, variance = _left_out(factor, weights, noise, noise_variance)
        apart = np.abs(error) / np.sqrt(variance)
        # Huber's weight, squared: the farther off a point is, the less it pulls.
        before, noise = noise, noise_variance * np.maximum(1.0, apart / _HUBER) ** 2
        noise = np.where(apart > _REJECTED, np.maximum(noise, error**2), noise)
        if (np.abs(noise - before) <= _SETTLED * before).all():
            break
    factor = cholesky(covariance + np.diag(noise + _JITTER), lower=True)
    weights = cho_solve((factor, True), values)
    return noise, factor, weights


def _left_out(
    factor: FloatArray, weights: FloatArray, noise: FloatArray, ordinary_noise: float
) -> tuple[FloatArray, FloatArray]:
    """Each point's error, and its variance were it ordinary, had it been left out."""
    precision = _inverse_diagonal(factor)
    variance = np.maximum(1.0 / precision - noise, 0.0) + ordinary_noise
    return weights / precision, variance


def _inverse_diagonal(factor: FloatArray) -> FloatArray:
    """The diagonal of the inverse of what ``factor`` is the Cholesky factor of."""
    inverse = solve_triangular(factor, np.eye(len(factor)), lower=True)
    return np.asarray((inverse**2).sum(axis=0))
