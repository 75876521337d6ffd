"""Loads before any query comes: of what an operator names or pins, or the last run served most.

A scaling policy around another one: it wants what is still to be preloaded before all else. It
gives each scope up once a worker holds it, or after ``most_s`` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from modelless.policies.scopes import in_scope
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets
from modelless.variants.vocabulary import Placement


class Preloading(ScalingPolicy):
    """Wants the quickest variant of each scope once, and what the other policy wants.

    Args:
        scopes: the first ones first.
        most_s: how long it may take, seconds.
    """

    def __init__(self, policy: ScalingPolicy, scopes: Sequence[str], most_s: float = 300.0) -> None:
        self.policy = policy
        self._scopes = list(dict.fromkeys(scopes))
        self._most_s = most_s
        self._end_s: float | None = None
        self._pinned: tuple[str, ...] = ()

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        targets = self.policy.targets(view, forecast_per_s)
        self._scopes += [scope for scope in view.pinned if scope not in self._pinned]
        if self._end_s is None or view.pinned != self._pinned:
            self._pinned = view.pinned
            self._end_s = view.now_s + self._most_s
        if view.now_s >= self._end_s:
            self._scopes = []
        held = {each.variant_id for worker in view.workers for each in worker.instances}
        self._scopes = [
            scope for scope in self._scopes if not any(in_scope(name, scope) for name in held)
        ]
        first = [self._quickest(scope, view) for scope in self._scopes]
        wanted = {placement: 1 for placement in first if placement is not None}
        if not wanted:
            return targets
        both = {**wanted, **targets.instances}
        return replace(
            targets,
            instances={p: max(count, wanted.get(p, 0)) for p, count in both.items()},
            on_demand=False,
        )

    def _quickest(self, scope: str, view: ClusterView) -> Placement | None:
        """Return the placement with the least latency that could be loaded now; None if unknown."""
        classes = {worker.device_class for worker in view.workers}
        known = [
            (latency_s, variant.variant_id, name)
            for variant in view.variants
            if in_scope(variant.variant_id, scope)
            for name, latency_s in variant.latency_s.items()
            if name in classes and latency_s < inf
        ]
        if not known:
            return None
        _, variant_id, name = min(known)
        return Placement(variant_id, name)
