"""What the cost model makes of real contention: ONNX Runtime beside busy neighbours.

Placements are measured alone, as a profile would. Then they run, in turn and at a few batch sizes,
beside 0, 1, 2, ... processes that run without a pause, and the cost model is told what each batch
took. Its median error before it is told is compared with that of the profile alone, and with that
of the medians known in hindsight, below which no prediction by placement, batch and load gets.

    python benchmarks/profiling/contention.py HOME [--variants ID ...] [--batches 1 2]
        [--neighbours 0 1 2] [--outcomes 400]

HOME holds the registered variants, see ``modelless zoo add``; nothing is written to it.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.campaign import CampaignSettings, run_campaign
from modelless.profiler.measure.inputs import sample_inputs
from modelless.profiler.measure.jobs import MeasurementJob, load_job
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.neighbours import neighbour_process
from modelless.profiler.measure.timing import MeasurementEffort
from modelless.variants.estimates import Load
from modelless.variants.registry.registry import open_registry

VARIANTS = (
    "imagenet/efficientnet-lite0/int8-128@2",
    "imagenet/efficientnet-lite0/fp32-160@1",
    "imagenet/efficientnet-lite1/int8-160@2",
)
LEARNED_AFTER = 200


class Kept:
    def __init__(self) -> None:
        self.rows: list[Measurement] = []

    def current(self, facts: DeviceFacts, kind: str = "cpu") -> list[Measurement]:
        del facts, kind
        return []

    def add(self, measurement: Measurement) -> None:
        self.rows.append(measurement)


def find_jobs(home: Path, variant_ids: list[str]) -> list[MeasurementJob]:
    device = default_device_classes(read_facts())[0]
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
        return [
            MeasurementJob(
                variant := catalog.versions[name],
                device,
                registry.artifacts.fetch(variant.artifact_sha256),
                partial(sample_inputs, catalog.tasks[variant.task].inputs),
            )
            for name in variant_ids
        ]


def figures(part: NDArray[np.float64]) -> str:
    """Errors and coverage of rows of (which, batch, seen, profiled p50, told p50, p90, p99)."""
    which, batch, seen_s, profiled_s, p50_s, p90_s, p99_s = part.T
    hindsight_s = np.empty_like(seen_s)
    for cell in np.unique(part[:, :2], axis=0):
        members = (which == cell[0]) & (batch == cell[1])
        hindsight_s[members] = np.median(seen_s[members])
    errors = [
        100.0 * float(np.median(np.abs(predicted_s / seen_s - 1.0)))
        for predicted_s in (profiled_s, p50_s, hindsight_s)
    ]
    within = [100.0 * float(np.mean(seen_s <= quantile_s)) for quantile_s in (p90_s, p99_s)]
    return "".join(f"{figure:11.1f} %" for figure in (*errors, *within))


def run(
    jobs: list[MeasurementJob], batches: list[int], neighbours: list[int], outcomes: int
) -> None:
    kept = Kept()
    effort = MeasurementEffort(max_time_s=1.0)
    settings = CampaignSettings(batches=tuple(batches), effort=effort, accept_noise=True)
    run_campaign(jobs, kept, read_facts(), settings)
    # A few runs say little of a tail: take the median as it is.
    rows = [replace(row, trusted=True) for row in kept.rows]
    model = ServingCostModel(rows)
    blind = ServingCostModel(rows, learns=False)
    loaded = [load_job(job) for job in jobs]
    rng = np.random.default_rng(1)
    print("busy   outcomes      profiled      learned    hindsight   within p90   within p99")
    for count in neighbours:
        with ExitStack() as stack:
            for number in range(count):
                stack.enter_context(neighbour_process(jobs[number % len(jobs)]))
            found: list[tuple[float, ...]] = []
            for _ in range(outcomes):
                which, batch = int(rng.integers(len(jobs))), int(rng.choice(batches))
                placements, load = (jobs[which].placement,), Load(float(count), time.monotonic())
                told, profiled = (m.estimate(placements, batch, load) for m in (model, blind))
                inputs = jobs[which].inputs(batch)
                started_s = time.perf_counter()
                loaded[which].infer(inputs)
                latency_s = time.perf_counter() - started_s
                model.observe(placements[0], batch, load, latency_s)
                quantiles = (told.p50_s[0], told.p90_s[0], told.p99_s[0])
                found.append((which, batch, latency_s, profiled.p50_s[0], *quantiles))
        table = np.array(found)
        for start, end in ((0, LEARNED_AFTER), (LEARNED_AFTER, outcomes)):
            print(f"{count:4d}  {start:4d}-{end:4d}  {figures(table[start:end])}")
    print(f"drifts: {[(d.placement.variant_id, round(d.factor, 2)) for d in model.drifts()]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--outcomes", type=int, default=400)
    asked = parser.parse_args()
    run(find_jobs(asked.home, asked.variants), asked.batches, asked.neighbours, asked.outcomes)


if __name__ == "__main__":
    main()
