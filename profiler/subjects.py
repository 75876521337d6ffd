"""The placements of this machine as the learned model sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from modelless.profiler.device import DeviceFacts
from modelless.profiler.table import Subject
from modelless.variants.errors import IntegrityError, NotFoundError, StoreError
from modelless.variants.graph_facts import GraphFacts
from modelless.variants.runtimes.engines import runs_on
from modelless.variants.vocabulary import DeviceClass, Model, Placement, Variant


def subjects_of(
    variants: Iterable[Variant],
    devices: Iterable[DeviceClass],
    facts: DeviceFacts,
    models: Iterable[Model],
    graph_facts: Callable[[Variant], GraphFacts],
) -> dict[Placement, Subject]:
    """Every variant on every device class that its engine runs on.

    Args:
        variants, devices: of the placements.
        facts: of this host.
        models: of the variants, for their families.
        graph_facts: of a variant; one whose file is damaged or away, or that was removed since, is
            seen without.
    """
    families = {(model.task, model.name): model.family for model in models}
    devices = list(devices)
    subjects = {}
    for variant in variants:
        graph = None
        with suppress(IntegrityError, NotFoundError, StoreError):
            graph = graph_facts(variant)
        for device in devices:
            if runs_on(variant.engine, device):
                subjects[Placement(variant.id, device.name)] = Subject(
                    variant,
                    device,
                    facts.device_name(device.kind),
                    facts.engine_name(variant.engine.value),
                    families.get((variant.task, variant.model), ""),
                    graph,
                )
    return subjects
