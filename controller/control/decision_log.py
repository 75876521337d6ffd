"""Entries for the history: decisions and their outcomes, from each tick's view and effects.

A planner repeats a decision at every tick until it has come true, so a decision becomes an entry
only when it is new. Devices report the outcomes, such as a load that ended or failed; a worker that
is gone is missing in the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modelless.controller.control.messages import Entry, EntryKind, PlanEffect, Planned, ScalePool
from modelless.controller.device.messages import (
    ChangeKind,
    LoadInstance,
    ResidencyChange,
    ResizeWorker,
    UnloadInstance,
)
from modelless.policies.scopes import in_scope
from modelless.policies.views import ClusterView, Instance, VariantFacts, WorkerState

_Key = tuple[str, str, str]


class DecisionLog:
    """Finds what is new at each tick of one control machine."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerState] = {}
        self._is_new = True
        self._decided: set[_Key] = set()
        self._pools: dict[str, int] = {}
        self._plan = ""
        self._failed: dict[tuple[str, str], str] = {}
        self._problems: frozenset[str] = frozenset()
        self._left: set[str] = set()
        self._quarantined: Mapping[tuple[str, str], str] = {}

    def note_goodbye(self, worker_id: str) -> None:
        """The worker left in good order: the next tick does not take it for a lost one."""
        if worker_id in self._workers:
            self._left.add(worker_id)

    def entries(
        self,
        view: ClusterView,
        effects: Sequence[PlanEffect],
        changes: Iterable[ResidencyChange] = (),
        problems: Iterable[str] = (),
    ) -> list[Entry]:
        """Return the new entries, in the order of events.

        Args:
            changes: loads and unloads that ended since the last tick.
        """
        entries = self._worker_entries(view)
        entries += self._change_entries(changes)
        entries += self._decision_entries(view, effects)
        complaints = frozenset(problems)
        entries += [
            Entry(EntryKind.POLICY_PROBLEM, problem.partition(" ")[0], problem, {})
            for problem in sorted(complaints - self._problems)
        ]
        self._problems = complaints
        return entries

    def quarantine_entries(self, signs: Mapping[tuple[str, str], str]) -> list[Entry]:
        """Return an entry for each quarantine that began or ended.

        Args:
            signs: why a gateway gives a worker no batches for now, by the worker and the gateway.
        """
        before, self._quarantined = self._quarantined, signs
        return [
            Entry(kind, worker, some[worker, gateway], {"gateway": gateway})
            for kind, some, others in (
                (EntryKind.QUARANTINED, signs, before),
                (EntryKind.QUARANTINE_ENDED, before, signs),
            )
            for worker, gateway in some
            if (worker, gateway) not in others
        ]

    # -- outcomes -----------------------------------------------------------------------------

    def _worker_entries(self, view: ClusterView) -> list[Entry]:
        entries: list[Entry] = []
        if self._is_new:  # what was before is in the entries of another log
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

    def _change_entries(self, changes: Iterable[ResidencyChange]) -> list[Entry]:
        entries: list[Entry] = []
        for change in changes:
            worker = self._workers.get(change.worker_id)
            if worker is None:  # it reported the change, and left
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

    def _decision_entries(self, view: ClusterView, effects: Sequence[PlanEffect]) -> list[Entry]:
        entries: list[Entry] = []
        facts = {variant.variant_id: variant for variant in view.variants}
        pools: dict[str, int] = {}
        decided: set[_Key] = set()
        displaced: dict[tuple[str, str], list[str]] = {}  # by worker and what it makes room for
        for effect in effects:
            if isinstance(effect, UnloadInstance):
                place = effect.worker_id, effect.for_variant_id
                displaced.setdefault(place, []).append(effect.variant_id)
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
                    entries.append(_load(view, effect, worker, facts, displaced))
                else:
                    entries.append(_unload(view, effect, worker))
        self._decided = decided
        self._pools = pools
        return entries


def _ready(worker: WorkerState) -> dict[str, Instance]:
    """The loaded instances; one that still loads has no size yet."""
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
    displaced: Mapping[tuple[str, str], list[str]],
) -> Entry:
    details: dict[str, Any] = {"worker": worker.worker_id, "device_class": worker.device_class}
    known = facts.get(effect.variant_id)
    if known is not None:
        details["memory_bytes"] = _finite(known.memory_bytes.get(worker.device_class))
        details["load_s"] = _finite(known.load_s.get(worker.device_class))
    details["displaced"] = displaced.get((effect.worker_id, effect.variant_id), [])
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
    """The outcome of a resize since the last tick."""
    size = before.resizing_to
    if now.device_class != before.device_class:
        kind, reason, size = EntryKind.RESIZED, "took over", now.device_class
    elif size and not now.resizing_to:
        kind, reason = EntryKind.RESIZE_FAILED, "what it holds could not be loaded again"
    else:
        return []
    return [Entry(kind, now.worker_id, reason, {"size_before": before.device_class, "size": size})]


def _load_of(view: ClusterView, workers: Sequence[WorkerState]) -> dict[str, Any]:
    """How busy these workers were, and the rate of all queries."""
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
