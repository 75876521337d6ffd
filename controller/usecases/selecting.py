"""Selecting: which variant would serve a query, decided on idle devices without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError
from modelless.controller.assembly import feedback_rules
from modelless.controller.config import load_settings
from modelless.controller.control.feedback import FeedbackAccuracies, stated_low_percent
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.explanations import explain_candidates, why_not
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    AccuraciesRevised,
    DispatchEffect,
    Execute,
    QueryArrived,
    Refuse,
    Tick,
    WakeAt,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.history.feedback import read_feedback
from modelless.controller.live.front.replies import error_of
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    accuracy_fields,
    home_folder,
    open_home,
    path_or_none,
    pick_device_classes,
)
from modelless.policies.discovery import build_policy
from modelless.policies.reasons import AnyReason
from modelless.policies.scopes import in_scope
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import Candidates, QueryView
from modelless.profiler.cost_model.dominated import without_dominated
from modelless.profiler.cost_model.drift_history import drifted_placements
from modelless.profiler.cost_model.model_inputs import cost_inputs_of, read_measurements
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.variants.registry.catalog import Scope
from modelless.variants.vocabulary import SLO, Accuracy, Placement

_MOST_WAKES = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice for one query, with every candidate.

    Attributes:
        task: the scope that the query asks for.
        latency_ms: its deadline: the limit or the default.
        chosen: the placement that would serve it; None if it is refused.
        reason: of the choice or the refusal; None if the policy waits for more queries.
        refusal: the error that the client would get; None if something was chosen.
        quantile: of the latency that the policy compares with the deadline: ``planned_ms``.
        candidates: a row each, the most accurate first. Latencies are those of the profile;
            ``predicted`` says whether they are predictions, because nothing was measured at this
            batch size or around it. ``in_service`` is by what factor it took longer than its
            profile while serving, which a running modelless corrects; None if not by much.
        accuracies: of the scope's variants, by id.
        without_profile: variants that have no profile here.
        dominated: why variants are not served, by id.
    """

    task: str
    batch: int
    slo: SLO
    latency_ms: float
    policy: Any
    chosen: Placement | None
    reason: AnyReason | None
    refusal: ModellessError | None
    quantile: str
    candidates: Sequence[Mapping[str, Any]]
    accuracies: Mapping[str, Accuracy]
    without_profile: Sequence[str]
    dominated: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "batch": self.batch,
            "latency_ms": self.latency_ms,
            "min_accuracy": self.slo.min_accuracy,
            "max_cost_usd": self.slo.max_cost_usd,
            "policy": self.policy,
            "quantile": self.quantile,
            "chosen": next((entry for entry in self.candidates if entry["chosen"]), None),
            "reason": self.reason.value if self.reason else None,
            "candidates": list(self.candidates),
            "without_profile": list(self.without_profile),
            "dominated": dict(self.dominated),
        }


def select(
    task: str,
    *,
    latency_ms: float | None = None,
    min_accuracy: float | None = None,
    max_cost_usd: float | None = None,
    batch: int = 1,
    policy: str | Mapping[str, Any] | None = None,
    device_classes: Sequence[str] = ("cpu-1",),
    config: AnyPath | None = None,
    home: Home = None,
) -> Selection:
    """Choose the variant that would serve a query, and explain the choice; nothing is started.

    The dispatcher and the policy of ``up`` decide, on one idle device of each class that holds all
    variants that are profiled for it. What feedback has demoted counts for its measured accuracy.

    Args:
        task: ``task``, ``task/model`` or ``task/model/variant``.
        latency_ms: deadline, milliseconds from arrival.
        min_accuracy: per cent.
        max_cost_usd: highest price of the query.
        batch: items in the query.
        policy: selection policy, a name or a mapping with its settings; default: the settings' own.
        device_classes: names of this machine's device classes.
        config: the settings file.
        home: see ``home_folder``.

    Raises:
        NotFoundError: an unknown scope or policy, or nothing is profiled.
        InvalidInputError: an argument is out of range.

    Examples:
        >>> selection = modelless.select("imagenet", latency_ms=40, min_accuracy=74)
        ... # doctest: +SKIP
        >>> selection.chosen.variant_id, selection.reason.value  # doctest: +SKIP
        ('imagenet/efficientnet-lite2/fp32-260@1', 'most-accurate-feasible')
    """
    slo = SLO(latency_ms, min_accuracy, max_cost_usd)
    settings = load_settings(path_or_none(config))
    limits = settings.limits
    if not 1 <= batch <= limits.max_batch:
        raise InvalidInputError.of("batch", batch, f"1 to {limits.max_batch} (limits.max_batch)")
    specification = settings.policies.selection if policy is None else policy
    chooser: SelectionPolicy = build_policy(SelectionPolicy, specification)
    facts = read_facts()
    every = [settings.priced(each) for each in default_device_classes(facts)]
    devices = pick_device_classes(device_classes, every)
    with open_home(home) as registry:
        catalog = registry.catalog()
        measured = read_measurements(registry, devices, facts)
        if not settings.serve_dominated:
            catalog = without_dominated(catalog, measured, registry.store, device_classes)
        in_service: dict[Placement, float] = {}
        for kind in sorted({device.kind for device in devices}):
            in_service |= drifted_placements(registry.store, facts, kind)
        inputs = cost_inputs_of(
            registry, catalog, every, facts, measured, unmeasured=settings.serve_unmeasured
        )
    cost_model = inputs.model()
    scope = catalog.resolve(task)
    variants = {variant.id: variant for variant in scope.variants}
    ready: dict[str, list[str]] = {device.name: [] for device in devices}
    for placement in cost_model.placements:
        if placement.variant_id in variants and placement.device_class in ready:
            ready[placement.device_class].append(placement.variant_id)
    if not any(ready.values()):
        raise NotFoundError(
            f"no variant of {task!r} has a profile for {', '.join(sorted(ready))} on this machine: "
            f"run 'modelless profile {task} --device-class {','.join(device_classes)}' first"
        )
    by_name = {device.name: device for device in devices}
    instances = ReadyInstances(variants, by_name, cost_model, limits.max_batch)
    rng, bounds = np.random.default_rng(settings.seed), DispatchLimits(max_batch=limits.max_batch)
    dispatcher = Dispatcher(instances, chooser, rng, bounds)
    feedback = FeedbackAccuracies(feedback_rules(settings))
    feedback.follow(stated_low_percent(variants.values()), read_feedback(home_folder(home)))
    dispatcher.handle(AccuraciesRevised(feedback.demoted), 0.0)
    for name, held in ready.items():
        dispatcher.handle(WorkerReported(WorkerReport(name, name, tuple(held))), 0.0)
    query = _query(scope, slo, batch, limits.default_latency_ms / 1e3)
    candidates = instances.candidates(scope.name, batch, 0.0)
    effects = _until_decided(dispatcher, dispatcher.handle(QueryArrived(query), 0.0))
    receipt = dispatcher.receipt(query.query_id)
    chosen, refusal = None, None
    if receipt is not None and any(isinstance(effect, Execute) for effect in effects):
        chosen = Placement(receipt.variant_id, receipt.device_class)
    elif refused := next((effect for effect in effects if isinstance(effect, Refuse)), None):
        refusal = error_of(refused)
    else:
        refusal = ModellessError("the policy neither chose nor refused: it waits for more queries")
    accuracies = {name: variant.accuracy for name, variant in instances.variants.items()}
    entries = _explain(query, candidates, chosen, chooser.quantile)
    for entry in entries:
        placement = Placement(entry["variant"], entry["device_class"])
        entry["predicted"] = inputs.is_predicted(placement, batch)
        entry["in_service"] = in_service.get(placement)
        entry |= accuracy_fields(accuracies[placement.variant_id])
    profiled = {variant_id for held in ready.values() for variant_id in held}
    return Selection(
        scope.name,
        batch,
        slo,
        latency_ms or limits.default_latency_ms,
        specification,
        chosen,
        receipt.reason if receipt is not None else None,
        refusal,
        chooser.quantile,
        entries,
        accuracies,
        sorted(set(variants) - profiled),
        {name: why for name, why in catalog.left_out.items() if in_scope(name, scope.name)},
    )


def _query(scope: Scope, slo: SLO, items: int, default_latency_s: float) -> QueryView:
    return QueryView(
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


def _until_decided(
    dispatcher: Dispatcher, effects: Sequence[DispatchEffect]
) -> Sequence[DispatchEffect]:
    """The effects with which the query runs or is refused, as time passes."""
    for _ in range(_MOST_WAKES):
        if any(isinstance(effect, (Execute, Refuse)) for effect in effects):
            break
        wakes = [effect.at_s for effect in effects if isinstance(effect, WakeAt)]
        if not wakes:
            break
        effects = dispatcher.handle(Tick(), min(wakes))
    return effects


def _explain(
    query: QueryView, candidates: Candidates, chosen: Placement | None, quantile: str
) -> list[dict[str, Any]]:
    row = candidates.placements.index(chosen) if chosen in candidates.placements else None
    rows = explain_candidates(query, candidates, row, quantile)
    for entry in rows:
        choice = rows[row] if row is not None else None
        entry["why"] = "chosen" if entry["chosen"] else why_not(entry, choice)
    return sorted(rows, key=lambda entry: (-entry["accuracy"], entry["p50_ms"]))
