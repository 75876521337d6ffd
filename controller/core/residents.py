"""What one worker holds, as policies see it: each variant's times by the items of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from modelless.policies.views import ResidentView
from modelless.variants.estimates import CostModel, Load
from modelless.variants.vocabulary import Placement, Variant


def build_residents(
    variants: Sequence[Variant],
    device_class: str,
    hop_s: float,
    cost_model: CostModel,
    load: Load,
    max_batch: int,
) -> Mapping[str, ResidentView]:
    """The views of these variants on a device class, by id; read-only.

    Args:
        variants: what a worker holds.
        device_class: what it is.
        hop_s: price of reaching it, a batch.
        cost_model: whom to ask.
        load: under which.
        max_batch: most items of a batch.
    """
    # A tuple is looked up once for all batches.
    placements = tuple([Placement(variant.id, device_class) for variant in variants])
    p50_s, p99_s = [np.zeros(len(variants))], [np.zeros(len(variants))]
    for batch in range(1, max_batch + 1):
        estimates = cost_model.estimate(placements, batch, load)
        p50_s.append(estimates.p50_s + hop_s)
        p99_s.append(estimates.p99_s + hop_s)
    columns = zip(variants, np.stack(p50_s, axis=1), np.stack(p99_s, axis=1), strict=True)
    return MappingProxyType(
        {
            variant.id: ResidentView(
                variant.id,
                variant.accuracy.percent,
                tuple(typical.tolist()),
                tuple(upper.tolist()),
            )
            for variant, typical, upper in columns
        }
    )
