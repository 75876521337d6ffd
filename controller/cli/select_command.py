"""``modelless select``: a dry run that explains itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError
from modelless.controller.cli.arguments import (
    ConfigFile,
    DeviceClasses,
    LatencyMs,
    MaxCostUsd,
    MinAccuracy,
    TaskName,
    names_of,
    policy_of,
)
from modelless.controller.cli.failures import Failed
from modelless.controller.cli.screen import (
    Json,
    accuracy_fields,
    accuracy_text,
    emit,
    home_of,
    others_print_to_stderr,
    say,
    show_table,
)
from modelless.variants.vocabulary import SLO, Variant

if TYPE_CHECKING:
    from modelless.controller.cli.dry_run import Verdict

EPILOG = "Example: modelless select --task imagenet --latency-ms 40 --min-accuracy 74"


def select(
    ctx: typer.Context,
    task: TaskName,
    latency_ms: LatencyMs = None,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCostUsd = None,
    batch: Annotated[int, typer.Option("--batch", help="Items in the query.")] = 1,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="NAME|YAML", help="Selection policy; default: the settings' own."
        ),
    ] = None,
    device_class: DeviceClasses = "cpu-1",
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show which variant would serve a query, and why.

    Every candidate is accounted for. The same dispatcher and policy as in 'modelless up' decide, on
    one idle device of each class that holds everything profiled for it. Nothing is started. Exit
    code 4 if nothing can serve it.
    """
    slo = SLO(latency_ms, min_accuracy, max_cost_usd)
    class_names = names_of("device-class", device_class)
    from modelless.controller.cli.dry_run import DryRun
    from modelless.controller.cli.profile_command import pick_device_classes
    from modelless.controller.config import load_settings
    from modelless.controller.dispatch.limits import DispatchLimits
    from modelless.policies.discovery import build_policy
    from modelless.policies.scopes import in_scope
    from modelless.policies.seams import SelectionPolicy
    from modelless.profiler.cost_model.dominated import without_dominated
    from modelless.profiler.cost_model.host_model import cost_inputs_of, read_measurements
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.host import read_facts
    from modelless.variants.registry.registry import open_registry

    settings = load_settings(config)
    limits = settings.limits
    if not 1 <= batch <= limits.max_batch:
        raise InvalidInputError.of("batch", batch, f"1 to {limits.max_batch} (limits.max_batch)")
    specification = settings.policies.selection if policy is None else policy_of(policy)
    with others_print_to_stderr():
        chooser: SelectionPolicy = build_policy(SelectionPolicy, specification)
    facts = read_facts()
    every = [settings.priced(each) for each in default_device_classes(facts)]
    devices = pick_device_classes(class_names, every)
    with closing(open_registry(home_of(ctx))) as registry:
        catalog = registry.catalog()
        measured = read_measurements(registry, devices, facts)
        if not settings.serve_dominated:
            catalog = without_dominated(catalog, measured, registry.store, class_names)
        cost_model = cost_inputs_of(
            registry, catalog, every, facts, measured, unmeasured=settings.serve_unmeasured
        ).model()
    scope = catalog.resolve(task)
    left_out = {name: why for name, why in catalog.left_out.items() if in_scope(name, scope.name)}
    ids = {variant.id: variant for variant in scope.variants}
    names = {device.name for device in devices}
    placements = [
        placement
        for placement in cost_model.placements
        if placement.variant_id in ids and placement.device_class in names
    ]
    if not placements:
        raise NotFoundError(
            f"no variant of {task!r} has a profile for {', '.join(sorted(names))} on this machine: "
            f"run 'modelless profile {task} --device-class {','.join(class_names)}' first"
        )
    dry_run = DryRun(
        ids,
        {device.name: device for device in devices},
        cost_model,
        placements,
        DispatchLimits(max_batch=limits.max_batch),
    )
    default_latency_s = limits.default_latency_ms / 1e3
    with others_print_to_stderr():
        verdict = dry_run.ask(scope, slo, batch, default_latency_s, chooser, settings.seed)
    candidates = [
        {**entry, **accuracy_fields(ids[entry["variant"]].accuracy)} for entry in verdict.candidates
    ]
    document: dict[str, Any] = {
        "task": scope.name,
        "batch": batch,
        "latency_ms": slo.latency_ms or limits.default_latency_ms,
        "min_accuracy": slo.min_accuracy,
        "max_cost_usd": slo.max_cost_usd,
        "policy": specification,
        "chosen": next((entry for entry in candidates if entry["chosen"]), None),
        "reason": verdict.reason.value if verdict.reason else None,
        "candidates": candidates,
        "without_profile": sorted(set(ids) - {p.variant_id for p in placements}),
        "dominated": left_out,
    }
    if not as_json:
        _show(candidates, ids, slo, limits.default_latency_ms)
    for name, why in left_out.items():
        say(f"note: {name} is not served: {why}")
    for name in document["without_profile"]:
        say(f"note: {name} has no profile here, so it cannot be chosen: run 'modelless profile'")
    if verdict.chosen is None:
        raise Failed(_refusal(verdict), document)
    if as_json:
        emit(document)
    else:
        placement = verdict.chosen
        typer.echo(
            f"chosen: {placement.variant_id} on {placement.device_class} ({document['reason']})"
        )


def _show(
    candidates: Sequence[Mapping[str, Any]],
    variants: Mapping[str, Variant],
    slo: SLO,
    default_latency_ms: float,
) -> None:
    limits = [f"latency_ms {slo.latency_ms:g}" if slo.latency_ms is not None else ""]
    if slo.latency_ms is None:
        limits = [f"latency_ms {default_latency_ms:g} (the default)"]
    if slo.min_accuracy is not None:
        limits.append(f"min_accuracy {slo.min_accuracy:g}")
    if slo.max_cost_usd is not None:
        limits.append(f"max_cost_usd {slo.max_cost_usd:g}")
    show_table(
        ["", "variant", "device", "accuracy", "p50 ms", "p99 ms", "USD a million", "why"],
        [
            (
                ">" if entry["chosen"] else "",
                entry["variant"],
                entry["device_class"],
                accuracy_text(variants[entry["variant"]].accuracy),
                f"{entry['p50_ms']:.2f}",
                f"{entry['p99_ms']:.2f}",
                f"{entry['cost_usd'] * 1e6:.3g}",
                entry["why"],
            )
            for entry in candidates
        ],
        title="limits: " + ", ".join(limits),
        right=[4, 5, 6],
        whole=1,
    )


def _refusal(verdict: Verdict) -> ModellessError:
    from modelless.controller.live.front.replies import error_of

    if verdict.refusal is not None:
        return error_of(verdict.refusal)
    return ModellessError("the policy neither chose nor refused: it waits for more queries")
