"""How well a part of the measuring time predicts all of it, and what a device's own rates add.

Takes a home in which a full grid was profiled, hides it, lets the strategy of `modelless profile
--budget` choose points as if each were measured now (it takes as long as it took), and compares
what is predicted of the rest with what was measured. Each is done twice: the devices known by name
alone, and with the rates that ``modelless device`` measured of them (``rates``). ``zero_shot`` is
what is predicted of a device class before anything was measured, and ``sibling`` what is of one of
which nothing was when all of another was:

    modelless --home HOME profile --device-class cpu-1,cpu-2
    python benchmarks/profiling/few_points.py --home HOME
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modelless.profiler.cost_model.host_model import read_measurements
from modelless.profiler.cost_model.learned.experiment_design import BayesianDesign
from modelless.profiler.cost_model.learned.fleet_model import FleetModel
from modelless.profiler.cost_model.learned.prior import shipped_prior
from modelless.profiler.cost_model.placement_facts import describe_measured
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.table import PlacementFacts
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Placement

SHARES = (0.05, 0.10, 0.15, 0.25)


def main() -> None:
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
        rates = DeviceRecords(registry.store).current(devices.values(), facts)
        subjects = describe_measured(
            grid, newest, devices, catalog.models.values(), registry.graph_facts, rates
        )
    found: dict[str, Any] = {"points": len(grid), "seconds": round(cost_s(grid), 1)}
    unrated = {placement: replace(one, rates=None) for placement, one in subjects.items()}
    for name, some in (("name_alone", unrated), ("rates", subjects)):
        found[name] = {
            "zero_shot": {each: unseen(grid, some, each, []) for each in devices},
            "sibling": {each: unseen(grid, some, each, others(grid, each)) for each in devices},
            "results": [replay(grid, some, share) for share in SHARES],
        }
    print(json.dumps(found, indent=1))


def others(grid: Sequence[Measurement], device_class: str) -> list[Measurement]:
    return [row for row in grid if row.device_class != device_class]


def unseen(
    grid: Sequence[Measurement],
    subjects: Mapping[Placement, PlacementFacts],
    device_class: str,
    known: Sequence[Measurement],
) -> dict[str, float]:
    """What is predicted of a device class of which nothing was measured."""
    model = FleetModel(shipped_prior(), subjects, sorted({row.batch for row in grid}))
    return judge(model, known, [row for row in grid if row.device_class == device_class])


def judge(
    model: FleetModel, known: Sequence[Measurement], rest: Sequence[Measurement]
) -> dict[str, float]:
    """Errors and bands of the rest, predicted from what is known."""
    rows = model.rows((row.placement, row.batch) for row in rest)
    expected = model.fit(known).predict(rows)
    seen_s = np.array([row.p50_s for row in rest])
    error = np.abs(expected.median_s / seen_s - 1.0)
    above = np.log(seen_s / expected.median_s) / expected.p90_log
    return {
        "predicted": len(rest),
        "median_error_percent": round(100.0 * float(np.median(error)), 2),
        "p90_error_percent": round(100.0 * float(np.quantile(error, 0.9)), 2),
        "within_10_percent": round(100.0 * float((error <= 0.1).mean()), 1),
        "below_p90_percent": round(100.0 * float((above <= 1.0).mean()), 1),
        "in_band_of_80_percent": round(100.0 * float((np.abs(above) <= 1.0).mean()), 1),
        "p90_over_median": round(float(np.exp(np.median(expected.p90_log))), 2),
    }


def cost_s(rows: Sequence[Measurement]) -> float:
    """What measuring the points took: their runs, and a load for each placement."""
    loads_s = {row.placement: row.load_s for row in rows}
    return sum(row.repeats * row.mean_s for row in rows) + sum(loads_s.values())


def replay(
    grid: Sequence[Measurement], subjects: Mapping[Placement, PlacementFacts], share: float
) -> dict[str, float]:
    """Choose points until that share of the time is spent, and judge what is predicted then."""
    points = {(row.placement, row.batch): row for row in grid}
    batches = sorted({row.batch for row in grid})
    strategy = BayesianDesign(shipped_prior(), subjects, batches)
    left: dict[Placement, list[int]] = {}
    for row in grid:
        left.setdefault(row.placement, []).append(row.batch)
    known: list[Measurement] = []
    budget_s = share * cost_s(grid)
    while left:
        chosen = strategy.choose(left, known)
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
    return {
        "share_of_time": round(cost_s(known) / cost_s(grid), 3),
        "measured": len(known),
        **judge(FleetModel(shipped_prior(), subjects, batches), known, rest),
    }


if __name__ == "__main__":
    main()
