"""How well a part of the measuring time predicts all of it.

Takes a home in which a full grid was profiled, hides it, lets the agenda of `modelless profile
--budget` choose points as if each were measured now (it takes as long as it took), and compares
what is predicted of the rest with what was measured:

    modelless --home HOME profile --device-class cpu-1,cpu-2
    python benchmarks/few_points.py --home HOME
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from modelless.profiler.device import default_device_classes
from modelless.profiler.host import read_facts
from modelless.profiler.host_model import read_measurements
from modelless.profiler.learning.agenda import InformedAgenda
from modelless.profiler.learning.placements import PlacementModel
from modelless.profiler.learning.prior import shipped_prior
from modelless.profiler.measurement import Measurement
from modelless.profiler.subjects import measured_subjects
from modelless.profiler.table import Subject
from modelless.variants.registry import open_registry
from modelless.variants.vocabulary import Placement

SHARES = (0.05, 0.10, 0.15, 0.25)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="with a profiled grid")
    home = parser.parse_args().home
    facts = read_facts()
    devices = {device.name: device for device in default_device_classes(facts)}
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
        newest = {variant.id: variant for variant in catalog.variants}
        grid = [
            row
            for row in read_measurements(registry, devices.values(), facts)
            if row.variant_id in newest
        ]
        subjects = measured_subjects(
            grid, newest, devices, catalog.models.values(), registry.graph_facts
        )
    results = [replay(grid, subjects, share) for share in SHARES]
    found = {"points": len(grid), "seconds": round(cost_s(grid), 1), "results": results}
    print(json.dumps(found, indent=1))


def cost_s(rows: Sequence[Measurement]) -> float:
    """What measuring the points took: their runs, and a load for each placement."""
    loads_s = {row.placement: row.load_s for row in rows}
    return sum(row.repeats * row.mean_s for row in rows) + sum(loads_s.values())


def replay(
    grid: Sequence[Measurement], subjects: dict[Placement, Subject], share: float
) -> dict[str, float]:
    """Choose points until that share of the time is spent, and judge what is predicted then."""
    points = {(row.placement, row.batch): row for row in grid}
    batches = sorted({row.batch for row in grid})
    agenda = InformedAgenda(shipped_prior(), subjects, batches)
    left: dict[Placement, list[int]] = {}
    for row in grid:
        left.setdefault(row.placement, []).append(row.batch)
    known: list[Measurement] = []
    budget_s = share * cost_s(grid)
    while left:
        chosen = agenda.choose(left, known)
        if chosen is None:
            break
        more = [points[chosen.placement, batch] for batch in chosen.batches]
        if cost_s([*known, *more]) > budget_s:
            break
        known += more
        left[chosen.placement] = [b for b in left[chosen.placement] if b not in chosen.batches]
        if not left[chosen.placement]:
            del left[chosen.placement]
    rest = [points[placement, batch] for placement, some in left.items() for batch in some]
    model = PlacementModel(shipped_prior(), subjects, batches)
    rows = model.rows((row.placement, row.batch) for row in rest)
    expected_s = model.fit(known).expect(rows).median_s
    error = np.abs(expected_s / np.array([row.p50_s for row in rest]) - 1.0)
    return {
        "share_of_time": round(cost_s(known) / cost_s(grid), 3),
        "measured": len(known),
        "predicted": len(rest),
        "median_error_percent": round(100.0 * float(np.median(error)), 2),
        "p90_error_percent": round(100.0 * float(np.quantile(error, 0.9)), 2),
        "within_10_percent": round(100.0 * float((error <= 0.1).mean()), 1),
    }


if __name__ == "__main__":
    main()
