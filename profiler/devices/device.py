"""Device facts, a fingerprint of what determines latency, and the default device classes.

The module holds values only; ``host`` reads the host's files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from modelless.variants.vocabulary import DeviceClass

DEVICE_CLASSES = ("cpu-1", "cpu-2", "gpu-1")
"""The names of all device classes on any machine; see ``default_device_classes``."""

USD_PER_CORE_HOUR = 0.05
"""The default price: about what large clouds charge on demand for one virtual core of a
general-purpose machine (0.04 to 0.06 USD). The setting ``prices_usd_per_hour`` replaces it."""

WATTS_PER_CORE = 8.0
"""The assumed power: a server processor's rated 200 to 350 W divided by its 24 to 48 cores. No
setting changes it."""

USD_PER_GPU_HOUR = 3.0
"""The default price: about what large clouds charge on demand for one data-centre card with its
host (an L4 0.7, an A100 4, an H100 5 to 10 USD). ``prices_usd_per_hour`` replaces it."""

WATTS_PER_GPU = 300.0
"""The assumed power of cards whose driver reports no limit. No setting changes it."""

GPU_MEMORY_SHARE = 0.8
"""The share of a card's memory that variants may fill; the rest is for CUDA and larger batches."""

MEMORY_SHARE = 0.5
"""The share of the usable memory that variants may fill; the rest is for Ray and the gateways."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One graphics card as its driver describes it."""

    name: str
    memory_bytes: int
    driver: str
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts of a host that are known without running anything on it.

    Attributes:
        cpu_model: name of the processor, e.g. ``AMD EPYC 9R14``; with its family and model number
            where the name alone is vague.
        architecture: ``x86_64``, ``aarch64``, ...
        cores: whole cores this process may use, at least 1: the least of affinity and quota.
        quota_cores: cores' worth of time that the control group grants; None where it sets no
            limit.
        isa: instruction-set extensions that affect inference, sorted: ``avx2``, ``avx512_vnni``,
            ...
        cache_bytes: size by level, ``{"L1d": 49152, "L2": ..., "L3": ...}``; unknown levels are
            missing.
        memory_bytes: memory this process may use: the least of the host's and the control group's.
        engines: version of each installed engine by its name, ``{"onnxruntime-cpu": "1.20.1"}``.
        threads_per_core: how many of ``cores`` share one physical core; None where unknown.
    """

    cpu_model: str
    architecture: str
    cores: int
    quota_cores: float | None
    isa: tuple[str, ...]
    cache_bytes: Mapping[str, int]
    memory_bytes: int
    gpus: tuple[GpuFacts, ...] = ()
    engines: Mapping[str, str] = field(default_factory=dict)
    threads_per_core: int | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint for placements on the processor: ``fingerprint_of("cpu")``."""
        return self.fingerprint_of("cpu")

    def fingerprint_of(self, kind: str) -> str:
        """Returns 16 hex digits of a hash over what determines latency on devices of ``kind``.

        Fingerprints are equal where a measurement by the same engine version may be reused: same
        processor, cores, caches and extensions; for ``gpu`` the cards and their driver as well.
        Memory size, kernel, host name and the varying clock speed are left out on purpose.
        """
        matters: dict[str, object] = {
            "architecture": self.architecture,
            "cache_bytes": dict(self.cache_bytes),
            "cores": self.cores,
            "cpu_model": self.cpu_model,
            "isa": list(self.isa),
            "quota_cores": self.quota_cores,
        }
        if kind == "gpu":
            matters["gpus"] = [[gpu.name, gpu.memory_bytes, gpu.driver] for gpu in self.gpus]
        text = json.dumps(matters, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def engine_names(self) -> frozenset[str]:
        return frozenset(map(self.engine_name, self.engines))

    def engine_name(self, engine: str) -> str:
        """Returns the engine with its version, if known: ``onnxruntime-cpu-1.20.1``."""
        version = self.engines.get(engine)
        return f"{engine}-{version}" if version else engine

    def device_name(self, kind: str = "cpu") -> str:
        if kind == "gpu" and self.gpus:
            return self.gpus[0].name
        return self.cpu_model


def default_device_classes(facts: DeviceFacts) -> list[DeviceClass]:
    """Returns ``cpu-1`` (one thread), ``cpu-2`` on two cores or more, ``gpu-1`` (a card) with a
    card.

    Each core brings an equal part of ``MEMORY_SHARE`` of the usable memory, so that any mix of
    these classes that fits the cores fits the memory, too.
    """
    bytes_per_core = int(facts.memory_bytes * MEMORY_SHARE / facts.cores)
    classes = [
        DeviceClass(
            name=f"cpu-{threads}",
            kind="cpu",
            threads=threads,
            memory_bytes=bytes_per_core * threads,
            price_usd_per_hour=USD_PER_CORE_HOUR * threads,
            power_w=WATTS_PER_CORE * threads,
        )
        for threads in (1, 2)
        if threads <= facts.cores
    ]
    for card in facts.gpus[:1]:  # engines use the first card
        power_w = card.power_limit_w or WATTS_PER_GPU
        memory_bytes = int(card.memory_bytes * GPU_MEMORY_SHARE)
        classes.append(DeviceClass("gpu-1", "gpu", 1, memory_bytes, USD_PER_GPU_HOUR, power_w))
    return classes
