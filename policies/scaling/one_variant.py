"""One variant: each task has one variant for good, chosen for the memory that there is.

This is the plan behind a server whose operator names the model, such as Clipper (Crankshaw et al.,
NSDI 2017), as Proteus (Ahmad et al., ASPLOS 2024) compares with it: the most accurate variants, or
those of the highest throughput. Proteus plans the replicas by an integer programme for a known
load; here the plan is made before any load is known, and is a rule.

The tasks share the memory of a worker equally. A task's variant is the one that fits into this
share on most workers, and of those the most accurate or the quickest. Where no variant fits into
the share, the smallest is loaded on as many workers as the task's share of the class's memory
holds, but on one at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import NamedTuple

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets, VariantFacts
from modelless.variants.vocabulary import Placement


class OneVariant(ScalingPolicy):
    """One variant a task, on every worker that has room for it; nothing follows the load.

    Args:
        prefer: ``most-accurate`` or ``fastest`` of the variants that fit.
    """

    def __init__(self, prefer: str = "most-accurate") -> None:
        if prefer not in ("most-accurate", "fastest"):
            raise InvalidInputError.of("prefer", prefer, "most-accurate or fastest")
        self.prefer = prefer

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        tasks = sorted({variant.task for variant in view.variants})
        classes: dict[str, _Class] = {}
        for worker in view.workers:
            known = classes.get(worker.device_class, _Class(0, inf))
            least_bytes = min(known.memory_bytes, worker.memory_bytes)
            classes[worker.device_class] = _Class(known.workers + 1, least_bytes)
        wanted: dict[Placement, int] = {}
        for task in tasks:
            variants = [variant for variant in view.variants if variant.task == task]
            wanted |= self._plan(variants, classes, len(tasks))
        return Targets(wanted, {}, Reason.PLANNED)

    def _plan(
        self, variants: list[VariantFacts], classes: Mapping[str, _Class], tasks: int
    ) -> dict[Placement, int]:
        """Returns the instances of one of so many tasks."""

        def count_room(variant: VariantFacts) -> dict[str, int]:
            """Returns the number of workers that hold it within the task's share, by class."""
            return {
                name: classes[name].workers
                for name in _runs_on(variant, classes)
                if tasks * variant.memory_bytes[name] <= classes[name].memory_bytes
            }

        def key(variant: VariantFacts) -> tuple[float | str, ...]:
            latency_s = min(variant.latency_s[name] for name in _runs_on(variant, classes))
            order = (-variant.accuracy_percent, latency_s)
            if self.prefer == "fastest":
                order = (order[1], order[0])
            return (-sum(count_room(variant).values()), *order, variant.variant_id)

        runnable = [variant for variant in variants if _runs_on(variant, classes)]
        if not runnable:
            return {}
        chosen = min(runnable, key=key)
        room = count_room(chosen)
        if not room:
            chosen = min(runnable, key=lambda v: (min(_bytes(v, classes)), v.variant_id))
            names = _runs_on(chosen, classes)
            shares = (classes[name].workers * classes[name].memory_bytes / tasks for name in names)
            held = zip(names, shares, _bytes(chosen, classes), strict=True)
            room = {name: max(1, int(share / needed)) for name, share, needed in held}
        return {Placement(chosen.variant_id, name): count for name, count in room.items()}


class _Class(NamedTuple):
    """The workers of a device class: how many, and the memory of the smallest."""

    workers: int
    memory_bytes: float


def _runs_on(variant: VariantFacts, classes: Mapping[str, _Class]) -> list[str]:
    """Returns the device classes on which the variant runs and fits, by name."""
    return [
        name
        for name in sorted(classes)
        if isfinite(variant.latency_s.get(name, inf))
        and 0.0 < variant.memory_bytes.get(name, inf) <= classes[name].memory_bytes
    ]


def _bytes(variant: VariantFacts, classes: Mapping[str, _Class]) -> list[float]:
    """Returns its memory on each of the classes on which it runs."""
    return [variant.memory_bytes[name] for name in _runs_on(variant, classes)]
