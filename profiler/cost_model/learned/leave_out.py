"""How well the learned model predicts what was measured, each time without having seen it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from modelless.profiler.cost_model.learned.placements import PlacementModel
from modelless.profiler.cost_model.learned.prior import Prior
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import Subject
from modelless.variants.vocabulary import Placement


def leave_one_batch_out(
    prior: Prior, subjects: Mapping[Placement, Subject]
) -> Callable[[Sequence[Measurement]], list[float]]:
    """Predicts each of some points from all others but those of its own batch, seconds.

    Args:
        prior: see ``PlacementModel``.
        subjects: what is known of the placements; a point of another is infinitely slow.
    """

    def predict(points: Sequence[Measurement]) -> list[float]:
        batches = sorted({point.batch for point in points})
        known = {
            row.placement: subjects[row.placement] for row in points if row.placement in subjects
        }
        model = PlacementModel(prior, known, batches)
        found: dict[tuple[Placement, int], float] = {}
        for batch in batches:
            fitted = model.fit(point for point in points if point.batch != batch)
            wanted = [(placement, batch) for placement in known]
            median_s = fitted.expect(model.rows(wanted)).median_s
            found.update(zip(wanted, median_s.tolist(), strict=True))
        return [found.get((point.placement, point.batch), math.inf) for point in points]

    return predict
