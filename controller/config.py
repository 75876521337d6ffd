"""Settings: one YAML file, every key checked, every default said here.

``modelless up --config FILE`` reads it; without one the defaults hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from modelless.variants.errors import InvalidInputError
from modelless.variants.settings_files import problems, read_yaml

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
        "cpu-1", description="device each gateway owns and runs on; null: none, all runs in pools"
    )
    memory_bytes: int | None = Field(
        None, ge=2**20, description="what variants may fill in each gateway; default: by machine"
    )
    pin: bool = Field(
        True,
        description="keep each gateway's device on CPU cores of its own, where there are enough",
    )


class PoolSettings(_Section):
    """Workers of one device class, reached from the gateways by one call a batch."""

    device_class: str = Field(description="device class of its workers")
    workers: int = Field(1, ge=0, le=1024, description="workers to begin with")
    min_workers: int = Field(0, ge=0, description="fewest workers that scaling may leave")
    max_workers: int = Field(8, ge=0, description="most workers that scaling may start")
    resources: dict[str, float] = Field(
        default_factory=dict, description="Ray resources each worker needs, e.g. {GPU: 1}"
    )

    def actor_options(self) -> dict[str, Any]:
        """``resources`` as Ray takes them of an actor: its own kinds go by names of their own."""
        named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        own = {named[name]: amount for name, amount in self.resources.items() if name in named}
        others = {name: amount for name, amount in self.resources.items() if name not in named}
        return {**own, "resources": others}


class PolicySettings(_Section):
    """Who decides: a policy's name, or a mapping of `policy` and its settings."""

    selection: PolicySpecification = Field("best-value", description="chooses variants")
    scaling: PolicySpecification = Field("fixed", description="wants instances and workers")
    placement: PolicySpecification = Field("most-free-memory", description="puts instances")
    eviction: PolicySpecification = Field(
        "lru", description="ranks what leaves when memory is short"
    )
    forecast: PolicySpecification = Field("last-value", description="expects demand")


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


class Settings(_Section):
    """Everything `modelless up` can be told."""

    http: HttpSettings = Field(default_factory=HttpSettings)
    gateways: GatewaySettings = Field(default_factory=GatewaySettings)
    pools: tuple[PoolSettings, ...] = Field((), description="workers of other device classes")
    policies: PolicySettings = Field(default_factory=PolicySettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    tasks: tuple[str, ...] = Field(
        (), description="tasks to serve; default: all that are registered"
    )
    serve_dominated: bool = Field(
        False,
        description="serve variants that another beats in accuracy and latency for no more memory",
    )
    serve_unmeasured: bool = Field(
        False,
        description="serve variants that were never profiled here, on what others let suppose; "
        "one that could not be profiled would be tried too",
    )
    seed: int = Field(0, description="seed of the policies' randomness")
    ingress: Literal["haproxy", "serve"] = Field(
        "haproxy", description="haproxy, or serve for Ray Serve's own Python proxy"
    )

    @property
    def device_classes(self) -> frozenset[str]:
        """The device classes that variants run on."""
        own = self.gateways.device_class
        return frozenset([pool.device_class for pool in self.pools] + ([own] if own else []))

    @model_validator(mode="after")
    def _something_runs(self) -> Settings:
        if self.gateways.device_class is None and not self.pools:
            raise ValueError("gateways without a device need a pool: nothing would run")
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
        raise InvalidInputError(f"{source}: {problems(error)}") from None


def default_home() -> Path:
    """Where the store, the artifacts and the logs live: $MODELLESS_HOME or ~/.modelless."""
    return Path(os.environ.get("MODELLESS_HOME") or Path.home() / ".modelless")
