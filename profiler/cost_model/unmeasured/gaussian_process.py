"""Gaussian-process regression with robust noise, and cheap conditioning on a few more points.

Sources: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and
section 5.4.2 (leave-one-out errors from the inverse). Profiles hold outliers, such as a throttled
run or a fallback to another processor. A point that the others make unlikely gets more noise, by
iterated reweighting (Huber, "Robust Statistics", 1981, section 7.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy  # its parts are imported when they are used: what serves does without

from modelless.profiler.cost_model.unmeasured.features import IntArray, Points
from modelless.profiler.cost_model.unmeasured.kernel import Kernel
from modelless.variants.estimates import FloatArray

_HUBER = 1.7  # standard deviations beyond which a point is weighted down
_REJECTED = 7.5  # standard deviations beyond which a point's noise is its whole error
_REWEIGHTINGS, _FEW_REWEIGHTINGS = 8, 2
_MANY = 300  # points from which each reweighting takes long
_SETTLED = 0.01  # relative change of every point's noise at which reweighting ends
_JITTER = 1e-8
_NOISE_STEPS = np.array([30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01])
_LEAST_FOR_NOISE = 12  # points from which their noise variance is estimated
_MOST_FOR_NOISE = 300  # points used for that; it takes a dozen factorisations


@dataclass(frozen=True, slots=True)
class Posterior:
    """The distribution at n points, given the t training points.

    Attributes:
        points: the points.
        mean: shape (n,).
        variance: variance of the function, without noise, shape (n,).
        whitened: covariance with the training points in their whitened basis, shape (t, n).
        inputs: inputs of q further linear terms with standard normal weights, shape (q, n).
    """

    points: Points
    mean: FloatArray
    variance: FloatArray
    whitened: FloatArray
    inputs: FloatArray

    def select(self, rows: IntArray) -> Posterior:
        """Returns the distribution at these rows."""
        return Posterior(
            self.points.select(rows),
            self.mean[rows],
            self.variance[rows],
            self.whitened[:, rows],
            self.inputs[:, rows],
        )

    def with_linear_terms(
        self, inputs: FloatArray, weight: float, weight_variance: float
    ) -> Posterior:
        """Returns the distribution with the mean of ``inputs`` added, at uncertain weights.

        This is Bayesian linear regression in the same solve as the process (Rasmussen and Williams,
        section 2.7).

        Args:
            inputs: shape (q, n).
            weight: expected sum of the weights.
            weight_variance: variance of that sum, of normal weights.
        """
        count = max(len(inputs), 1)
        scaled = np.sqrt(weight_variance / count) * inputs
        return replace(
            self,
            mean=self.mean + weight / count * inputs.sum(axis=0),
            variance=self.variance + (scaled**2).sum(axis=0),
            inputs=scaled,
        )


class GaussianProcess:
    """A Gaussian process fitted to training points.

    Args:
        kernel: the covariance function.
        points: t training points; t may be 0.
        values: their values, shape (t,).
    """

    def __init__(self, kernel: Kernel, points: Points, values: FloatArray) -> None:
        self.kernel = kernel
        self.points = points
        covariance = kernel.covariance(points, points)
        self._noise, self._factor, self._weights = _fit(covariance, values, kernel.noise_variance)

    def posterior_at(self, points: Points) -> Posterior:
        """Returns the distribution at ``points``."""
        covariance = self.kernel.covariance(self.points, points)
        mean = covariance.T @ self._weights
        whitened = (
            scipy.linalg.solve_triangular(self._factor, covariance, lower=True)
            if len(mean)
            else covariance
        )
        variance = self.kernel.variance(points) - (whitened**2).sum(axis=0)
        none = np.empty((0, len(points)))
        return Posterior(points, mean, np.maximum(variance, 0.0), whitened, none)

    def covariance(self, left: Posterior, right: Posterior) -> FloatArray:
        """Returns the covariance between n and m points given the training points, shape (n, m)."""
        prior = self.kernel.covariance(left.points, right.points)
        conditioned = prior - left.whitened.T @ right.whitened
        return np.asarray(conditioned + left.inputs.T @ right.inputs)

    def leave_out(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the errors and variances at k training rows if all of them were left out.

        Returns:
            Two arrays of shape (k,). The variances are those of ordinary measurements: a point that
            was weighted down because it is far off must not seem less far off for that.
        """
        block = self._precision[np.ix_(rows, rows)] + _JITTER * np.eye(len(rows))
        covariance = scipy.linalg.cho_solve(
            (scipy.linalg.cholesky(block, lower=True), True), np.eye(len(rows))
        )
        own = np.maximum(np.diag(covariance) - self._noise[rows], 0.0)
        return covariance @ self._weights[rows], own + self.kernel.noise_variance

    @cached_property
    def _precision(self) -> FloatArray:
        """The inverse of the training points' covariance with noise, shape (t, t)."""
        half = scipy.linalg.solve_triangular(self._factor, np.eye(len(self.points)), lower=True)
        return np.asarray(half.T @ half)


class ConditionedProcess:
    """A Gaussian process that is conditioned on a few more points.

    With enough of these points, the evidence decides how noisy they are: measurements of one's own
    repeat better than those of a public table.

    Args:
        process: the process before.
        shots: its distribution at the k further points; k may be 0.
        values: their measured values, shape (k,).

    Attributes:
        noise_variance: noise variance of one measurement.
    """

    def __init__(
        self,
        process: GaussianProcess,
        shots: Posterior,
        values: FloatArray,
    ) -> None:
        self._process = process
        self._shots = shots
        covariance = process.covariance(shots, shots)
        residuals = values - shots.mean
        some = np.linspace(0, len(values) - 1, min(len(values), _MOST_FOR_NOISE)).astype(int)
        steps = _NOISE_STEPS if len(values) >= _LEAST_FOR_NOISE else np.ones(1)
        noises = (process.kernel.noise_variance * steps).tolist()
        self.noise_variance: float = max(
            noises,
            key=lambda each: _evidence(covariance[np.ix_(some, some)], residuals[some], each),
        )
        self._noise, self._factor, self._weights = _fit(covariance, residuals, self.noise_variance)

    def predict(self, posterior: Posterior) -> tuple[FloatArray, FloatArray]:
        """Returns the mean and the variance with noise at the points, shape (n,) each."""
        if not len(self._weights):
            return posterior.mean, posterior.variance + self.noise_variance
        covariance = self._process.covariance(self._shots, posterior)
        whitened = scipy.linalg.solve_triangular(self._factor, covariance, lower=True)
        variance = np.maximum(posterior.variance - (whitened**2).sum(axis=0), 0.0)
        return posterior.mean + covariance.T @ self._weights, variance + self.noise_variance

    def covariance(self, posterior: Posterior) -> FloatArray:
        """Returns the covariance between the points, without noise, shape (n, n)."""
        prior = self._process.covariance(posterior, posterior)
        if not len(self._weights):
            return prior
        covariance = self._process.covariance(self._shots, posterior)
        whitened = scipy.linalg.solve_triangular(self._factor, covariance, lower=True)
        return np.asarray(prior - whitened.T @ whitened)

    def leave_groups_out(self, groups: Sequence[IntArray]) -> tuple[FloatArray, FloatArray]:
        """Returns each shot's error, and its variance with noise, if its group were left out.

        Args:
            groups: numbers of shots; each shot is in one group.
        """
        half = scipy.linalg.solve_triangular(self._factor, np.eye(len(self._factor)), lower=True)
        precision = half.T @ half
        error, variance = np.empty((2, len(self._weights)))
        for group in groups:
            covariance = np.linalg.inv(precision[np.ix_(group, group)])
            error[group] = covariance @ self._weights[group]
            own = np.maximum(np.diag(covariance) - self._noise[group], 0.0)
            variance[group] = own + self.noise_variance
        return error, variance


def _evidence(covariance: FloatArray, values: FloatArray, noise_variance: float) -> float:
    """Returns the log marginal likelihood up to a constant (Rasmussen and Williams, equation 5.8).

    Outliers get more noise first, so that a few of them do not decide.
    """
    noise, factor, weights = _fit(covariance, values, noise_variance)
    added = 0.5 * float(np.log(noise / noise_variance).sum())
    return -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum()) - added


def _fit(
    covariance: FloatArray, values: FloatArray, noise_variance: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns each point's noise, the Cholesky factor with that noise, and the solved values."""
    noise = np.full(len(values), noise_variance)
    if not len(values):
        return noise, covariance, values
    reweightings = _REWEIGHTINGS if len(values) <= _MANY else _FEW_REWEIGHTINGS
    for _ in range(reweightings):
        factor = scipy.linalg.cholesky(covariance + np.diag(noise + _JITTER), lower=True)
        weights = scipy.linalg.cho_solve((factor, True), values)
        error, variance = _leave_one_out(factor, weights, noise, noise_variance)
        apart = np.abs(error) / np.sqrt(variance)
        # Huber's weight, squared: a point counts the less, the farther off it is.
        before, noise = noise, noise_variance * np.maximum(1.0, apart / _HUBER) ** 2
        noise = np.where(apart > _REJECTED, np.maximum(noise, error**2), noise)
        if (np.abs(noise - before) <= _SETTLED * before).all():
            break
    factor = scipy.linalg.cholesky(covariance + np.diag(noise + _JITTER), lower=True)
    weights = scipy.linalg.cho_solve((factor, True), values)
    return noise, factor, weights


def _leave_one_out(
    factor: FloatArray, weights: FloatArray, noise: FloatArray, ordinary_noise: float
) -> tuple[FloatArray, FloatArray]:
    """Returns each point's error, and its variance at ordinary noise, if it were left out."""
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    precision = np.asarray((inverse**2).sum(axis=0))  # the diagonal of the inverse covariance
    variance = np.maximum(1.0 / precision - noise, 0.0) + ordinary_noise
    return weights / precision, variance
