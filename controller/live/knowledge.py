"""What a process of the cluster must know to serve: read once from the store, then held in memory.

Serving goes on when the store is away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from modelless.controller.config import Settings
from modelless.policies.views import VariantFacts
from modelless.profiler.device import default_device_classes
from modelless.profiler.dominated import without_dominated
from modelless.profiler.host import read_facts
from modelless.profiler.host_model import cost_model_of, read_measurements
from modelless.profiler.measured_model import MeasuredCostModel
from modelless.variants.catalog import Catalog
from modelless.variants.errors import InvalidInputError, NotFoundError
from modelless.variants.estimates import Load
from modelless.variants.registry import open_registry
from modelless.variants.vocabulary import DeviceClass, Placement


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Tasks, variants, device classes and profiles.

    Attributes:
        catalog: what is registered, narrowed to the tasks that are served, without the dominated.
        device_classes: by name.
        cost_model: from the profiles of this machine.
        fingerprints: of this machine, under which its profiles are kept, by device class.
        fetch: from an artifact's sha256 to a local, checked file.
    """

    catalog: Catalog
    device_classes: Mapping[str, DeviceClass]
    cost_model: MeasuredCostModel
    fingerprints: Mapping[str, str]
    fetch: Callable[[str], Path]

    def device_class(self, name: str) -> DeviceClass:
        """The device class of that name; InvalidInputError says which there are."""
        if name not in self.device_classes:
            raise InvalidInputError.of("device_class", name, ", ".join(self.device_classes))
        return self.device_classes[name]

    def load_s(self, device_class: str, variant_id: str) -> float:
        """How long loading the variant should take there, seconds; not finite if unknown."""
        placement = Placement(variant_id, device_class)
        return float(self.cost_model.estimate([placement], 1, Load()).load_s[0])

    def variant_facts(self, max_batch: int) -> tuple[VariantFacts, ...]:
        """What planning needs of each served variant: those with a profile, on each class."""
        facts = []
        variants = self.catalog.variants
        columns = {}
        for name in self.device_classes:
            placements = [Placement(variant.id, name) for variant in variants]
            columns[name] = [
                self.cost_model.estimate(placements, batch, Load())
                for batch in range(1, max_batch + 1)
            ]
        for row, variant in enumerate(variants):
            known = [name for name, e in columns.items() if e[0].p50_s[row] < float("inf")]
            facts.append(
                VariantFacts(
                    variant.id,
                    variant.task,
                    variant.accuracy.percent,
                    {name: float(columns[name][0].memory_bytes[row]) for name in known},
                    {name: float(columns[name][0].load_s[row]) for name in known},
                    {name: float(columns[name][0].p50_s[row]) for name in known},
                    {name: (0.0, *(float(e.p50_s[row]) for e in columns[name])) for name in known},
                )
            )
        return tuple(facts)


def read_knowledge(home: Path, settings: Settings) -> Knowledge:
    """Read the store in ``home``.

    Raises:
        NotFoundError: nothing is registered, or nothing has a profile yet: says what to run.
        StoreError: the store cannot be read.
    """
    with closing(open_registry(home)) as registry:
        known = registry.catalog()
        wanted = settings.tasks or tuple(known.tasks)
        tasks = [known.resolve(name).task for name in wanted]
        names = {task.name for task in tasks}
        catalog = Catalog(
            tasks,
            [model for model in known.models.values() if model.task in names],
            [variant for variant in known.versions.values() if variant.task in names],
        )
        facts = read_facts()
        classes = {known.name: known for known in default_device_classes(facts)}
        measured = read_measurements(registry, classes.values(), facts)
        if not settings.serve_dominated:
            catalog = without_dominated(catalog, measured, registry.store, settings.device_classes)
        cost_model = cost_model_of(
            registry,
            catalog,
            classes.values(),
            facts,
            measured,
            unmeasured=settings.serve_unmeasured,
        )
        fetch = registry.artifacts.fetch
    if not catalog.variants:
        raise NotFoundError("nothing is registered: run 'modelless zoo add imagenet' first")
    served = {variant.id for variant in catalog.variants}
    if not any(placement.variant_id in served for placement in cost_model.placements):
        raise NotFoundError(
            "no variant has a profile on this machine: run 'modelless profile' first"
        )
    fingerprints = {name: facts.fingerprint_of(device.kind) for name, device in classes.items()}
    return Knowledge(catalog, classes, cost_model, fingerprints, fetch)
