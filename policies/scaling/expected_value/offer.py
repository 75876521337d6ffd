"""What could be loaded on the device classes there are, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.policies.views import FloatArray, VariantFacts
from modelless.variants.vocabulary import Placement

IntArray = NDArray[np.intp]


class Offer(NamedTuple):
    """Placements that could be loaded, as columns of shape (p,), in order of their names.

    Attributes:
        placements: variant and device class.
        class_of: number of its device class among ``classes``.
        classes: names.
        accuracy: 0 to 1.
        batch_s: (p, b + 1), p50 of a batch at its index; inf where unknown.
        memory_bytes, load_s: of one instance.
    """

    placements: tuple[Placement, ...]
    class_of: IntArray
    classes: tuple[str, ...]
    accuracy: FloatArray
    batch_s: FloatArray
    memory_bytes: FloatArray
    load_s: FloatArray


def offer_of(variants: Sequence[VariantFacts], classes: Sequence[str]) -> Offer:
    """What can run on workers of these classes, with known memory and latency."""
    rows = sorted(
        (
            (facts.variant_id, number, facts)
            for facts in variants
            for number, name in enumerate(classes)
            if _is_known(facts.latency_s.get(name)) and _is_known(facts.memory_bytes.get(name))
        ),
        key=lambda row: row[:2],
    )
    curves = []
    for _, number, facts in rows:
        curve = facts.batch_s.get(classes[number], ())
        curves.append(curve if len(curve) > 1 else (0.0, facts.latency_s[classes[number]]))
    batch_s = np.full((len(rows), max(map(len, curves), default=2)), np.inf)
    for row, curve in enumerate(curves):
        batch_s[row, : len(curve)] = curve
    batch_s[~(batch_s > 0.0)] = np.inf
    loads = [facts.load_s.get(classes[number], 0.0) for _, number, facts in rows]
    return Offer(
        tuple(Placement(name, classes[number]) for name, number, _ in rows),
        np.array([number for _, number, _ in rows], dtype=np.intp),
        tuple(classes),
        np.array([_percent(facts.accuracy_percent) for _, _, facts in rows]) / 100.0,
        batch_s,
        np.array([ceil(facts.memory_bytes[classes[n]]) for _, n, facts in rows], dtype=np.float64),
        np.array([load_s if _is_known(load_s) else 0.0 for load_s in loads]),
    )


def _is_known(value: float | None) -> bool:
    return value is not None and isfinite(value) and value >= 0.0


def _percent(value: float) -> float:
    return value if isfinite(value) else 0.0
