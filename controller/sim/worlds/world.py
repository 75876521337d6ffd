"""What a world file says: devices, tasks, queries, network, faults, policies and limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import normpath
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from modelless.common.errors import InvalidInputError
from modelless.common.yaml_files import read_yaml
from modelless.controller.config import PolicySettings
from modelless.controller.sim.worlds.arrivals import FlashCrowdArrivals
from modelless.controller.sim.worlds.faults import FaultSettings, SiteCut, WorkerDies
from modelless.controller.sim.worlds.queries import QueriesSettings
from modelless.controller.sim.worlds.section import Section, explain
from modelless.controller.sim.worlds.variants import TaskSettings
from modelless.variants.vocabulary import check_name

MOST_WORKERS = 100_000
MOST_TASKS = 100_000
"""Of a world: each is held in memory and looked at once a second."""

MOST_LETTERS = 100
"""Of a world's name."""

MOST_QUEUED = 1_000_000
"""Queries waiting."""

_MOST_TOLD = 10
"""Problems, in one error."""

MIB = 1 << 20

HOME_SITE = "core"
"""The site of whatever names none."""


class DeviceSettings(Section):
    """A device class and its workers, which are called ``name/0``, ``name/1``, ..."""

    name: str = Field(description="of the class")
    kind: Literal["cpu", "gpu", "npu"] = Field("cpu", description="kind of hardware")
    count: int = Field(1, ge=0, le=MOST_WORKERS, description="workers to begin with")
    threads: int = Field(1, ge=1, description="threads a variant runs with")
    memory_mib: float = Field(1024.0, gt=0, description="MiB that variants may fill, each")
    price_usd_per_hour: float = Field(0.05, ge=0, description="price of one, while it is there")
    power_w: float = Field(8.0, ge=0, description="watts while busy")
    site: str = Field(HOME_SITE, description="where they stand")
    profiled_as: str | None = Field(None, description="`device` in tables; default: the name")
    per_host: int = Field(1, ge=1, description="neighbours share a host in groups of this many")
    contention: float = Field(
        0.0, ge=0, le=10, description="each busy neighbour of the host slows a batch by this share"
    )
    min_workers: int | None = Field(
        None, ge=0, description="fewest scaling may leave; default: count"
    )
    max_workers: int | None = Field(
        None, ge=0, description="most scaling may start; default: count"
    )
    start_s: float = Field(30.0, ge=0, description="from wanting a further worker to having it")
    sizes: tuple[str, ...] = Field(
        (), description="device classes that its workers may be resized to while they serve"
    )
    max_cores: int | None = Field(
        None, ge=1, description="threads of all its workers together; default: no bound"
    )

    @property
    def memory_bytes(self) -> int:
        """Bytes that variants may fill, each worker."""
        return int(self.memory_mib * MIB)

    @property
    def fewest_workers(self) -> int:
        """Workers that scaling leaves at least."""
        return self.count if self.min_workers is None else self.min_workers

    @property
    def most_workers(self) -> int:
        """Workers that scaling starts at most."""
        return self.count if self.max_workers is None else self.max_workers


class DelaySettings(Section):
    """The way between two sites."""

    between: tuple[str, str] = Field(description="two sites")
    one_way_ms: float = Field(ge=0, le=60_000, description="each way, milliseconds")


class NetworkSettings(Section):
    """Where the gateway is, and how far everything else is from it."""

    gateway: str = Field(HOME_SITE, description="site of the gateway")
    delays: tuple[DelaySettings, ...] = Field((), description="between sites")
    worker_hop_ms: float = Field(
        0.0, ge=0, le=1000, description="each way between gateway and worker on one site"
    )


class SimulationLimits(Section):
    """Bounds of the cores, and how often time passes for them."""

    default_latency_ms: float = Field(10_000.0, gt=0, le=3.6e6, description="where an SLO has none")
    max_queued: int = Field(
        2048, ge=1, le=MOST_QUEUED, description="queries waiting; more are refused"
    )
    max_batch: int = Field(8, ge=1, le=1024, description="most items in one batch or query")
    tick_ms: float = Field(20.0, ge=1, le=10_000, description="between the dispatcher's ticks")
    control_s: float = Field(1.0, ge=1e-3, le=600, description="between the planner's ticks")
    detect_s: float = Field(1.0, ge=0, le=600, description="until a lost worker is noticed")
    drain_s: float = Field(60.0, ge=0, description="after the last arrival, before all is refused")
    policy_s: float = Field(
        60.0, ge=0.1, le=3600, description="of real time without an event: then a policy hangs"
    )


def _one_line(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > MOST_LETTERS:
        raise ValueError(f"allowed: 1 to {MOST_LETTERS} printable characters on one line")
    return name


class NeedsSettings(Section):
    """A folder that the world reads and that is not part of the package."""

    folder: str = Field(description="relative to the world file")
    otherwise: str = Field(description="the world to run where it is missing; relative, too")


class World(Section):
    """All of a world file."""

    name: Annotated[str, AfterValidator(_one_line)] = Field("world", description="for people")
    description: str = Field(
        "", description="for people: what it shows, where its figures are from"
    )
    needs: NeedsSettings | None = Field(None, description="a folder that is not in the package")
    seed: int = Field(0, ge=0, description="of everything random")
    duration_s: float | None = Field(
        None, gt=0, description="arrivals end here; default: when all traces end"
    )
    load: float = Field(1.0, gt=0, le=1e6, description="multiplies every rate")
    warm_start: bool = Field(True, description="what is wanted at the start is there at once")
    devices: tuple[DeviceSettings, ...] = Field(
        min_length=1, max_length=1000, description="device classes"
    )
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="sites")
    tasks: tuple[TaskSettings, ...] = Field(min_length=1, description="tasks and variants")
    queries: tuple[QueriesSettings, ...] = Field(min_length=1, description="streams of queries")
    faults: tuple[FaultSettings, ...] = Field((), description="what goes wrong, and when")
    policies: PolicySettings = Field(
        default_factory=PolicySettings, description="the policies, as in the settings"
    )
    limits: SimulationLimits = Field(default_factory=SimulationLimits, description="bounds")
    learn_online: bool = Field(
        True, description="correct what was profiled by what batches take while serving"
    )

    @property
    def task_names(self) -> tuple[str, ...]:
        """Every task, copies and all."""
        return tuple(name for task in self.tasks for name in task.names)

    def delay_s(self, site: str) -> float:
        """One way between the gateway and a site, seconds."""
        if site == self.network.gateway:
            return 0.0
        for delay in self.network.delays:
            if set(delay.between) == {site, self.network.gateway}:
                return delay.one_way_ms / 1e3
        return 0.0

    def hop_s(self, device: DeviceSettings) -> float:
        """One way between the gateway and a worker of a class, seconds."""
        return self.delay_s(device.site) + self.network.worker_hop_ms / 1e3

    @model_validator(mode="after")
    def _adds_up(self) -> World:
        if problems := _sizes(self) or _problems(self):
            more = len(problems) - _MOST_TOLD
            told = [*problems[:_MOST_TOLD], *([f"and {more:,} more"] if more > 0 else [])]
            raise InvalidInputError("; ".join(told))
        return self


@dataclass(frozen=True, slots=True)
class WorldFile:
    """A world and the folder its paths are relative to."""

    world: World
    folder: Path


def load_world(path: Path) -> WorldFile:
    """Read and check a world file.

    Raises:
        InvalidInputError: unreadable, not YAML, an unknown field, a value out of range, names that
            do not fit together, a folder that it needs and that is missing; names the place.
    """
    file = parse_world(read_yaml("world", path), path.parent, source=f"world {path}")
    needs = file.world.needs
    if needs is not None and not (path.parent / needs.folder).is_dir():
        otherwise = normpath(path.parent / needs.otherwise)
        raise InvalidInputError.of(
            f"world {path}: needs.folder",
            str((path.parent / needs.folder).resolve()),
            "a folder that is there",
            f"It is not part of the package; run {otherwise} instead.",
        )
    return file


def parse_world(document: Any, folder: Path, source: str = "world") -> WorldFile:
    """Check a world already read. Raises as ``load_world`` does."""
    try:
        return WorldFile(World.model_validate(document), folder)
    except ValidationError as error:
        raise explain(error, source, World) from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}: {error}") from None


def _sizes(world: World) -> list[str]:
    """Returns the sizes that are too large to be meant, before anything is drawn."""
    workers = sum(max(each.count, each.max_workers or 0) for each in world.devices)
    tasks = sum(each.copies for each in world.tasks)
    return [
        f"{place}: got {count:,} {what}; allowed: at most {most:,}"
        for place, count, what, most in (
            ("devices", workers, "workers in all (count, max_workers)", MOST_WORKERS),
            ("tasks", tasks, "tasks in all (copies)", MOST_TASKS),
        )
        if count > most
    ]


def _problems(world: World) -> list[str]:
    """What keeps the parts from fitting together; each begins with its place."""
    problems = [
        f"{field}: {name!r} is there {count} times; allowed: each name once"
        for field, names in (
            ("devices.name", [device.name for device in world.devices]),
            ("tasks.name", list(world.task_names)),
        )
        for name, count in Counter(names).items()
        if count > 1
    ]
    for field, name in (
        *((f"devices.{n}.name", device.name) for n, device in enumerate(world.devices)),
        *((f"tasks.{n}.name", task.name) for n, task in enumerate(world.tasks)),
    ):
        try:
            check_name(field, name)
        except InvalidInputError as error:
            problems.append(str(error))
    if not any(device.count for device in world.devices):
        problems.append("devices: every count is 0; allowed: at least one worker")
    for number, device in enumerate(world.devices):
        if not device.fewest_workers <= device.count <= device.most_workers:
            problems.append(f"devices.{number}: allowed: min_workers <= count <= max_workers")
        alike = [other.name for other in world.devices if _is_like(other, device)]
        problems += [
            f"devices.{number}.sizes: got {size!r}; allowed: {', '.join(alike)}, "
            "of the same site, kind and memory"
            for size in device.sizes
            if size not in alike
        ]
    sites = {device.site for device in world.devices} | {world.network.gateway}
    for number, stream in enumerate(world.queries):
        for pattern in stream.tasks:
            if not any(fnmatchcase(name, pattern) for name in world.task_names):
                known = ", ".join(world.task_names[:8])
                problems.append(
                    f"queries.{number}.tasks: got {pattern!r}; allowed: of the tasks, {known}"
                )
        problems += _late_problems(world, number)
        if stream.site is not None:
            sites.add(stream.site)
        if world.duration_s is None and not stream.arrivals.ends:
            problems.append(
                f"duration_s: missing; queries.{number}.arrivals ({stream.arrivals.kind}) never end"
            )
        for place, slo in enumerate(stream.slos):
            if slo.items > world.limits.max_batch:
                problems.append(
                    f"queries.{number}.slos.{place}.items: got {slo.items}; "
                    f"allowed: 1 to {world.limits.max_batch} (limits.max_batch)"
                )
            if 0.0 < slo.min_accuracy < 1.0:
                problems.append(
                    f"queries.{number}.slos.{place}.min_accuracy: got {slo.min_accuracy:g}; "
                    f"allowed: per cent, as in {100.0 * slo.min_accuracy:g}"
                )
    problems += [
        f"network.delays: {' and '.join(sorted(pair))} are there {count} times; allowed: once"
        for pair, count in Counter(frozenset(each.between) for each in world.network.delays).items()
        if count > 1
    ]
    linked = {frozenset(delay.between) for delay in world.network.delays}
    gateway = world.network.gateway
    problems += [
        f"network.delays: none between {gateway!r} (the gateway) and {site!r}"
        for site in sorted(sites - {gateway})
        if frozenset({site, gateway}) not in linked
    ]
    problems += _fault_problems(world, sites)
    return problems


def _late_problems(world: World, number: int) -> list[str]:
    """What of a stream would never begin: almost always a slip of units, and silent otherwise."""
    stream, end_s = world.queries[number], world.duration_s
    if end_s is None:
        return []
    begins = [(f"queries.{number}.start_s", stream.start_s, stream.start_s)]
    if isinstance(stream.arrivals, FlashCrowdArrivals):
        at_s = stream.arrivals.at_s
        place = f"queries.{number}.arrivals.at_s"
        begins.append((place, at_s, stream.start_s + at_s / stream.time_scale))
    return [
        f"{place}: got {told:g}; allowed: what begins before duration_s ({end_s:g})"
        for place, told, begin_s in begins
        if begin_s >= end_s
    ]


def _is_like(one: DeviceSettings, other: DeviceSettings) -> bool:
    """Whether a worker could be either, as far as where and how much goes."""
    return (one.site, one.kind, one.memory_mib) == (other.site, other.kind, other.memory_mib)


def _fault_problems(world: World, sites: set[str]) -> list[str]:
    problems = []
    workers = [f"{device.name}/{n}" for device in world.devices for n in range(device.count)]
    for number, fault in enumerate(world.faults):
        place = f"faults.{number}"
        if isinstance(fault, SiteCut):
            if fault.site == world.network.gateway or fault.site not in sites:
                others = ", ".join(sorted(sites - {world.network.gateway})) or "(there is no other)"
                problems.append(f"{place}.site: got {fault.site!r}; allowed: {others}")
        elif not any(fnmatchcase(worker, fault.worker) for worker in workers):
            problems.append(f"{place}.worker: got {fault.worker!r}; no worker is called so")
        if world.duration_s is not None and fault.at_s >= world.duration_s:
            problems.append(
                f"{place}.at_s: got {fault.at_s:g}; "
                f"allowed: less than duration_s ({world.duration_s:g})"
            )
        end_s = fault.back_s if isinstance(fault, WorkerDies) else fault.until_s
        if end_s is not None and end_s <= fault.at_s:
            problems.append(f"{place}: ends at {end_s:g} s, but begins at {fault.at_s:g} s")
    return problems
