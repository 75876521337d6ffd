"""The variants that a simulated cluster serves, what they take, and who knows of which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelless.policies.views import VariantFacts
from modelless.variants.estimates import Estimates, Load
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
)

MIB = 1 << 20
MAX_BATCH = 4
LADDER = {
    "alpha/small/int8": (0.008, 70.0, 200),
    "alpha/middle/fp32": (0.020, 76.0, 300),
    "alpha/large/fp32": (0.050, 82.0, 500),
    "beta/one/int8": (0.015, 60.0, 250),
    "beta/two/fp32": (0.040, 75.0, 400),
}
"""p50 of a batch of one on ``cpu-1`` in seconds, accuracy in percent, and memory in MiB."""

TRIED = ("alpha/small/int8", "beta/one/int8")
"""Names that have a second and a third version; the third is registered during the run."""

SPEED = {"cpu-1": 1.0, "cpu-2": 1.7}
CLASSES = {
    "cpu-1": DeviceClass("cpu-1", "cpu", 1, 1000 * MIB, 0.05, 8.0),
    "cpu-2": DeviceClass("cpu-2", "cpu", 2, 1000 * MIB, 0.09, 15.0),
}
VERSIONS = {name: (1, 2, 3) if name in TRIED else (1,) for name in LADDER}


def p50_s(placement: Placement, items: int) -> float:
    """The median time of a batch, seconds."""
    one_s = LADDER[name_of(placement.variant_id)][0]
    return one_s / SPEED[placement.device_class] * (0.4 + 0.6 * items)


def memory_bytes(placement: Placement) -> int:
    """The memory of a loaded variant, which is as expected."""
    more_mib = 20 * (placement.device_class == "cpu-2")
    return (LADDER[name_of(placement.variant_id)][2] + more_mib) * MIB


def load_s(placement: Placement) -> float:
    """The usual time of a load, seconds."""
    return memory_bytes(placement) / (500 * MIB)


def make_variant(variant_id: str) -> Variant:
    """Return the variant with this id."""
    name, _, version = variant_id.partition("@")
    task, model, last = name.split("/")
    return Variant(
        task=task,
        model=model,
        name=last,
        version=int(version),
        precision=Precision.FP32,
        resolution_px=None,
        engine=Engine.ONNXRUNTIME_CPU,
        artifact_sha256="0" * 64,
        artifact_bytes=1,
        accuracy=Accuracy(LADDER[name][1], "top-1", Provenance.PUBLISHED, "a test"),
    )


class TableModel:
    """A ``CostModel`` that knows the medians of this table, and learns nothing."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Placement, ...], int], Estimates] = {}

    def estimate(self, placements: Sequence[Placement], batch: int, load: Load) -> Estimates:
        """See ``CostModel.estimate``."""
        del load
        key = tuple(placements), batch
        found = self._known.get(key)
        if found is None:
            p50 = np.array([p50_s(each, batch) for each in placements], dtype=np.float64)
            memory = np.array([memory_bytes(each) for each in placements], dtype=np.float64)
            loads = np.array([load_s(each) for each in placements], dtype=np.float64)
            found = self._known[key] = Estimates(p50, p50 * 1.2, p50 * 1.4, memory, loads)
        return found

    def observe(self, placement: Placement, batch: int, load: Load, latency_s: float) -> None:
        """See ``CostModel.observe``."""

    def doubt(self, placements: Sequence[Placement], at_s: float) -> None:
        """See ``CostModel.doubt``."""


MODEL = TableModel()


@dataclass(frozen=True)
class Knowledge:
    """The versions that a process knows."""

    variants: dict[str, Variant]

    @property
    def facts(self) -> tuple[VariantFacts, ...]:
        """The same for planning."""
        facts = []
        for variant in self.variants.values():
            where = {name: Placement(variant.id, name) for name in CLASSES}
            facts.append(
                VariantFacts(
                    variant.id,
                    variant.task,
                    variant.accuracy.percent,
                    {name: float(memory_bytes(each)) for name, each in where.items()},
                    {name: load_s(each) for name, each in where.items()},
                    {name: p50_s(each, 1) for name, each in where.items()},
                    {
                        name: (0.0, *(p50_s(each, n) for n in range(1, MAX_BATCH + 1)))
                        for name, each in where.items()
                    },
                )
            )
        return tuple(facts)


def knowledge_of(newest: int) -> Knowledge:
    """Return all versions up to a number."""
    ids = [f"{name}@{n}" for name, all_of in VERSIONS.items() for n in all_of if n <= newest]
    return Knowledge({each: make_variant(each) for each in ids})
