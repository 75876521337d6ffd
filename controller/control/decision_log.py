"""What the control plane did and what came of it: entries made from each tick's view and effects.

A planner says the same thing at every tick until it has come true, so a decision is an entry only
when it is new. What came of it, a load that ended or failed, the devices tell; a worker that went
is missed in the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.effects import (
    LoadInstance,
    PlanEffect,
    Planned,
    ResizeWorker,
    ScalePool,
    UnloadInstance,
)
from modelless.policies.scopes import in_scope
from modelless.policies.views import ClusterView, Instance, VariantFacts, WorkerState


class EntryKind(StrEnum):
    """What an entry tells; the simulator's control log uses the same words."""

    LOAD = "load"
    LOADED = "loaded"
    LOAD_FAILED = "load-failed"
    UNLOAD = "unload"
    UNLOADED = "unloaded"
    SCALE = "scale"
    RESIZE = "resize"
    RESIZED = "resized"
    RESIZE_FAILED = "resize-failed"
    PLAN = "plan"
    CONTROL_UP = "control-up"
    UPGRADE = "upgrade"
    WORKER_UP = "worker-up"
    WORKER_GONE = "worker-gone"
    POLICY_PROBLEM = "policy-problem"
    ENTRIES_LOST = "entries-lost"


class Entry(NamedTuple):
    """Something that was decided, or came of a decision.

    Attributes:
        kind: what.
        subject: the variant, the device class or the worker it is about.
        reason: why; of what came of a decision, what happened.
        details: plain data for JSON; times in seconds, sizes in bytes.
    """

    kind: str
    subject: str
    reason: str
    details: Mapping[str, Any]


_Key = tuple[str, str, str]


class Chronicle:
    """Tells what is new at each tick of one control loop."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerState] = {}
        self._is_new = True
        self._decided: set[_Key] = set()
        self._pools: dict[str, int] = {}
        self._plan = ""
        self._failed: dict[tuple[str, str], str] = {}
        self._problems: frozenset[str] = frozenset()
        self._left: set[str] = set()

    def left(self, worker_id: str) -> None:
        """It has said goodbye: the next tick will not take it for one that was lost."""
        if worker_id in self._workers:
            self._left.add(worker_id)

    def tick(
        self,
        view: ClusterView,
        effects: Sequence[PlanEffect],
        changes: Iterable[ResidencyChange] = (),
        problems: Iterable[str] = (),
    ) -> list[Entry]:
        """The new entries, in the order of things.

        Args:
            view: what the planner decided on.
            effects: what it decided.
            changes: what came to devices and left them since the last tick.
            problems: what policies did wrong.
        """
        entries = self._seen(view)
        entries += self._came(changes)
        entries += self._decisions(view, effects)
        complaints = frozenset(problems)
        entries += [
            Entry(EntryKind.POLICY_PROBLEM, problem.partition(" ")[0], problem, {})
            for problem in sorted(complaints - self._problems)
        ]
        self._problems = complaints
        return entries

    # -- what came of it ----------------------------------------------------------------------

    def _seen(self, view: ClusterView) -> list[Entry]:
        entries: list[Entry] = []
        if self._is_new:  # whoever reads on knows nothing of what was before
            self._is_new = False
            entries.append(Entry(EntryKind.CONTROL_UP, "control", "began", {}))
        now = {worker.worker_id: worker for worker in view.workers}
        for gone in [name for name in self._workers if name not in now]:
            worker = self._workers[gone]
            held = sorted(i.variant_id for i in _ready(worker).values())
            lost = {"device_class": worker.device_class, "held": held}
            reason = "left in good order" if gone in self._left else "silent for too long"
            entries.append(Entry(EntryKind.WORKER_GONE, gone, reason, lost))
            self._failed = {w: problem for w, problem in self._failed.items() if w[0] != gone}
        self._left.clear()
        for worker in view.workers:
            before = self._workers.get(worker.worker_id)
            if before is not None:
                entries += _resized(before, worker)
                continue
            details = {
                "device_class": worker.device_class,
                "memory_bytes": worker.memory_bytes,
                "holds": sorted(_ready(worker)),
            }
            entries.append(Entry(EntryKind.WORKER_UP, worker.worker_id, "reported", details))
        self._workers = now
        return entries

    def _came(self, changes: Iterable[ResidencyChange]) -> list[Entry]:
        entries: list[Entry] = []
        for change in changes:
            worker = self._workers.get(change.worker_id)
            if worker is None:  # it told of it, and went
                continue
            where = (change.worker_id, change.variant_id)
            if change.kind != ChangeKind.LOAD_FAILED:
                self._failed.pop(where, None)
            elif self._failed.get(where) == change.problem:
                continue  # it is tried again and again
            else:
                self._failed[where] = change.problem
            entries.append(_change(change, worker.device_class))
        return entries

    # -- decisions ----------------------------------------------------------------------------

    def _decisions(self, view: ClusterView, effects: Sequence[PlanEffect]) -> list[Entry]:
        entries: list[Entry] = []
        facts = {variant.variant_id: variant for variant in view.variants}
        pools: dict[str, int] = {}
        decided: set[_Key] = set()
        for effect in effects:
            if isinstance(effect, ScalePool):
                pools[effect.device_class] = effect.workers
                if self._pools.get(effect.device_class) != effect.workers:
                    entries.append(_scale(view, effect))
            elif isinstance(effect, ResizeWorker):
                key = (EntryKind.RESIZE, effect.worker_id, effect.device_class)
                decided.add(key)
                if key not in self._decided and effect.worker_id in self._workers:
                    entries.append(_resize(view, effect, self._workers[effect.worker_id]))
            elif isinstance(effect, Planned):
                if effect.quality.words() != self._plan:
                    self._plan = effect.quality.words()
                    entries.append(_planned(view, effect))
            elif isinstance(effect, (LoadInstance, UnloadInstance)):
                loads = isinstance(effect, LoadInstance)
                kind = EntryKind.LOAD if loads else EntryKind.UNLOAD
                key = (kind, effect.worker_id, effect.variant_id)
                decided.add(key)
                if key in self._decided or effect.worker_id not in self._workers:
                    continue
                worker = self._workers[effect.worker_id]
                if isinstance(effect, LoadInstance):
                    entries.append(_load(view, effect, worker, facts, effects))
                else:
                    entries.append(_unload(view, effect, worker))
        self._decided = decided
        self._pools = pools
        return entries


def _ready(worker: WorkerState) -> dict[str, Instance]:
    """What is loaded; what is still loading has no size yet."""
    return {i.variant_id: i for i in worker.instances if i.memory_bytes}


def _change(change: ResidencyChange, device_class: str) -> Entry:
    details: dict[str, Any] = {"worker": change.worker_id, "device_class": device_class}
    reason = change.reason.value
    if change.kind == ChangeKind.LOADED:
        details |= {"load_s": round(change.seconds, 4), "displaced": list(change.displaced)}
    elif change.kind == ChangeKind.UNLOADED:
        details |= {"unload_s": round(change.seconds, 4), "for": change.for_variant_id or None}
    else:
        details["wanted_as"], reason = reason, change.problem
    if change.memory_bytes:
        details["memory_bytes"] = change.memory_bytes
    return Entry(EntryKind(change.kind.value), change.variant_id, reason, details)


def _load(
    view: ClusterView,
    effect: LoadInstance,
    worker: WorkerState,
    facts: Mapping[str, VariantFacts],
    effects: Iterable[PlanEffect],
) -> Entry:
    details: dict[str, Any] = {"worker": worker.worker_id, "device_class": worker.device_class}
    known = facts.get(effect.variant_id)
    if known is not None:
        details["memory_bytes"] = _finite(known.memory_bytes.get(worker.device_class))
        details["load_s"] = _finite(known.load_s.get(worker.device_class))
    details["displaced"] = [
        other.variant_id
        for other in effects
        if isinstance(other, UnloadInstance)
        and (other.worker_id, other.for_variant_id) == (effect.worker_id, effect.variant_id)
    ]
    details["arrivals_per_s"] = _rate(view.arrivals_per_s, effect.variant_id)
    details["unmet_per_s"] = _rate(view.unmet_per_s, effect.variant_id)
    return Entry(EntryKind.LOAD, effect.variant_id, effect.reason.value, details)


def _unload(view: ClusterView, effect: UnloadInstance, worker: WorkerState) -> Entry:
    details: dict[str, Any] = {
        "worker": worker.worker_id,
        "device_class": worker.device_class,
        "for": effect.for_variant_id or None,
    }
    instance = _ready(worker).get(effect.variant_id)
    if instance is not None:
        details["memory_bytes"] = instance.memory_bytes
        details["load_s"] = instance.load_s  # what having it back would take
        details["unused_s"] = round(max(view.now_s - instance.last_used_s, 0.0), 3)
        details["use_count"] = instance.use_count
    return Entry(EntryKind.UNLOAD, effect.variant_id, effect.reason.value, details)


def _scale(view: ClusterView, effect: ScalePool) -> Entry:
    present = [worker for worker in view.workers if worker.pool == effect.device_class]
    details = {"workers_before": len(present), "workers": effect.workers, **_load_of(view, present)}
    return Entry(EntryKind.SCALE, effect.device_class, effect.reason.value, details)


def _planned(view: ClusterView, effect: Planned) -> Entry:
    quality = effect.quality
    details = {
        "quality": quality.words(),
        "found_by": quality.source.value,
        "gap": _finite(quality.gap),
        "by_clock": quality.by_clock,
        **_load_of(view, view.workers),
    }
    return Entry(EntryKind.PLAN, "all workers", effect.reason.value, details)


def _resize(view: ClusterView, effect: ResizeWorker, worker: WorkerState) -> Entry:
    present = [other for other in view.workers if other.pool == worker.pool]
    details = {
        "size_before": worker.device_class,
        "size": effect.device_class,
        **_load_of(view, present),
    }
    return Entry(EntryKind.RESIZE, effect.worker_id, effect.reason.value, details)


def _resized(before: WorkerState, now: WorkerState) -> list[Entry]:
    """What came of a resize since the last tick."""
    size = before.resizing_to
    if now.device_class != before.device_class:
        kind, reason, size = EntryKind.RESIZED, "took over", now.device_class
    elif size and not now.resizing_to:
        kind, reason = EntryKind.RESIZE_FAILED, "what it holds could not be loaded again"
    else:
        return []
    return [Entry(kind, now.worker_id, reason, {"size_before": before.device_class, "size": size})]


def _load_of(view: ClusterView, workers: Sequence[WorkerState]) -> dict[str, Any]:
    """How busy these workers were, and what all clients asked for."""
    busy = [worker.busy_share for worker in workers]
    return {
        "busy_share": round(sum(busy) / len(busy), 3) if busy else None,
        "arrivals_per_s": round(sum(view.arrivals_per_s.values()), 3),
        "unmet_per_s": round(sum(view.unmet_per_s.values()), 3),
        "open_queries": sum(view.open_queries.values()),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rate(rates_per_s: Mapping[str, float], variant_id: str) -> float:
    """Of the scopes that the variant could serve."""
    return round(sum(r for scope, r in rates_per_s.items() if in_scope(variant_id, scope)), 3)
