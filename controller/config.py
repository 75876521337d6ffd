"""Settings: one YAML file, every key checked, every default said here.

``modelless up --config FILE`` reads it; without one the defaults hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from modelless.common.errors import InvalidInputError
from modelless.common.settings_files import problems
from modelless.common.yaml_files import read_yaml
from modelless.profiler.devices.device import DEVICE_CLASSES
from modelless.variants.vocabulary import DeviceClass

PolicySpecification = str | dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HttpSettings(_Section):
    """The HTTP server that clients use."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; loopback unless you change it"
    )
    port: int = Field(8080, ge=1, le=65535, description="port of the Open Inference Protocol")
    max_body_bytes: int = Field(64 * 2**20, ge=1024, description="largest request body, bytes")
    operators_host: str = Field(
        "127.0.0.1", description="address to listen on for operators, in plain HTTP"
    )
    operators_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port for operators: `/metrics`, `/modelless/status` and Ray Serve's own paths "
        "are served there and no longer on `port`; default: on `port` if `host` is loopback, else "
        "a free port",
    )
    max_connections_per_source: int = Field(
        1024,
        ge=1,
        description="maximum client connections from one address, and maximum open requests; "
        "HAProxy closes more connections and answers more requests with 429",
    )
    max_requests_per_s_per_source: int = Field(
        5000, ge=1, description="maximum requests per second from one address; more get 429"
    )

    insecure: bool = Field(
        False,
        description="serve on an address that is not loopback although there are no keys: whoever "
        "reaches it may do everything",
    )
    tls_certificate: str | None = Field(
        None,
        description="PEM file with the certificate chain and its private key; `port` then speaks "
        "HTTPS; default: plain HTTP",
    )

    @property
    def url(self) -> str:
        """Where clients go."""
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{self.host}:{self.port}"

    @property
    def chosen_ports(self) -> list[tuple[str, int]]:
        """Where it listens by choice: (host, port) for clients, and for operators if they have one.

        Without one of their own operators come in on a port of loopback that changes.
        """
        of_operators = [(self.operators_host, self.operators_port)] if self.operators_port else []
        return [(self.host, self.port), *of_operators]

    @property
    def has_one_port(self) -> bool:
        """Whether operators use the clients' port, which nobody else's machine reaches."""
        return self.operators_port is None and is_loopback(self.host)

    @model_validator(mode="after")
    def _operators_have_their_own(self) -> HttpSettings:
        if self.operators_port == self.port:
            raise ValueError(
                f"operators_port {self.operators_port} is port: choose another, or leave it out"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name
        return False


class GatewaySettings(_Section):
    """The processes that accept and dispatch queries; each owns a device, unless told otherwise."""

    count: int | None = Field(
        None, ge=1, le=256, description="number of gateways; default: one per CPU core"
    )
    device_class: str | None = Field(
        "cpu-1",
        description="device class that each gateway owns: cpu-1, cpu-2 or gpu-1; null: no device, "
        "all batches run in pools",
    )
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="memory for variants in each gateway; default: the device class's memory "
        "(for cpu-1, half of the machine's memory, divided by its cores)",
    )
    pin: bool = Field(
        True,
        description="pin each gateway's device to CPU cores of its own, if there are enough cores",
    )
    sizes: tuple[str, ...] = Field(
        (), description="device classes that scaling may resize each gateway's device to"
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the Ray nodes that run gateways; see `pools[].labels`",
    )


class PoolSettings(_Section):
    """Workers of one device class; a gateway reaches them with one call per batch."""

    device_class: str = Field(
        description="device class of its workers: cpu-1, cpu-2 or gpu-1; one pool per class"
    )
    workers: int = Field(1, ge=0, le=1024, description="initial number of workers")
    min_workers: int = Field(
        0, ge=0, description="minimum number of workers; `workers` if no maximum is given either"
    )
    max_workers: int = Field(8, ge=0, description="maximum number of workers; likewise")
    sizes: tuple[str, ...] = Field(
        (), description="device classes that scaling may resize a worker to, e.g. [cpu-2]"
    )
    max_cores: int | None = Field(
        None, ge=1, description="maximum CPU cores of all its workers together; default: no limit"
    )
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="memory for variants in each worker; default: the device class's memory; a "
        "worker with a share of a GPU gets that share of it",
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="Ray resources of each worker, e.g. {GPU: 1}"
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the Ray nodes that run its workers, e.g. {site: edge}; a value may "
        "be a Ray label condition: `!edge`, `in(edge, core)`, `!in(edge)`",
    )

    @model_validator(mode="before")
    @classmethod
    def _stay_without_bounds(cls, given: Any) -> Any:
        """A pool without bounds keeps its number of workers: nobody said that it may change."""
        if not isinstance(given, dict) or {"min_workers", "max_workers"} & given.keys():
            return given
        workers = given.get("workers", 1)
        return {**given, "min_workers": workers, "max_workers": workers}

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


class AdvisorySettings(_Section):
    """Policies beside those in charge: they only say what they would have done."""

    selection: PolicySpecification | None = Field(None, description="beside `policies.selection`")
    scaling: PolicySpecification | None = Field(None, description="beside `policies.scaling`")


class PolicySettings(_Section):
    """The policies: each is a name, or a mapping of `policy` and its settings."""

    selection: PolicySpecification = Field(
        "best-value", description="chooses a variant and a device for each query"
    )
    scaling: PolicySpecification = Field(
        "expected-value", description="sets the number of instances and workers"
    )
    placement: PolicySpecification = Field(
        "most-free-memory", description="chooses the worker for an instance"
    )
    eviction: PolicySpecification = Field(
        "miss-cost", description="ranks instances for eviction when memory is short"
    )
    forecast: PolicySpecification = Field("last-value", description="predicts demand")
    explore: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of the queries whose placement is drawn at random among those that meet "
        "their limits; with it, `modelless whatif` estimates how other policies would have done",
    )
    advisory: AdvisorySettings = AdvisorySettings()


class ResidencySettings(_Section):
    """Variants to keep in memory, independent of the policies."""

    pinned: tuple[str, ...] = Field(
        (), description="scopes (task[/model[/variant]]) that are never evicted once loaded"
    )
    preload: tuple[str, ...] | Literal["last-run"] = Field(
        (),
        description="scopes to load at the start, in this order; last-run: the variants that were "
        "loaded in the last run, the most served first",
    )

    @property
    def scopes(self) -> tuple[str, ...]:
        """All that are named."""
        return self.pinned + (self.preload if isinstance(self.preload, tuple) else ())


class LimitSettings(_Section):
    """Limits that hold for every policy."""

    default_latency_ms: float = Field(
        10_000.0,
        gt=0,
        le=3.6e6,
        description="deadline of queries without `latency_ms`; they may be late unless they set "
        "`when_late: refuse`",
    )
    max_queued: int = Field(
        2048, ge=1, description="maximum waiting queries in one gateway; more get 429"
    )
    max_batch: int = Field(8, ge=1, le=1024, description="maximum items in one batch or query")
    max_connections: int = Field(
        4096, ge=1, description="maximum client connections of one gateway"
    )
    max_bodies_bytes: int = Field(
        2**30,
        ge=2**20,
        description="maximum bytes of all request bodies in one gateway; more get 429",
    )


class SloSettings(_Section):
    """Limits under a name: clients send `"slo": NAME`, and may still set each limit themselves."""

    latency_ms: float | None = Field(None, gt=0, le=3.6e6, description="deadline, milliseconds")
    min_accuracy: float | None = Field(None, ge=0, le=100, description="minimum accuracy, per cent")
    max_cost_usd: float | None = Field(
        None, gt=0, le=1e6, description="maximum price of the query's device time"
    )
    priority: int | None = Field(None, ge=-1, le=9, description="priority; a higher one is first")
    when_late: Literal["refuse", "serve"] | None = Field(
        None, description="what happens to a query that cannot meet its deadline"
    )

    @property
    def limits(self) -> dict[str, Any]:
        """Those that are set."""
        return self.model_dump(exclude_none=True)


class TenantSettings(_Section):
    """Limits of one tenant, for the whole cluster. They hold for tenants with keys."""

    max_queries_per_s: float | None = Field(
        None, gt=0, description="maximum queries per second; more get 429"
    )
    max_open_queries: int | None = Field(
        None, ge=1, description="maximum queries that wait or run; more get 429"
    )
    max_cost_usd_per_day: float | None = Field(
        None, ge=0, description="maximum cost of its queries per day (UTC); then 429 until midnight"
    )
    slo: str | None = Field(
        None, description="name in `slos` of the limits of queries that name none"
    )
    private: tuple[str, ...] = Field(
        (), description="tasks that no other tenant sees; several tenants may share one"
    )


class HistorySettings(_Section):
    """Records of decisions, for `modelless history` and `modelless why`."""

    max_entries: int = Field(
        100_000,
        ge=100,
        le=10_000_000,
        description="maximum entries (loads, evictions and so on) in the store",
    )
    receipts_per_s: float = Field(
        20.0,
        ge=0,
        le=1000,
        description="receipts of queries that a gateway writes per second, a sample in which "
        "refused and late queries have a part of their own; 0: none",
    )
    receipts_max_bytes: int = Field(
        32 * 2**20,
        ge=2**12,
        description="maximum compressed bytes of one gateway's receipts; the oldest are deleted",
    )


class FeedbackSettings(_Section):
    """Accuracy by feedback, and the variants that it demotes."""

    demote: bool = Field(
        True,
        description="demote a variant whose accuracy by feedback falls below its stated interval: "
        "it then counts for what was measured",
    )
    alpha: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="maximum probability that a variant within the tolerance is ever demoted",
    )
    tolerance_points: float = Field(
        2.0,
        ge=0,
        lt=100,
        description="percentage points below the stated interval that are tolerated",
    )
    retry_s: float = Field(
        3600.0,
        gt=0,
        description="seconds without feedback after which a demoted variant is tried again; "
        "doubled after each failed try, up to a day",
    )
    shadow_share: float = Field(
        0.0,
        ge=0,
        le=0.2,
        description="share of the answered queries that the most accurate loaded variant answers "
        "again, offline, to judge variants that get no feedback",
    )


class RecordSettings(_Section):
    """A recording for `modelless replay`."""

    folder: str | None = Field(
        None, description="folder for a recording of all decisions and their inputs; null: none"
    )
    max_bytes: int = Field(
        256 * 2**20,
        ge=2**16,
        description="maximum compressed bytes of one process's recording; it stops there",
    )


class CacheSettings(_Section):
    """The cache of answers: queries with the same inputs get the answer of the first.

    Each gateway has its own.
    """

    scopes: tuple[str, ...] = Field(
        (), description="scopes (task[/model[/variant]]) whose answers are kept"
    )
    max_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        description="maximum bytes of one gateway's answers; the least recently used go first",
    )


class BatchSettings(_Section):
    """Offline runs that clients begin over HTTP."""

    folder: str | None = Field(
        None,
        description="folder that such runs read and write in, with keys each tenant in a folder of "
        "its name; null: there are none",
    )
    max_running: int = Field(2, ge=1, le=64, description="maximum runs at a time")


class Settings(_Section):
    """All settings of `modelless up`."""

    http: HttpSettings = Field(default_factory=HttpSettings)
    gateways: GatewaySettings = Field(default_factory=GatewaySettings)
    pools: tuple[PoolSettings, ...] = Field((), description="workers of other device classes")
    policies: PolicySettings = Field(default_factory=PolicySettings)
    residency: ResidencySettings = Field(default_factory=ResidencySettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    feedback: FeedbackSettings = Field(default_factory=FeedbackSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    cache: CacheSettings = Field(default_factory=CacheSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    tasks: tuple[str, ...] = Field(
        (), description="tasks to serve; default: all that are registered"
    )
    serve_dominated: bool = Field(
        False,
        description="also serve dominated variants: those for which another variant is more "
        "accurate and faster, and needs no more memory",
    )
    serve_unmeasured: bool = Field(
        False,
        description="also serve variants without a profile on this machine, by predictions from "
        "other profiles; this includes variants whose profiling failed",
    )
    learn_online: bool = Field(
        True, description="correct profiles by the latency of batches while serving"
    )
    prices_usd_per_hour: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="price of a device per hour, by device class, e.g. {cpu-1: 0.04}; default: "
        "0.05 for each core, 3 for a GPU",
    )
    slos: dict[str, SloSettings] = Field(
        default_factory=dict, description="named limits, e.g. {interactive: {latency_ms: 50}}"
    )
    tenants: dict[str, TenantSettings] = Field(
        default_factory=dict, description="limits by tenant, e.g. {shop: {max_queries_per_s: 100}}"
    )
    seed: int = Field(0, ge=0, description="seed of the policies' random generators")
    ingress: Literal["haproxy", "serve"] = Field(
        "haproxy",
        description="proxy in front of the gateways: HAProxy, or Ray Serve's own Python proxy",
    )

    @property
    def device_classes(self) -> frozenset[str]:
        """The device classes that variants run on."""
        names: set[str | None] = {self.gateways.device_class, *self.gateways.sizes}
        for pool in self.pools:
            names |= {pool.device_class, *pool.sizes}
        return frozenset(name for name in names if name is not None)

    @model_validator(mode="after")
    def _slos_are_there(self) -> Settings:
        for name, tenant in self.tenants.items():
            if tenant.slo is not None and tenant.slo not in self.slos:
                allowed = ", ".join(self.slos) or "a name in slos, which is empty"
                raise ValueError(f"tenants.{name}.slo: got {tenant.slo!r}; allowed: {allowed}")
        return self

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

    @model_validator(mode="after")
    def _somebody_listens_for_operators(self) -> Settings:
        for key in ("operators_port", "tls_certificate"):
            if self.ingress == "serve" and getattr(self.http, key) is not None:
                raise ValueError(f"http.{key}: Ray Serve's own proxy has none; use haproxy")
        return self

    @field_validator("pools")
    @classmethod
    def _one_pool_a_class(cls, pools: tuple[PoolSettings, ...]) -> tuple[PoolSettings, ...]:
        names = [pool.device_class for pool in pools]
        if len(names) != len(set(names)):
            raise ValueError("one pool a device class")
        return pools


HOT: Final = (
    *("cache", "feedback.shadow_share", "limits.default_latency_ms"),
    *("policies", "slos", "tenants"),
)
"""Settings, by dotted key, that a running cluster takes at once, with all below them."""


def changed_by(key: str) -> Literal["config set", "upgrade", "up"]:
    """The command that changes a setting of a running cluster; ``up`` is a new start.

    Args:
        key: dotted, such as ``policies.selection``.
    """
    if any(key == hot or key.startswith(f"{hot}.") for hot in HOT):
        return "config set"
    is_fixed = key == "ingress" or (key.startswith("http.") and key != "http.max_body_bytes")
    return "up" if is_fixed else "upgrade"


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a settings document by dotted key; lists and policies stay whole."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        key = f"{prefix}{name}"
        is_section = isinstance(value, Mapping) and "policy" not in value and value
        found |= flatten(value, f"{key}.") if is_section else {key: value}
    return found


def with_changes(base: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with some values in place of their own, all checked.

    Args:
        changes: values by dotted key, such as ``tenants.shop.max_open_queries``. One below a
            policy's name, such as ``policies.selection.quantile``, is a setting of that policy.

    Raises:
        InvalidInputError: an unknown key or a value out of range; names the key.
    """
    document = base.model_dump(mode="json")
    for key, value in sorted(changes.items()):  # what is around another key comes first
        *path, last = key.split(".")
        place = document
        for part in path:
            inner = place.get(part)
            place[part] = {"policy": inner} if isinstance(inner, str) else inner or {}
            place = place[part]
            if not isinstance(place, dict):
                raise InvalidInputError.of(key, value, f"a key of a section, which {part} is not")
        place[last] = value
    return parse_settings(document, "settings")


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
