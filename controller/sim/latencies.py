"""Latencies as a profile has them: drawn through its three quantiles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from modelless.controller.sim.randomness import stream
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.cost_model.size_model import SizeModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

Z90 = 1.2815515655446004
Z99 = 2.3263478740408408
WIDEST_Z = 4.0
"""Draws lie within so many standard deviations: once in 16,000 one is cut to it."""

_BLOCK = 512


class Spread(NamedTuple):
    """The distribution of one placement's latency at one batch.

    The logarithm of latency is piecewise linear in a standard normal: through p50, p90 and p99, on
    beyond p99, and below the median mirrored; lognormal where the quantiles are.

    Attributes:
        p50_s, p90_s, p99_s: seconds.
        lower, upper: slopes of log latency up to p90 and beyond.
    """

    p50_s: float
    p90_s: float
    p99_s: float
    lower: float
    upper: float

    def at(self, z: float) -> float:
        """The latency at ``z`` standard deviations, seconds."""
        if z <= Z90:
            return self.p50_s * math.exp(self.lower * z)
        return self.p90_s * math.exp(self.upper * (z - Z90))

    @property
    def least_s(self) -> float:
        """No draw is below this."""
        return self.at(-WIDEST_Z)

    @property
    def most_s(self) -> float:
        """No draw is above this."""
        return self.at(WIDEST_Z)


def spread(p50_s: float, p90_s: float, p99_s: float) -> Spread:
    """The distribution with these quantiles."""
    lower = math.log(p90_s / p50_s) / Z90
    upper = math.log(p99_s / p90_s) / (Z99 - Z90)
    return Spread(p50_s, p90_s, p99_s, lower, upper)


class Truth:
    """What batches really take, before neighbours and faults: the profile times the true ratio.

    Args:
        fleet: its measurements are those that the cost model learns from, too.
        max_batch: items in the largest batch.
    """

    def __init__(self, fleet: Fleet, max_batch: int) -> None:
        model = self._model = ServingCostModel(fleet.measurements, sizes=SizeModel(fleet.sized))
        ratios = self._ratios = fleet.true_ratios
        self._at_size: dict[tuple[Placement, int, int], Spread] = {}
        placements = tuple(
            Placement(facts.variant_id, name) for facts in fleet.facts for name in facts.latency_s
        )
        self._spreads: dict[tuple[str, str], list[Spread]] = {
            (placement.variant_id, placement.device_class): [] for placement in placements
        }
        true = [ratios.get((each.variant_id, each.device_class), 1.0) for each in placements]
        for batch in range(1, max_batch + 1):
            told = model.estimate(placements, batch, Load())
            columns = np.stack([told.p50_s, told.p90_s, told.p99_s], axis=1)
            columns = (columns * np.array(true)[:, np.newaxis]).tolist()
            for placement, quantiles in zip(placements, columns, strict=True):
                key = (placement.variant_id, placement.device_class)
                self._spreads[key].append(spread(*quantiles))

    def at_size(self, placement: Placement, batch: int, size: int) -> Spread:
        """Return the latencies of a batch whose items have ``size`` numbers each."""
        key = placement, batch, size
        found = self._at_size.get(key)
        if found is None:
            told = self._model.estimate((placement,), batch, Load(), size)
            quantiles_s = np.array([told.p50_s[0], told.p90_s[0], told.p99_s[0]])
            quantiles_s *= self._ratios.get((placement.variant_id, placement.device_class), 1.0)
            found = self._at_size[key] = spread(*quantiles_s.tolist())
        return found

    def of_class(self, device_class: str) -> dict[str, list[Spread]]:
        """By variant id, what runs on the class: at index b - 1 that of a batch of b items."""
        return {
            variant_id: spreads
            for (variant_id, name), spreads in self._spreads.items()
            if name == device_class
        }


class Normals:
    """Standard normals within ``WIDEST_Z``, one by one, drawn in blocks from a stream by name."""

    def __init__(self, seed: int, *names: str) -> None:
        self._rng = stream(seed, *names)
        self._left: list[float] = []

    def __call__(self) -> float:
        if not self._left:
            block = self._rng.standard_normal(_BLOCK)
            self._left = np.clip(block, -WIDEST_Z, WIDEST_Z).tolist()
        return self._left.pop()
