"""Settings: one YAML file, every key checked, every default said here.

``modelless up --config FILE`` reads it; without one the defaults hold.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from modelless.profiler.device import DEVICE_CLASSES
from modelless.variants.errors import InvalidInputError
from modelless.variants.settings_files import problems
from modelless.variants.vocabulary import DeviceClass
from modelless.variants.yaml_files import read_yaml

PolicySpecification = str | dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpSettings(_Section):
    """Where clients come in."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; loopback unless you change it"
    )
    port: int = Field(8080, ge=1, le=65535, description="port of the Open Inference Protocol")
    max_body_bytes: int = Field(64 * 2**20, ge=1024, description="largest request body, bytes")


class GatewaySettings(_Section):
    """Where queries are dispatched; each gateway owns a device of its own."""

    count: int | None = Field(None, ge=1, le=256, description="gateways; default: one a CPU core")
    device_class: str | None = Field(
        "cpu-1",
        description="device class that each gateway owns and runs on: cpu-1, cpu-2 or gpu-1; null: "
        "none, all runs in pools",
    )
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="memory that variants may fill in each gateway; default: the device class's "
        "(for cpu-1, half of the machine's memory, divided by its cores)",
    )
    pin: bool = Field(
        True,
        description="keep each gateway's device on CPU cores of its own, where there are enough",
    )
    sizes: tuple[str, ...] = Field(
        (), description="device classes that scaling may resize each gateway's device to"
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="labels of the Ray nodes gateways run on; see `pools`"
    )


class PoolSettings(_Section):
    """Workers of one device class, reached from the gateways by one call a batch."""

    device_class: str = Field(
        description="device class of its workers: cpu-1, cpu-2 or gpu-1; one pool a class"
    )
    workers: int = Field(1, ge=0, le=1024, description="workers to begin with")
    min_workers: int = Field(0, ge=0, description="fewest workers that scaling may leave")
    max_workers: int = Field(8, ge=0, description="most workers that scaling may start")
    sizes: tuple[str, ...] = Field(
        (), description="device classes that scaling may resize its workers to, e.g. [cpu-2]"
    )
    max_cores: int | None = Field(
        None, ge=1, description="most CPU cores that all its workers may use; default: no bound"
    )
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="memory that variants may fill in each worker; default: the device class's, "
        "and of a share of a GPU that share",
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="Ray resources each worker needs, e.g. {GPU: 1}"
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the Ray nodes its workers run on, e.g. {site: edge}; a value may be "
        "a condition of Ray's: `!edge`, `in(edge, core)`, `!in(edge)`",
    )

    @model_validator(mode="after")
    def _bounds_agree(self) -> PoolSettings:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers {self.min_workers} are more than max_workers {self.max_workers}"
            )
        return self

    def budget_bytes(self, device_bytes: int) -> int:
        """What variants may fill in a worker, of a device with so much for all who share it."""
        return self.memory_bytes or int(device_bytes * min(self.resources.get("GPU") or 1.0, 1.0))

    def actor_options(self) -> dict[str, Any]:
        """``resources`` and ``labels`` as Ray takes them of an actor: its own kinds of resources
        go by names of their own.
        """
        named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        own = {named[name]: amount for name, amount in self.resources.items() if name in named}
        others = {name: amount for name, amount in self.resources.items() if name not in named}
        return {**own, "resources": others, **label_options(self.labels)}


def label_options(labels: dict[str, str]) -> dict[str, Any]:
    """A choice of nodes by their labels, as Ray takes it of an actor."""
    return {"label_selector": labels} if labels else {}


class PolicySettings(_Section):
    """Who decides: a policy's name, or a mapping of `policy` and its settings."""

    selection: PolicySpecification = Field("best-value", description="chooses variants")
    scaling: PolicySpecification = Field("fixed", description="wants instances and workers")
    placement: PolicySpecification = Field("most-free-memory", description="puts instances")
    eviction: PolicySpecification = Field(
        "lru", description="ranks what leaves when memory is short"
    )
    forecast: PolicySpecification = Field("last-value", description="expects demand")


class ResidencySettings(_Section):
    """What is kept in memory whatever the policies say."""

    pinned: tuple[str, ...] = Field(
        (), description="scopes (task[/model[/variant]]) that are never evicted once loaded"
    )
    preload: tuple[str, ...] | Literal["last-run"] = Field(
        (),
        description="scopes loaded at the start, before anybody asks, the first ones first; "
        "last-run: what was loaded when it last ran, the most served first",
    )

    @property
    def scopes(self) -> tuple[str, ...]:
        """All that are named."""
        return self.pinned + (self.preload if isinstance(self.preload, tuple) else ())


class LimitSettings(_Section):
    """Bounds that hold whatever a policy says."""

    default_latency_ms: float = Field(
        10_000.0,
        gt=0,
        le=3.6e6,
        description="deadline of queries that name none; unless they say so they may be late",
    )
    max_queued: int = Field(2048, ge=1, description="queries waiting in one gateway; more get 429")
    max_batch: int = Field(8, ge=1, le=1024, description="most items in one batch or query")
    max_connections: int = Field(4096, ge=1, description="client connections a gateway holds open")
    max_bodies_bytes: int = Field(
        2**30, ge=2**20, description="request bodies a gateway holds in all, bytes; more get 429"
    )


class HistorySettings(_Section):
    """What is kept of decisions, for `modelless history` and `modelless why`."""

    max_entries: int = Field(
        100_000, ge=100, le=10_000_000, description="loads, evictions and the like in the store"
    )
    receipts_per_s: float = Field(
        20.0,
        ge=0,
        le=1000,
        description="receipts of queries that a gateway writes a second: refused and late ones "
        "before others; 0: none",
    )
    receipts_max_bytes: int = Field(
        32 * 2**20, ge=2**12, description="receipts of one gateway, compressed; the oldest go"
    )


class RecordSettings(_Section):
    """A recording for `modelless replay`."""

    folder: str | None = Field(
        None, description="where to record all decisions and their inputs; null: nowhere"
    )
    max_bytes: int = Field(
        256 * 2**20,
        ge=2**16,
        description="most compressed bytes of one process's recording; beyond that it stops",
    )


class Settings(_Section):
    """Everything `modelless up` can be told."""

    http: HttpSettings = Field(default_factory=HttpSettings)
    gateways: GatewaySettings = Field(default_factory=GatewaySettings)
    pools: tuple[PoolSettings, ...] = Field((), description="workers of other device classes")
    policies: PolicySettings = Field(default_factory=PolicySettings)
    residency: ResidencySettings = Field(default_factory=ResidencySettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    tasks: tuple[str, ...] = Field(
        (), description="tasks to serve; default: all that are registered"
    )
    serve_dominated: bool = Field(
        False,
        description="serve variants that another beats in accuracy and latency for no more memory",
    )
    serve_unmeasured: bool = Field(
        False,
        description="also serve variants never profiled here, by predictions from others' "
        "profiles; this includes variants whose profiling failed",
    )
    learn_online: bool = Field(
        True, description="correct what was profiled by what batches take while serving"
    )
    prices_usd_per_hour: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="what an hour of a device costs, by device class, e.g. {cpu-1: 0.04}; "
        "default: 0.05 for each core, 3 for a GPU",
    )
    seed: int = Field(0, ge=0, description="seed of the policies' randomness")
    ingress: Literal["haproxy", "serve"] = Field(
        "haproxy", description="haproxy, or serve for Ray Serve's own Python proxy"
    )

    @property
    def device_classes(self) -> frozenset[str]:
        """The device classes that variants run on."""
        names: set[str | None] = {self.gateways.device_class, *self.gateways.sizes}
        for pool in self.pools:
            names |= {pool.device_class, *pool.sizes}
        return frozenset(name for name in names if name is not None)

    @field_validator("prices_usd_per_hour")
    @classmethod
    def _known_classes(cls, prices: dict[str, float]) -> dict[str, float]:
        for name in prices:
            if name not in DEVICE_CLASSES:
                raise ValueError(f"got {name!r}; allowed: {', '.join(DEVICE_CLASSES)}")
        return prices

    def priced(self, device_class: DeviceClass) -> DeviceClass:
        """The device class at the price that is set for it, or else at its own."""
        price = self.prices_usd_per_hour.get(device_class.name, device_class.price_usd_per_hour)
        return replace(device_class, price_usd_per_hour=price)

    @model_validator(mode="after")
    def _something_runs(self) -> Settings:
        if self.gateways.device_class is None and not self.pools:
            raise ValueError("gateways without a device need a pool: nothing would run")
        if self.gateways.device_class is None and self.gateways.sizes:
            raise ValueError("gateways.sizes: gateways without a device have none to resize")
        return self

    @field_validator("pools")
    @classmethod
    def _one_pool_a_class(cls, pools: tuple[PoolSettings, ...]) -> tuple[PoolSettings, ...]:
        names = [pool.device_class for pool in pools]
        if len(names) != len(set(names)):
            raise ValueError("one pool a device class")
        return pools


def load_settings(path: Path | None) -> Settings:
    """Read and check a settings file; None gives the defaults.

    Raises:
        InvalidInputError: no such file, not YAML, an unknown key or a value out of range; names
            the key.
    """
    if path is None:
        return Settings()
    document = read_yaml("config", path)
    return parse_settings(document if document is not None else {}, source=str(path))


def parse_settings(document: object, source: str = "config") -> Settings:
    """Check a settings document already read."""
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise InvalidInputError(f"{source}: {problems(error, Settings)}") from None


def default_home() -> Path:
    """Where the store, the artifacts and the logs live: $MODELLESS_HOME or ~/.modelless."""
    return Path(os.environ.get("MODELLESS_HOME") or Path.home() / ".modelless")
