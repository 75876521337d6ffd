"""Fixed: every worker holds every variant that pays, and the number of workers stays as it is.

"Pays" drops variants that another of the same task dominates (at least as accurate and quick, and
better in one).
"""

from __future__ import annotations

from collections.abc import Mapping

from modelless.policies.reasons import Reason
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets, VariantFacts
from modelless.variants.vocabulary import Placement


class Fixed(ScalingPolicy):
    """The variants on the latency-accuracy frontier of each device class, on each of its workers.

    Args:
        workers: wanted workers by device class; classes not named are left alone.
        keep_dominated: hold dominated variants as well, after the others, memory allowing.
    """

    def __init__(
        self, workers: Mapping[str, int] | None = None, keep_dominated: bool = True
    ) -> None:
        self.workers = dict(workers or {})
        self.keep_dominated = keep_dominated

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        instances: dict[Placement, int] = {}
        for name in sorted({worker.device_class for worker in view.workers}):
            count = sum(worker.device_class == name for worker in view.workers)
            runnable = [v for v in view.variants if name in v.latency_s]
            on_frontier = [v for v in runnable if not _dominated(v, runnable, name)]
            ordered = sorted(on_frontier, key=lambda v: (v.latency_s[name], v.variant_id))
            if self.keep_dominated:
                rest = set(map(_id, runnable)) - set(map(_id, ordered))
                ordered += sorted((v for v in runnable if v.variant_id in rest), key=_id)
            for variant in ordered:
                instances[Placement(variant.variant_id, name)] = count
        return Targets(instances, self.workers, Reason.FIXED_SIZE)


def _id(variant: VariantFacts) -> str:
    return variant.variant_id


def _dominated(variant: VariantFacts, others: list[VariantFacts], device_class: str) -> bool:
    mine = (variant.accuracy_percent, -variant.latency_s[device_class])
    for other in others:
        if other.task != variant.task or other is variant:
            continue
        theirs = (other.accuracy_percent, -other.latency_s[device_class])
        if theirs[0] >= mine[0] and theirs[1] >= mine[1] and theirs != mine:
            return True
    return False
