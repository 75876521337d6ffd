"""A scaling policy that wants something else every few seconds, until the load ends."""

from __future__ import annotations

import random
from collections.abc import Mapping

from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class Restless(ScalingPolicy):
    """Random instances and numbers of workers, so that loads, unloads and resizes meet faults.

    Args:
        until_s: when it calms down, on the control process's clock. From then on it wants what
            ``Fixed`` does, and a worker if there is none: somebody must answer.
        seed: of its random generator.
    """

    def __init__(self, until_s: float, seed: int = 0) -> None:
        self._rng = random.Random(f"{seed}/restless")
        self._until_s = until_s
        self._left_ticks = 0
        self._targets = Targets({}, {}, Reason.WANTED)

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        if view.now_s >= self._until_s:
            return Fixed({} if view.workers else {"cpu-1": 1}).targets(view, forecast_per_s)
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
