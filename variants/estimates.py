"""What is expected of placements: the form in which the cost model speaks to everyone else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.variants.vocabulary import Placement

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """What else happens on the device's host while a batch runs.

    Attributes:
        busy_neighbours: mean number of other devices of the same host that are busy, 0 or more.
    """

    busy_neighbours: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimates:
    """Predictions for n placements at one batch size and load, as columns of shape (n,), float64.

    Attributes:
        p50_s, p90_s, p99_s: latency quantiles of the whole batch, seconds; inf where nothing is known.
        memory_bytes: resident growth when loaded; inf where unknown.
        load_s: from artifact on disk to warm, seconds; inf where unknown.
    """

    p50_s: FloatArray
    p90_s: FloatArray
    p99_s: FloatArray
    memory_bytes: FloatArray
    load_s: FloatArray

    def deadline_probability(self, budget_s: float) -> FloatArray:
        """P(latency <= budget_s), shape (n,): linear between the quantiles, in log latency."""
        levels = (0.50, 0.90, 0.99)
        out = np.zeros_like(self.p50_s)
        if not budget_s > 0.0:
            return out
        log_budget = np.log(budget_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            knots = np.log(np.stack([self.p50_s, self.p90_s, self.p99_s]))
            for low, high, p_low, p_high in (
                (knots[0], knots[1], levels[0], levels[1]),
                (knots[1], knots[2], levels[1], levels[2]),
            ):
                share = np.clip((log_budget - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)
                out = np.where(log_budget >= low, p_low + share * (p_high - p_low), out)
            # Below the median the curve is mirrored; above p99 it runs out to 1 over as far again.
            below = np.clip((log_budget - (2 * knots[0] - knots[1])) / np.maximum(knots[1] - knots[0], 1e-9), 0.0, 1.0)
            out = np.where(log_budget < knots[0], 0.10 + 0.40 * below, out)
            out = np.where(below <= 0.0, 0.0, out)
            beyond = np.clip((log_budget - knots[2]) / np.maximum(knots[2] - knots[1], 1e-9), 0.0, 1.0)
            out = np.where(log_budget >= knots[2], 0.99 + 0.01 * beyond, out)
        return np.where(np.isfinite(self.p50_s), out, 0.0)


class CostModel(Protocol):
    """Predicts what a placement costs and learns from what it is told."""

    def estimate(self, placements: Sequence[Placement], batch: int, load: Load) -> Estimates:
        """Predict latency, memory and load time of each placement for batches of ``batch`` items."""
        ...

    def observe(self, placement: Placement, batch: int, load: Load, latency_s: float) -> None:
        """Learn that a batch took ``latency_s`` seconds."""
        ...
