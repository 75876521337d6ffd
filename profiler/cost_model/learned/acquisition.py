"""What a measurement is worth: by how much it is expected to lessen the errors of all points.

Bayesian experimental design, greedily, by the absolute error of predicted log latencies (Chaloner
and Verdinelli, "Bayesian Experimental Design: A Review", 1995, section 2). Of a normal variable
that is proportional to its standard deviation, so that it has a closed form and does not depend on
what the measurement will turn out to be. A-optimal design, by the squared error, would measure for
the few points that are least known: the extremes, where models are least to be trusted.
"""

from __future__ import annotations

import numpy as np

from modelless.variants.estimates import FloatArray


class Gains:
    """What knowing a point would take off the errors of all of them.

    Args:
        covariance: of what is not known of n points, shape (n, n), squared log latency.
        noise_variance: of one measurement; points are predicted no better than they are measured.
    """

    def __init__(self, covariance: FloatArray, noise_variance: float) -> None:
        self._covariance = covariance.copy()
        self._noise_variance = noise_variance

    def now(self) -> FloatArray:
        """For each point, the standard deviations that it takes off in all, shape (n,)."""
        variance = np.diag(self._covariance) + self._noise_variance
        taken_off = self._covariance**2 / variance  # column by column: by measuring that point
        left = np.maximum(variance[:, None] - taken_off, self._noise_variance)
        return np.asarray((np.sqrt(variance)[:, None] - np.sqrt(left)).sum(axis=0))

    def learn(self, row: int) -> None:
        """As if that point had been measured."""
        column = self._covariance[:, row].copy()
        self._covariance -= np.outer(column, column) / (column[row] + self._noise_variance)
