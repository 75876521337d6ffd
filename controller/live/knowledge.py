"""Facts that a process of the cluster needs to serve, read once from the store.

Serving goes on when the store is away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.config import Settings
from modelless.controller.control.served_versions import Service
from modelless.controller.live.servable import Servable
from modelless.policies.scopes import task_of
from modelless.policies.views import VariantFacts
from modelless.profiler.cost_model.dominated import without_dominated
from modelless.profiler.cost_model.model_inputs import CostInputs, cost_inputs_of, read_measurements
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.device_records import read_remote_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.item_shapes import ItemShape, read_shape
from modelless.profiler.measure.records import Records
from modelless.variants.estimates import Load
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.registry import open_registry
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import DeviceClass, Placement


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Tasks, variants, device classes and profiles.

    Attributes:
        catalog: what is registered, narrowed to the tasks that are served, without the dominated;
            its current versions are those of the start.
        device_classes: by name: those of this machine, and those of pools elsewhere.
        cost_model: from the profiles of this machine, and of others for what it does not have.
        fingerprints: of the machine under which its profiles are kept, by device class.
        fetch: from an artifact's sha256 to a local file, whose digest is checked by its loader.
        worker_classes: names of the device classes that the cluster's workers may be of.
        item_shapes: of a usual item by the variant's id, where profiles were made of some shape.
    """

    catalog: Catalog
    device_classes: Mapping[str, DeviceClass]
    cost_model: ServingCostModel
    cost_inputs: CostInputs
    fingerprints: Mapping[str, str]
    fetch: Callable[[str], Path]
    worker_classes: frozenset[str]
    item_shapes: Mapping[str, ItemShape] = field(default_factory=dict)

    @property
    def served(self) -> dict[str, int]:
        """The current version of each variant, by ``task/model/variant``."""
        return {name_of(variant.id): variant.version for variant in self.catalog.variants}

    def servable(self) -> Servable:
        """Return what of the catalog can be served, and why not the rest."""
        return Servable(self.catalog, self.cost_model, self.worker_classes)

    def device_class(self, name: str) -> DeviceClass:
        """The device class of that name; InvalidInputError says which there are."""
        if name not in self.device_classes:
            raise InvalidInputError.of("device_class", name, ", ".join(self.device_classes))
        return self.device_classes[name]

    def grown_by(self, newer: Knowledge, service: Service) -> Knowledge:
        """The same, with what a newer one has of what is in service; device classes stay."""
        catalog = self.catalog.grown_by(newer.catalog, service.lines.keys() - service.retired)
        return replace(newer, catalog=catalog, device_classes=self.device_classes)

    def served_by(self, service: Service) -> Knowledge:
        """The same for new queries: with the versions in service, and nothing that was retired."""
        current = {line.name: line.current for line in service.lines.values()}
        return replace(self, catalog=self.catalog.with_current(current, service.retired))

    def load_s(self, device_class: str, variant_id: str) -> float:
        """How long loading the variant should take there, seconds; not finite if unknown."""
        placement = Placement(variant_id, device_class)
        return float(self.cost_model.estimate([placement], 1, Load()).load_s[0])

    def variant_facts(self, max_batch: int) -> tuple[VariantFacts, ...]:
        """Return the figures of each version of each variant, where it has a profile."""
        facts = []
        variants = tuple(self.catalog.versions.values())
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


def read_knowledge(home: Path, settings: Settings, *, anew: bool = False) -> Knowledge:
    """Read the store in ``home``.

    Args:
        anew: it was read before, and serving goes on: there may be nothing left to serve.

    Raises:
        NotFoundError: nothing is registered, or nothing has a profile yet: says what to run; or
            settings name what is not registered.
        StoreError: the store cannot be read.
    """
    with closing(open_registry(home)) as registry:
        known = registry.catalog()
        if not anew:
            for scope in (*settings.tasks, *settings.residency.scopes, *settings.cache.scopes):
                known.resolve(scope)
        names = {task_of(name) for name in settings.tasks} or known.tasks.keys()
        catalog = Catalog(
            [task for task in known.tasks.values() if task.name in names],
            [model for model in known.models.values() if model.task in names],
            [variant for variant in known.versions.values() if variant.task in names],
            current=known.current,
        )
        facts = read_facts()
        classes = {known.name: known for known in default_device_classes(facts)}
        measured = read_measurements(registry, classes.values(), facts)
        remote = read_remote_classes(registry.store, settings.device_classes - classes.keys())
        measured += [row for there in remote for row in there.measured]
        if not settings.serve_dominated:
            catalog = without_dominated(catalog, measured, registry.store, settings.device_classes)
        cost_inputs = cost_inputs_of(
            registry,
            catalog,
            classes.values(),
            facts,
            measured,
            unmeasured=settings.serve_unmeasured,
            learns=settings.learn_online,
        )
        fetch = registry.artifacts.locate
    cost_model = cost_inputs.model()
    if not catalog.variants and not anew:
        raise NotFoundError("nothing is registered: run 'modelless zoo add imagenet' first")
    served = {variant.id for variant in catalog.variants}
    if not anew and not any(each.variant_id in served for each in cost_model.placements):
        raise NotFoundError(
            "no variant has a profile on this machine: run 'modelless profile' first"
        )
    fingerprints = {name: facts.fingerprint_of(device.kind) for name, device in classes.items()}
    for there in remote:
        classes[there.device.name] = there.device
        fingerprints[there.device.name] = there.fingerprint
    _check_sizes(settings, classes)
    classes = {name: settings.priced(known) for name, known in classes.items()}
    shapes = {each.variant_id: each.shape for each in measured if each.shape and each.is_typical}
    return Knowledge(
        catalog,
        classes,
        cost_model,
        cost_inputs,
        fingerprints,
        fetch,
        settings.device_classes,
        {variant_id: read_shape(shape) for variant_id, shape in shapes.items()},
    )


class Rereader:
    """Reads the store anew, for what was registered or profiled since the start."""

    def __init__(self, home: Path, settings: Settings) -> None:
        self._home = home
        self._settings = settings

    def __call__(self) -> Knowledge:
        """Return what is known, with the dominated: what is in service is decided elsewhere."""
        everything = self._settings.model_copy(update={"serve_dominated": True})
        return read_knowledge(self._home, everything, anew=True)

    def served(self) -> dict[str, int]:
        """Return what a start would serve now: its current version by ``task/model/variant``."""
        return read_knowledge(self._home, self._settings, anew=True).served

    def count_points(self, variant_ids: Collection[str]) -> dict[str, int]:
        """How many points of these variants the store has, of any machine, by id; StoreError."""
        with closing(open_registry(self._home)) as registry:
            return Records(registry.store).count(variant_ids)


def _check_sizes(settings: Settings, classes: Mapping[str, DeviceClass]) -> None:
    """Device classes must exist, and what is resized stays the kind of hardware that it is."""
    for name in sorted(settings.device_classes - set(classes)):
        raise InvalidInputError.of(
            "device_class",
            name,
            ", ".join(classes),
            f"One that only other machines have must be profiled there, into this store: "
            f"'modelless profile --device-class {name}'.",
        )
    owners = [(pool.device_class, pool.sizes) for pool in settings.pools]
    if settings.gateways.device_class is not None:
        owners.append((settings.gateways.device_class, settings.gateways.sizes))
    for owned, sizes in owners:
        kind = classes[owned].kind
        alike = [name for name, known in classes.items() if known.kind == kind]
        for size in sizes:
            if size not in alike:
                raise InvalidInputError.of("sizes", size, f"{', '.join(alike)} ({kind})")
