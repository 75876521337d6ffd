"""What variants take, as measured: a load that ended here says more than any profile."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from modelless.policies.views import ClusterView, VariantFacts
from modelless.variants.vocabulary import Placement


class Footprints:
    """Memory and load time of each placement that was seen loaded, in place of what was declared.

    Of several workers of a class the largest figure counts: it must fit in each. What has left is
    remembered as it was last, for when it is to come back; and by each worker of the view, or one
    that it was too large for would have it loaded again for what it took elsewhere. One entry a
    placement of the view, and one a worker that held it.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, dict[Placement, int]] = {}  # by worker, bytes
        self._measured: dict[Placement, tuple[int, float]] = {}

    def applied(self, view: ClusterView) -> ClusterView:
        """The view, its variants' figures replaced by what was measured so far, it included."""
        self._learn(view)
        of_variant: defaultdict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        for placement, figures in self._measured.items():
            of_variant[placement.variant_id][placement.device_class] = figures
        variants = tuple(
            _with(facts, of_variant[facts.variant_id]) if facts.variant_id in of_variant else facts
            for facts in view.variants
        )
        if all(new is old for new, old in zip(variants, view.variants, strict=True)):
            return view
        return replace(view, variants=variants)

    def _learn(self, view: ClusterView) -> None:
        now: dict[Placement, tuple[int, float]] = {}
        known = {facts.variant_id for facts in view.variants}
        before, self._sizes = self._sizes, {}
        for worker in view.workers:
            sizes = before.get(worker.worker_id, {})
            if len(sizes) > len(worker.instances):
                own = worker.device_class  # it may have been resized
                sizes = {
                    p: size
                    for p, size in sizes.items()
                    if p.device_class == own and p.variant_id in known
                }
            self._sizes[worker.worker_id] = sizes
            for instance in worker.instances:
                if instance.memory_bytes > 0:  # else it is still loading
                    placement = Placement(instance.variant_id, worker.device_class)
                    sizes[placement] = instance.memory_bytes
                    size_bytes, load_s = now.get(placement, (0, 0.0))
                    now[placement] = (
                        max(size_bytes, instance.memory_bytes),
                        max(load_s, instance.load_s if instance.load_s >= 0.0 else 0.0),
                    )
        for sizes in self._sizes.values():
            for placement, size_bytes in sizes.items():
                if placement in now and size_bytes > now[placement][0]:
                    now[placement] = (size_bytes, now[placement][1])
        self._measured.update(now)
        if len(self._measured) > len(now):
            self._measured = {p: f for p, f in self._measured.items() if p.variant_id in known}


def _with(facts: VariantFacts, measured: dict[str, tuple[int, float]]) -> VariantFacts:
    """The facts with measured figures; itself where those are what it says already."""
    memory = {name: size for name, (size, _) in measured.items() if name in facts.memory_bytes}
    loads = {name: load_s for name, (_, load_s) in measured.items() if name in facts.load_s}
    if all(_ceil(facts.memory_bytes[name]) == size for name, size in memory.items()) and all(
        facts.load_s[name] == load_s for name, load_s in loads.items()
    ):
        return facts
    return replace(
        facts,
        memory_bytes={**facts.memory_bytes, **memory},
        load_s={**facts.load_s, **loads},
    )


def _ceil(size: float) -> float:
    return math.ceil(size) if math.isfinite(size) else size
