"""Facts of placements, the input of the learned model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from modelless.common.errors import IntegrityError, NotFoundError, StoreError
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts
from modelless.variants.runtimes.engines import runs_on
from modelless.variants.vocabulary import DeviceClass, Model, Placement, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates
    from modelless.variants.graphs.graph_facts import GraphFacts


def describe_measured(
    measurements: Iterable[Measurement],
    variants: Mapping[str, Variant],
    devices: Mapping[str, DeviceClass],
    models: Iterable[Model],
    graph_facts: Callable[[Variant], GraphFacts],
    rates: Mapping[str, DeviceRates] | None = None,
) -> dict[Placement, PlacementFacts]:
    """Returns the facts of measured placements, on whatever machine they were measured.

    Placements of unknown variants or device classes are left out.

    Args:
        measurements: measurements to describe.
        variants: variants by id.
        devices: device classes by name.
        models: models of the variants, for their families.
        graph_facts: returns a variant's graph facts, as for ``describe_placements``.
        rates: measured rates of that machine's device classes, as for ``describe_placements``.
    """
    measured = (
        (variants[row.variant_id], devices[row.device_class], row.device_name, row.engine)
        for row in measurements
        if row.variant_id in variants and row.device_class in devices
    )
    return _describe(measured, models, graph_facts, rates)


def describe_placements(
    variants: Iterable[Variant],
    devices: Iterable[DeviceClass],
    facts: DeviceFacts,
    models: Iterable[Model],
    graph_facts: Callable[[Variant], GraphFacts],
    rates: Mapping[str, DeviceRates] | None = None,
) -> dict[Placement, PlacementFacts]:
    """Returns the facts of every variant on every device class that its engine runs on.

    Args:
        variants, devices: variants and device classes of the placements.
        facts: facts of this host.
        models: models of the variants, for their families.
        graph_facts: returns a variant's graph facts. A variant whose file is damaged or missing, or
            that was removed since, gets none.
        rates: measured rates by device class name, where there are any. They apply only to the
            engine that they were measured with.
    """
    devices = list(devices)
    runnable = (
        (variant, device, facts.device_name(device.kind), facts.engine_name(variant.engine.value))
        for variant in variants
        for device in devices
        if runs_on(variant.engine, device)
    )
    return _describe(runnable, models, graph_facts, rates)


def _describe(
    placements: Iterable[tuple[Variant, DeviceClass, str, str]],
    models: Iterable[Model],
    graph_facts: Callable[[Variant], GraphFacts],
    rates: Mapping[str, DeviceRates] | None,
) -> dict[Placement, PlacementFacts]:
    """Returns the facts of (variant, device class, name of the device, engine)."""
    families = {(model.task, model.name): model.family for model in models}
    graphs: dict[str, GraphFacts | None] = {}
    found = {}
    for variant, device, device_name, engine in placements:
        if variant.id not in graphs:
            graphs[variant.id] = read_graph(variant, graph_facts)
        rated = (rates or {}).get(device.name)
        found[Placement(variant.id, device.name)] = PlacementFacts(
            variant,
            device,
            device_name,
            engine,
            families.get((variant.task, variant.model), ""),
            graphs[variant.id],
            rated if rated is not None and rated.engine == engine else None,
        )
    return found


def read_graph(variant: Variant, graph_facts: Callable[[Variant], GraphFacts]) -> GraphFacts | None:
    """Returns a variant's graph facts; None if its file is damaged, missing or removed."""
    with suppress(IntegrityError, NotFoundError, StoreError):
        return graph_facts(variant)
    return None
