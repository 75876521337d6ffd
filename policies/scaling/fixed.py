"""Fixed: every worker holds every variant, and the number of workers does not change.

Variants that no other dominates come first. A variant dominates another of its task if it is at
least as accurate and as quick, and better in one of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isfinite

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets, VariantFacts
from modelless.variants.vocabulary import Placement


class Fixed(ScalingPolicy):
    """The variants on the latency-accuracy frontier of each device class, on each of its workers.

    Args:
        workers: number of workers by device class; other classes are left alone.
        keep_dominated: whether to hold dominated variants as well, after the others, if memory
            allows.
    """

    def __init__(
        self, workers: Mapping[str, int] | None = None, keep_dominated: bool = True
    ) -> None:
        self.workers = dict(workers or {})
        for name, count in self.workers.items():
            if type(count) is not int or count < 0:
                raise InvalidInputError.of(f"workers.{name}", count, "a whole number, 0 or more")
        self.keep_dominated = keep_dominated

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        instances: dict[Placement, int] = {}
        for name, count in sorted(Counter(w.device_class for w in view.workers).items()):
            runnable = [v for v in view.variants if isfinite(v.latency_s.get(name, inf))]
            frontier = _frontier(runnable, name)
            ordered = sorted(frontier, key=lambda v: (v.latency_s[name], v.variant_id))
            if self.keep_dominated:
                held = {variant.variant_id for variant in frontier}
                rest = [variant for variant in runnable if variant.variant_id not in held]
                ordered += sorted(rest, key=lambda variant: variant.variant_id)
            for variant in ordered:
                instances[Placement(variant.variant_id, name)] = count
        return Targets(instances, self.workers, Reason.FIXED_SIZE)


def _frontier(variants: Sequence[VariantFacts], device_class: str) -> list[VariantFacts]:
    """Returns the variants that no other of their task dominates."""
    frontier: list[VariantFacts] = []
    quickest: dict[str, VariantFacts] = {}  # by task, of those at least as accurate
    for variant in sorted(variants, key=lambda v: (-v.accuracy_percent, v.latency_s[device_class])):
        best = quickest.get(variant.task)
        if best is None or variant.latency_s[device_class] < best.latency_s[device_class]:
            quickest[variant.task] = best = variant
        if (variant.accuracy_percent, variant.latency_s[device_class]) == (
            best.accuracy_percent,
            best.latency_s[device_class],
        ):
            frontier.append(variant)
    return frontier
