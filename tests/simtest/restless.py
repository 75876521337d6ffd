"""A scaling policy that wants something else every few seconds, while there is load."""

from __future__ import annotations

import random
from collections.abc import Mapping

from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement

CALM_TICKS = 4
"""Ticks without a query after which it wants what ``Fixed`` wants."""


class Restless(ScalingPolicy):
    """Random instances and numbers of workers, so that loads, unloads and resizes meet faults.

    Args:
        seed: of its random generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(f"{seed}/restless")
        self._fixed = Fixed()
        self._quiet_ticks = 0
        self._left_ticks = 0
        self._targets = Targets({}, {}, Reason.WANTED)

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        self._quiet_ticks = 0 if any(view.arrivals_per_s.values()) else self._quiet_ticks + 1
        if self._quiet_ticks >= CALM_TICKS:
            return self._fixed.targets(view, forecast_per_s)
        self._left_ticks -= 1
        if self._left_ticks < 0:
            self._left_ticks = self._rng.randrange(5)
            self._targets = self._draw(view)
        return self._targets

    def _draw(self, view: ClusterView) -> Targets:
        rng = self._rng
        instances = {
            Placement(variant.variant_id, name): rng.randrange(3)
            for variant in view.variants
            for name in sorted(variant.latency_s)
            if rng.random() < 0.5
        }
        workers = {name: rng.randrange(4) for name in ("cpu-1", "cpu-2") if rng.random() < 0.8}
        if rng.random() < 0.5:  # as many as there are: some are resized, and none comes or goes
            first = rng.randrange(len(view.workers) + 1)
            workers = {"cpu-1": first, "cpu-2": len(view.workers) - first}
        return Targets(instances, workers, Reason.WANTED, on_demand=rng.random() < 0.3)
