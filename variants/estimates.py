"""Estimates of placements, as the cost model gives them to all other code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.variants.vocabulary import Placement

FloatArray = NDArray[np.float64]

_P95_OF_P99 = 1.645 / 2.326  # of a normal variable, from the median


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

    @property
    def p95_s(self) -> FloatArray:
        """The 95th percentile, shape (n,), seconds; see ``p95_of``."""
        return p95_of(self.p50_s, self.p99_s)


def p95_of(p50_s: FloatArray, p99_s: FloatArray) -> FloatArray:
    """Returns the 95th percentile of lognormal latencies; inf where it is unknown."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p95_s = p50_s * np.fmax(p99_s / p50_s, 1.0) ** _P95_OF_P99
    return np.where(np.isfinite(p95_s), p95_s, np.inf)


class CostModel(Protocol):
    """Predicts what a placement costs and learns from what it is told."""

    def estimate(
        self, placements: Sequence[Placement], batch: int, load: Load, size: int = 0
    ) -> Estimates:
        """Predict latency, memory and load time of each placement at ``batch`` items a batch.

        ``size``: numbers in one item's inputs together; 0 for items as they were profiled.
        """
        ...

    def observe(
        self, placement: Placement, batch: int, load: Load, latency_s: float, size: int = 0
    ) -> bool:
        """Learn that a batch of items of a size took ``latency_s`` seconds.

        Return whether that makes estimates that were given before obsolete.
        """
        ...

    def doubt(self) -> None:
        """Learn that a query was refused, as all placements are predicted to be too slow for it."""
        ...
