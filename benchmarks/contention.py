"""What the cost model makes of real contention: ONNX Runtime beside busy neighbours.

Placements are measured alone, as a profile would. Then they run, in turn and at two batch sizes,
beside 0, 1, 2, ... processes that run without a pause, and the cost model is told what each batch
took. Its error before it is told is compared with that of the profile alone.

    python benchmarks/contention.py HOME [--variants ID ...] [--neighbours 0 1 2] [--outcomes 400]

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

from modelless.profiler.campaign import CampaignSettings, run_campaign
from modelless.profiler.device import default_device_classes
from modelless.profiler.host import read_facts
from modelless.profiler.inputs import sample_inputs
from modelless.profiler.jobs import Job, load_job
from modelless.profiler.measure import Effort
from modelless.profiler.measured_model import MeasuredCostModel
from modelless.profiler.measurement import Measurement
from modelless.profiler.neighbours import neighbour_process
from modelless.profiler.online.settings import ResidualSettings
from modelless.variants.estimates import Load
from modelless.variants.registry import open_registry

BATCHES = (1, 2)
VARIANTS = (
    "imagenet/efficientnet-lite0/int8-128@2",
    "imagenet/efficientnet-lite0/fp32-160@1",
    "imagenet/efficientnet-lite1/int8-160@2",
)
LEARNED_AFTER = 200


class Kept:
    """Measurements in memory."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []

    def current(self, fingerprint: str) -> list[Measurement]:
        """Nothing: everything is measured."""
        del fingerprint
        return []

    def add(self, measurement: Measurement) -> None:
        """Keep it."""
        self.rows.append(measurement)


def find_jobs(home: Path, variant_ids: list[str]) -> list[Job]:
    """The variants on one core each."""
    device = default_device_classes(read_facts())[0]
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
        return [
            Job(
                variant := catalog.versions[name],
                device,
                registry.artifacts.fetch(variant.artifact_sha256),
                partial(sample_inputs, catalog.tasks[variant.task].inputs),
            )
            for name in variant_ids
        ]


def run(jobs: list[Job], neighbours: list[int], outcomes: int) -> None:
    """Measure, contend, learn, print."""
    kept = Kept()
    effort = Effort(max_time_s=1.0)
    settings = CampaignSettings(batches=BATCHES, effort=effort, accept_noise=True)
    run_campaign(jobs, kept, read_facts(), settings)
    # A few runs say little of a tail: take the median as it is.
    rows = [replace(row, trusted=True) for row in kept.rows]
    model = MeasuredCostModel(rows)
    blind = MeasuredCostModel(rows, ResidualSettings(absurd_ratio=1.0))  # ignores whatever it sees
    loaded = [load_job(job) for job in jobs]
    rng = np.random.default_rng(1)
    print("busy  outcomes      error alone    error learned   within p90   within p99")
    for count in neighbours:
        with ExitStack() as stack:
            for number in range(count):
                stack.enter_context(neighbour_process(jobs[number % len(jobs)]))
            found = []
            for _ in range(outcomes):
                which, batch = int(rng.integers(len(jobs))), int(rng.choice(BATCHES))
                placements, load = (jobs[which].placement,), Load(float(count), time.monotonic())
                told, profiled = (m.estimate(placements, batch, load) for m in (model, blind))
                inputs = jobs[which].inputs(batch)
                started_s = time.perf_counter()
                loaded[which].infer(inputs)
                latency_s = time.perf_counter() - started_s
                model.observe(placements[0], batch, load, latency_s)
                found.append(
                    (
                        abs(profiled.p50_s[0] / latency_s - 1.0),
                        abs(told.p50_s[0] / latency_s - 1.0),
                        latency_s <= told.p90_s[0],
                        latency_s <= told.p99_s[0],
                    )
                )
        table = np.array(found)
        for start, end in ((0, LEARNED_AFTER), (LEARNED_AFTER, outcomes)):
            part = table[start:end]
            errors = 100.0 * np.median(part[:, :2], axis=0)
            within = 100.0 * part[:, 2:].mean(axis=0)
            print(
                f"{count:4d}  {start:4d}-{end:4d}  {errors[0]:12.1f} %  {errors[1]:12.1f} %  "
                f"{within[0]:9.1f} %  {within[1]:9.1f} %"
            )
    print(f"drifts: {[(d.placement.variant_id, round(d.factor, 2)) for d in model.drifts()]}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--outcomes", type=int, default=400)
    asked = parser.parse_args()
    run(find_jobs(asked.home, asked.variants), asked.neighbours, asked.outcomes)


if __name__ == "__main__":
    main()
