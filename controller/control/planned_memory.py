"""Memory as a plan sees it: measured sizes, and the workers as the plan's effects leave them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import replace
from operator import is_

from modelless.policies.scopes import in_scope
from modelless.policies.views import ClusterView, Instance, VariantFacts, WorkerState
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Placement


class MeasuredMemory:
    """Memory and load time of each placement that was seen loaded, in place of its profile.

    Of several workers of a class the largest figure counts, as it must fit in each. The last figure
    of a placement that was unloaded is remembered for its return. It is remembered for each worker
    of the view: otherwise a worker that it was too large for would load it again by the figure from
    elsewhere. There is one entry for each placement of the view, and one for each worker that held
    it.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, dict[str, dict[str, int]]] = {}  # by worker, class, variant; bytes
        self._measured: dict[str, dict[str, tuple[int, float]]] = {}  # by class and variant

    def apply_to(self, view: ClusterView) -> ClusterView:
        """Return the view with its variants' figures replaced by those measured so far."""
        self._learn(view)
        of_classes = self._measured.items()
        variants = tuple(
            [
                _with(facts, {name: its[facts.variant_id] for name, its in of_classes
                              if facts.variant_id in its})
                for facts in view.variants
            ]
        )  # fmt: skip
        if all(map(is_, variants, view.variants)):
            return view
        return replace(view, variants=variants)

    def _learn(self, view: ClusterView) -> None:
        now: dict[str, dict[str, tuple[int, float]]] = {}
        known = {facts.variant_id for facts in view.variants}
        before, self._sizes = self._sizes, {}
        for worker in view.workers:
            own = worker.device_class  # it may have been resized
            sizes = before.get(worker.worker_id, {})
            if sum(map(len, sizes.values())) > len(worker.instances):
                sizes = {own: {v: size for v, size in sizes.get(own, {}).items() if v in known}}
            self._sizes[worker.worker_id] = sizes
            of_worker, of_class = sizes.setdefault(own, {}), now.setdefault(own, {})
            for instance in worker.instances:
                size_bytes, load_s = instance.memory_bytes, max(instance.load_s, 0.0)
                if size_bytes > 0:  # else it is still loading
                    variant_id = instance.variant_id
                    of_worker[variant_id] = size_bytes
                    most = of_class.get(variant_id)
                    of_class[variant_id] = (
                        (max(size_bytes, most[0]), max(load_s, most[1]))
                        if most is not None
                        else (size_bytes, load_s)
                    )
        for sizes in self._sizes.values():
            for device_class, of_worker in sizes.items():
                of_class = now.get(device_class, {})
                for variant_id, size_bytes in of_worker.items():
                    most = of_class.get(variant_id)
                    if most is not None and size_bytes > most[0]:
                        of_class[variant_id] = (size_bytes, most[1])
        for device_class, of_class in now.items():
            self._measured.setdefault(device_class, {}).update(of_class)
        for device_class, measured in self._measured.items():
            if len(measured) > len(now.get(device_class, ())):
                self._measured[device_class] = {v: it for v, it in measured.items() if v in known}


def _with(facts: VariantFacts, measured: dict[str, tuple[int, float]]) -> VariantFacts:
    """Return the facts with measured figures; the same object if they do not differ."""
    if not measured:
        return facts
    memory = {name: size for name, (size, _) in measured.items() if name in facts.memory_bytes}
    loads = {name: load_s for name, (_, load_s) in measured.items() if name in facts.load_s}
    if all(_ceil(facts.memory_bytes[name]) == size for name, size in memory.items()) and all(
        facts.load_s[name] == load_s for name, load_s in loads.items()
    ):
        return facts
    return replace(
        facts, memory_bytes={**facts.memory_bytes, **memory}, load_s={**facts.load_s, **loads}
    )


def expected_bytes(facts: VariantFacts | None, device_class: str) -> float:
    """Memory that a variant takes on a device class; inf if it cannot run there."""
    return _ceil(facts.memory_bytes.get(device_class, math.inf)) if facts else math.inf


def _ceil(size: float) -> float:
    return math.ceil(size) if math.isfinite(size) else math.inf


class PlannedMemory:
    """A copy of a view's workers that changes as a plan is made.

    An instance that is still loading may report no memory yet; what it is expected to take counts.
    A worker that is being resized counts as what it becomes, and is given nothing until it is.
    """

    def __init__(self, view: ClusterView) -> None:
        self._facts = {variant.variant_id: variant for variant in view.variants}
        self._now_s = view.now_s
        self._workers: dict[str, WorkerState] = {}
        self._held: dict[str, set[str]] = {}
        self._of_class: dict[str, list[str]] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by device class
        self._copies: Counter[str] = Counter()
        self._names: dict[str, set[str]] = {}  # by worker that was asked, without versions
        self._ready = {
            each.variant_id
            for worker in view.workers
            for each in worker.instances
            if not each.is_loading
        }
        for worker in view.workers:
            if any(each.memory_bytes <= 0 for each in worker.instances):
                weighed = tuple([self._weighed(i, worker.device_class) for i in worker.instances])
                worker = replace(worker, instances=weighed)
            self._workers[worker.worker_id] = worker
            if not worker.resizing_to:
                self._of_class.setdefault(worker.device_class, []).append(worker.worker_id)
            self._held[worker.worker_id] = held = {i.variant_id for i in worker.instances}
            self._counts[worker.size].update(held)
            self._copies.update(held)

    def needed_bytes(self, placement: Placement) -> int | None:
        """Memory an instance takes; None if it cannot run there or that is unknown."""
        size = expected_bytes(self._facts.get(placement.variant_id), placement.device_class)
        return int(size) if size < math.inf else None

    def count(self, placement: Placement) -> int:
        """How many workers of the class hold the variant, or are loading it."""
        return self._counts[placement.device_class][placement.variant_id]

    def without(self, placement: Placement, full: Container[str]) -> tuple[WorkerState, ...]:
        """The workers of the class that neither hold the variant, nor bar it, nor are ``full``.

        A full worker that holds another version of the variant is given, too.
        """
        variant_id, name = placement.variant_id, name_of(placement.variant_id)
        return tuple(
            [
                self._workers[worker_id]
                for worker_id in self._of_class.get(placement.device_class, ())
                if variant_id not in self._held[worker_id]
                and (worker_id not in full or name in self._names_on(worker_id))
                and variant_id not in self._workers[worker_id].barred
            ]
        )

    def worker(self, worker_id: str) -> WorkerState:
        return self._workers[worker_id]

    def out_of_reach(
        self, home: WorkerState, scope: str, min_accuracy_percent: float
    ) -> list[Placement]:
        """Return what could serve the scope's queries but is held, or being loaded, only by other
        workers of the worker's pool: the most accurate first. Empty while something in reach could.
        """
        held: dict[str, bool] = {}
        for worker_id, names in self._held.items():
            is_near = worker_id == home.worker_id or self._workers[worker_id].pool != home.pool
            for name in names:
                held[name] = held.get(name, False) or is_near
        able = {
            name: self._facts[name].accuracy_percent
            for name in held
            if in_scope(name, scope) and self.is_accurate(name, min_accuracy_percent)
        }
        if home.resizing_to or any(held[name] for name in able):
            return []
        ranked = sorted(able, key=lambda name: (-able[name], name))
        return [Placement(name, home.device_class) for name in ranked if name not in home.barred]

    def is_accurate(self, variant_id: str, min_accuracy_percent: float) -> bool:
        facts = self._facts.get(variant_id)
        return facts is not None and facts.accuracy_percent >= min_accuracy_percent

    def newcomer(self, placement: Placement, worker_id: str) -> Instance:
        """The variant as it would be on the worker if it were loaded."""
        load_s = self._facts[placement.variant_id].load_s.get(placement.device_class, 0.0)
        needed_bytes = self.needed_bytes(placement) or 0
        return Instance(worker_id, placement.variant_id, needed_bytes, load_s, self._now_s, 0)

    def copies(self, scope: str) -> int:
        """How many instances of the scope's variants there are anywhere, loading ones too."""
        return sum(n for name, n in self._copies.items() if in_scope(name, scope))

    def is_ready(self, variant_id: str) -> bool:
        return variant_id in self._ready

    def load(self, worker_id: str, variant_id: str, memory_bytes: int) -> None:
        worker = self._workers[worker_id]
        arriving = Instance(worker_id, variant_id, memory_bytes, 0.0, self._now_s, 0, in_use=True)
        self._workers[worker_id] = replace(worker, instances=(*worker.instances, arriving))
        self._held[worker_id].add(variant_id)
        self._counts[worker.device_class][variant_id] += 1
        self._copies[variant_id] += 1
        self._names.pop(worker_id, None)

    def unload(self, worker_id: str, variant_id: str) -> None:
        worker = self._workers[worker_id]
        left = tuple(i for i in worker.instances if i.variant_id != variant_id)
        self._workers[worker_id] = replace(worker, instances=left)
        self._held[worker_id].discard(variant_id)
        self._counts[worker.device_class][variant_id] -= 1
        self._copies[variant_id] -= 1
        self._names.pop(worker_id, None)

    def _names_on(self, worker_id: str) -> set[str]:
        names = self._names.get(worker_id)
        if names is None:
            names = self._names[worker_id] = {name_of(each) for each in self._held[worker_id]}
        return names

    def _weighed(self, instance: Instance, device_class: str) -> Instance:
        if instance.memory_bytes > 0:
            return instance
        expected = self.needed_bytes(Placement(instance.variant_id, device_class))
        return replace(instance, memory_bytes=expected or 0)
