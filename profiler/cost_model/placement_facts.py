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
    rows = {
        row.placement: row
        for row in measurements
        if row.variant_id in variants and row.device_class in devices
    }
    families = _families(models)
    measured = dict.fromkeys(row.variant_id for row in rows.values())
    graphs = {name: read_graph(variants[name], graph_facts) for name in measured}
    return {
        placement: PlacementFacts(
            variants[row.variant_id],
            devices[row.device_class],
            row.device_name,
            row.engine,
            families.get(_model_of(variants[row.variant_id]), ""),
            graphs[row.variant_id],
            _rates_of_engine(row.engine, row.device_class, rates),
        )
        for placement, row in rows.items()
    }


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
    families = _families(models)
    devices = list(devices)
    subjects = {}
    for variant in variants:
        graph = read_graph(variant, graph_facts)
        for device in devices:
            if runs_on(variant.engine, device):
                engine = facts.engine_name(variant.engine.value)
                subjects[Placement(variant.id, device.name)] = PlacementFacts(
                    variant,
                    device,
                    facts.device_name(device.kind),
                    engine,
                    families.get(_model_of(variant), ""),
                    graph,
                    _rates_of_engine(engine, device.name, rates),
                )
    return subjects


def _rates_of_engine(
    engine: str, device_class: str, rates: Mapping[str, DeviceRates] | None
) -> DeviceRates | None:
    found = (rates or {}).get(device_class)
    return found if found is not None and found.engine == engine else None


def _families(models: Iterable[Model]) -> dict[tuple[str, str], str]:
    return {(model.task, model.name): model.family for model in models}


def _model_of(variant: Variant) -> tuple[str, str]:
    return variant.task, variant.model


def read_graph(variant: Variant, graph_facts: Callable[[Variant], GraphFacts]) -> GraphFacts | None:
    """Returns a variant's graph facts; None if its file is damaged, missing or removed."""
    with suppress(IntegrityError, NotFoundError, StoreError):
        return graph_facts(variant)
    return None
