"""Estimates of placements, as the cost model gives them to all other code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.variants.vocabulary import Placement

FloatArray = NDArray[np.float64]

_LEVELS = (0.10, 0.50, 0.90, 0.99, 1.0)
_NARROWEST = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the device's host while a batch runs.

    Attributes:
        busy_neighbours: mean number of other devices of the same host that are busy, 0 or more.
        at_s: when that was so, seconds on the driver's clock; what was learned fades by it.
    """

    busy_neighbours: float = 0.0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimates:
    """Predictions for n placements at one batch size and load, as columns of shape (n,), float64.

    Attributes:
        p50_s, p90_s, p99_s: latency quantiles of the whole batch, seconds; inf where unknown.
        memory_bytes: resident growth when loaded; inf where unknown.
        load_s: from artifact on disk to warm, seconds; inf where unknown.
    """

    p50_s: FloatArray
    p90_s: FloatArray
    p99_s: FloatArray
    memory_bytes: FloatArray
    load_s: FloatArray

    def deadline_probability(self, budget_s: float) -> FloatArray:
        """P(latency <= budget_s), shape (n,).

        Linear in log latency through the three quantiles, and beyond them as far again as between
        the outer two: 0.1 at the mirror of p90 below the median, 1 past p99.
        """
        if not budget_s > 0.0:
            return np.zeros_like(self.p50_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            p50, p90, p99 = np.log(np.stack([self.p50_s, self.p90_s, self.p99_s]))
            low = p50 - np.maximum(p90 - p50, _NARROWEST)
            mid = np.maximum(p90, p50 + _NARROWEST)
            high = np.maximum(p99, mid + _NARROWEST)
            knots = (low, p50, mid, high, 2.0 * high - mid)
            log_budget = np.log(budget_s)
            probability = np.zeros_like(self.p50_s)
            for start, end, p_start, p_end in zip(
                knots, knots[1:], _LEVELS, _LEVELS[1:], strict=False
            ):
                share = np.clip((log_budget - start) / (end - start), 0.0, 1.0)
                inside = p_start + share * (p_end - p_start)
                probability = np.where(log_budget >= start, inside, probability)
        return np.where(np.isfinite(self.p50_s), probability, 0.0)


class CostModel(Protocol):
    """Predicts what a placement costs and learns from what it is told."""

    def estimate(self, placements: Sequence[Placement], batch: int, load: Load) -> Estimates:
        """Predict latency, memory and load time of each placement at ``batch`` items a batch."""
        ...

    def observe(self, placement: Placement, batch: int, load: Load, latency_s: float) -> None:
        """Learn that a batch took ``latency_s`` seconds."""
        ...

    def doubt(self, placements: Sequence[Placement], at_s: float) -> None:
        """Learn that a query was refused, as all of these are predicted to be too slow for it."""
        ...
