"""The variants' profiles, in the form that the demo needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from modelless.common.errors import NotFoundError
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.profiler.report.tradeoffs import frontier as pareto_frontier
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import DeviceClass, Task, Variant


@dataclass(frozen=True, slots=True)
class Profiled:
    """A variant and what was measured of it on one device class.

    Attributes:
        variant: what it is.
        points: measurements by batch; at least one.
    """

    variant: Variant
    points: Mapping[int, Measurement]

    @property
    def one(self) -> Measurement:
        """The measurement at the smallest batch."""
        return self.points[min(self.points)]

    @property
    def accuracy_percent(self) -> float:
        """Per cent."""
        return self.variant.accuracy.percent

    @property
    def p99_s(self) -> float:
        """Of a lone query, seconds: what the selection policies plan with."""
        return self.one.p99_s

    @property
    def short_name(self) -> str:
        """``lite0 int8-224``: the model and the variant's name, fit for a plot."""
        return short_name(self.variant.id)

    @property
    def is_trusted(self) -> bool:
        """Whether every point of it was measured on a quiet enough machine."""
        return all(point.trusted for point in self.points.values())


@dataclass(frozen=True, slots=True)
class Profiles:
    """Everything the demo knows before anything is served.

    Attributes:
        tasks: by name.
        by_task: the variants that have a profile, quickest first.
        device_class: on which they were measured.
        cores: of this host that may be used.
        cpu_model: the processor's own name.
    """

    tasks: Mapping[str, Task]
    by_task: Mapping[str, tuple[Profiled, ...]]
    device_class: DeviceClass
    cores: int
    cpu_model: str

    def frontier(self, task: str) -> tuple[Profiled, ...]:
        """See ``frontier``."""
        return frontier(self.by_task[task])

    @property
    def untrusted(self) -> tuple[Profiled, ...]:
        """Those with a point that was measured while the machine was noisy."""
        return tuple(
            profiled
            for of_task in self.by_task.values()
            for profiled in of_task
            if not profiled.is_trusted
        )


def short_name(variant_id: str) -> str:
    """``imagenet/efficientnet-lite0/int8-224@1`` as ``lite0 int8-224``."""
    _, model, name = variant_id.rpartition("@")[0].split("/")
    return f"{model.removeprefix('efficientnet-').removeprefix('cnn-')} {name}"


def frontier(variants: Iterable[Profiled]) -> tuple[Profiled, ...]:
    """Those that no other equals or beats in both p99 and accuracy, quickest first.

    Along the answer both latency and accuracy rise strictly.
    """
    return tuple(pareto_frontier(variants, lambda v: (v.p99_s, v.accuracy_percent)))


def profiles_of(
    tasks: Iterable[Task],
    variants: Iterable[Variant],
    measurements: Iterable[Measurement],
    device_class: DeviceClass,
    *,
    cores: int,
    cpu_model: str,
) -> Profiles:
    """Put variants and measurements together; variants without a measurement are left out."""
    points: dict[str, dict[int, Measurement]] = {}
    for row in measurements:
        if row.device_class == device_class.name:
            points.setdefault(row.variant_id, {})[row.batch] = row
    known = {task.name: task for task in tasks}
    by_task: dict[str, list[Profiled]] = {name: [] for name in known}
    for variant in variants:
        if variant.id in points and variant.task in by_task:
            by_task[variant.task].append(Profiled(variant, points[variant.id]))
    return Profiles(
        known,
        {name: tuple(sorted(rows, key=lambda v: v.p99_s)) for name, rows in by_task.items()},
        device_class,
        cores,
        cpu_model,
    )


def read_profiles(home: Path, tasks: Sequence[str], device_class: str) -> Profiles:
    """Read the store in ``home``.

    Raises:
        NotFoundError: a task is not registered, or no variant of it has a profile.
        StoreError: the store cannot be read.
    """
    facts = read_facts()
    classes = {known.name: known for known in default_device_classes(facts)}
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
        found = profiles_of(
            [catalog.resolve(name).task for name in tasks],
            catalog.variants,
            Records(registry.store).current(facts),
            classes[device_class],
            cores=facts.cores,
            cpu_model=facts.cpu_model,
        )
    for name, rows in found.by_task.items():
        if not rows:
            raise NotFoundError(
                f"no variant of {name!r} has a profile on {device_class}: run 'modelless profile'"
            )
    return found
