"""The variants that a simulated cluster serves, what they take, and who knows of which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

from modelless.policies.views import VariantFacts
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Placement,
    Provenance,
    Variant,
)
from tests.builders import make_variant

MIB = 1 << 20
MAX_BATCH = 4
TASKS = ("alpha", "beta")
LADDER = {
    "alpha/small/int8": (0.016, 70.0, 200),
    "alpha/middle/fp32": (0.040, 76.0, 300),
    "alpha/large/fp32": (0.100, 82.0, 500),
    "beta/one/int8": (0.030, 60.0, 250),
    "beta/two/fp32": (0.080, 75.0, 400),
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


def accuracy(variant_id: str) -> float:
    """In percent."""
    return LADDER[name_of(variant_id)][1]


def memory_bytes(placement: Placement) -> int:
    """The memory of a loaded variant, which is as expected."""
    more_mib = 20 * (placement.device_class == "cpu-2")
    return (LADDER[name_of(placement.variant_id)][2] + more_mib) * MIB


def load_s(placement: Placement) -> float:
    """The usual time of a load, seconds."""
    return memory_bytes(placement) / (500 * MIB)


def make_model(*, learns: bool) -> ServingCostModel:
    """Return a cost model that has this table as its profile."""
    figures = [
        SimpleNamespace(
            placement=each,
            batch=n,
            p50_s=p50_s(each, n),
            p90_s=1.2 * p50_s(each, n),
            p99_s=1.4 * p50_s(each, n),
            memory_bytes=memory_bytes(each),
            load_s=load_s(each),
        )
        for name, versions in VERSIONS.items()
        for version in versions
        for each in [Placement(f"{name}@{version}", of) for of in CLASSES]
        for n in range(1, MAX_BATCH + 1)
    ]
    return ServingCostModel((), predicted=figures, learns=learns)


MODEL = make_model(learns=False)


@dataclass(frozen=True)
class Knowledge:
    """The versions that a process knows: by id, and for planning."""

    variants: Mapping[str, Variant]
    facts: tuple[VariantFacts, ...]


def _make_facts(variant: Variant, profiled: float) -> VariantFacts:
    where = {name: Placement(variant.id, name) for name in CLASSES}
    sizes = range(1, MAX_BATCH + 1)
    return VariantFacts(
        variant.id,
        variant.task,
        variant.accuracy.percent,
        {name: memory_bytes(each) * profiled for name, each in where.items()},
        {name: load_s(each) for name, each in where.items()},
        {name: p50_s(each, 1) for name, each in where.items()},
        {name: (0.0, *(p50_s(each, n) for n in sizes)) for name, each in where.items()},
    )


@cache
def knowledge_of(newest: int, profiled: float) -> Knowledge:
    """Return all versions up to a number; ``profiled`` as in ``Setup``."""
    ids = [f"{name}@{n}" for name, all_of in VERSIONS.items() for n in all_of if n <= newest]
    stated = {
        each: Accuracy(accuracy(each), "top-1", Provenance.PUBLISHED, "a test") for each in ids
    }
    variants = {each: make_variant(each, accuracy=stated[each]) for each in ids}
    facts = tuple(_make_facts(each, profiled) for each in variants.values())
    return Knowledge(variants, facts)
