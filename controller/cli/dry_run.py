"""What would be chosen: the dispatcher and policy that serve, on idle devices, no cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    DispatchEffect,
    Execute,
    QueryArrived,
    Refuse,
    Tick,
    WakeAt,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.receipts import explain_candidates
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Candidates, QueryView
from modelless.variants.estimates import CostModel
from modelless.variants.registry.catalog import Scope
from modelless.variants.vocabulary import SLO, DeviceClass, Placement, Variant

_MOST_WAKES = 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the dispatcher decided.

    Attributes:
        chosen: the placement that would run it; None if it was refused.
        reason: of the choice or the refusal; None if the policy goes on waiting for more queries.
        refusal: the refusal; None if something was chosen.
        candidates: ``explain_candidates``'s rows, the most accurate first.
    """

    chosen: Placement | None
    reason: Reason | None
    refusal: Refuse | None
    candidates: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class DryRun:
    """A instances of idle devices, one of each class, which hold all that is profiled for them.

    Attributes:
        variants: by id.
        devices: by name.
        cost_model: what predicts.
        placements: what there is to choose from.
        limits: the core's.
    """

    variants: Mapping[str, Variant]
    devices: Mapping[str, DeviceClass]
    cost_model: CostModel
    placements: Sequence[Placement]
    limits: DispatchLimits

    def ask(
        self,
        scope: Scope,
        slo: SLO,
        items: int,
        default_latency_s: float,
        selection: SelectionPolicy,
        seed: int = 0,
    ) -> Verdict:
        """Let one query of ``items`` items come in."""
        instances = ReadyInstances(
            self.variants, self.devices, self.cost_model, self.limits.max_batch
        )
        dispatcher = Dispatcher(instances, selection, np.random.default_rng(seed), self.limits)
        for name in self.devices:
            ready = tuple(p.variant_id for p in self.placements if p.device_class == name)
            dispatcher.handle(WorkerReported(WorkerReport(name, name, ready)), 0.0)
        query = QueryView(
            query_id=1,
            scope=scope.name,
            arrival_s=0.0,
            deadline_s=default_latency_s if slo.latency_ms is None else slo.latency_ms / 1e3,
            min_accuracy_percent=slo.min_accuracy or 0.0,
            max_cost_usd=float("inf") if slo.max_cost_usd is None else slo.max_cost_usd,
            priority=slo.priority,
            items=items,
            serve_late=slo.serves_late,
            has_default_deadline=slo.latency_ms is None,
        )
        candidates = instances.candidates(scope.name, items, 0.0)
        effects = _until_decided(dispatcher, dispatcher.handle(QueryArrived(query), 0.0))
        receipt = dispatcher.receipt(query.query_id)
        ran = any(isinstance(effect, Execute) for effect in effects)
        chosen = None
        if receipt is not None and ran:
            chosen = Placement(receipt.variant_id, receipt.device_class)
        return Verdict(
            chosen,
            receipt.reason if receipt is not None else None,
            next((effect for effect in effects if isinstance(effect, Refuse)), None),
            _explain(query, candidates, chosen),
        )


def _until_decided(
    dispatcher: Dispatcher, effects: Sequence[DispatchEffect]
) -> Sequence[DispatchEffect]:
    """Let time pass as far as the policy asks for, until the query runs or is refused."""
    for _ in range(_MOST_WAKES):
        if any(isinstance(effect, (Execute, Refuse)) for effect in effects):
            break
        wakes = [effect.at_s for effect in effects if isinstance(effect, WakeAt)]
        if not wakes:
            break
        effects = dispatcher.handle(Tick(), min(wakes))
    return effects


def _explain(
    query: QueryView, candidates: Candidates, chosen: Placement | None
) -> list[dict[str, Any]]:
    row = candidates.placements.index(chosen) if chosen in candidates.placements else None
    rows = explain_candidates(query, candidates, row)
    for entry in rows:
        entry["why"] = _why(entry, rows[row] if row is not None else None)
    return sorted(rows, key=lambda entry: (-entry["accuracy"], entry["p50_ms"]))


def _why(entry: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> str:
    """Why a candidate was or was not chosen, in words."""
    if entry["chosen"]:
        return "chosen"
    if entry["misses"]:
        return ", ".join(entry["misses"])
    if chosen is None:
        return "within the limits"
    worse = []
    if entry["accuracy"] < chosen["accuracy"]:
        worse.append(f"{chosen['accuracy'] - entry['accuracy']:.1f} points less accurate")
    if entry["cost_usd"] > chosen["cost_usd"]:
        worse.append(f"{entry['cost_usd'] / chosen['cost_usd'] - 1.0:.0%} more expensive")
    if entry["p99_ms"] > chosen["p99_ms"]:
        worse.append(f"{entry['p99_ms'] - chosen['p99_ms']:.1f} ms slower")
    return "within the limits, but " + (", ".join(worse) or "the policy prefers another")
