"""What the cost model costs: learning from an outcome, and predicting right after it.

``observe`` should stay under 20 microseconds, and an estimate of 1,000 placements that nothing
cached can answer, as after each outcome, under 200.

    python benchmarks/profiling/costmodel.py [--json] [--placements 100 1000 10000]

One run, every call timed on its own, in CPU time, so that a busy machine tells the same; what the
clock itself takes is taken off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from modelless.profiler.cost_model.measured_model import MeasuredCostModel
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

GOAL_OBSERVE_US = 20.0
GOAL_ESTIMATE_US = 200.0
CALLS = 5000
BATCHES = (1, 2, 4, 8)
DEVICE_CLASSES = ("cpu-1", "cpu-2", "cpu-4", "gpu")


def measurements(placement: Placement, one_s: float) -> list[Measurement]:
    return [
        Measurement(
            placement.variant_id, placement.device_class, batch, 1, "engine", "device", 30,
            one_s * batch, 1.1 * one_s * batch, 1.3 * one_s * batch, one_s * batch, 1.0 / one_s,
            10_000_000, 0.3, True, 0.0, datetime(2025, 1, 1, tzinfo=UTC), "benchmark",
        )
        for batch in BATCHES
    ]  # fmt: skip


def timed(call: Callable[[], object], overhead_us: float = 0.0) -> float:
    """Microseconds of CPU time that one call takes."""
    started_ns = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - started_ns) / 1e3 - overhead_us


def quantiles(figures_us: list[float]) -> dict[str, float]:
    return {f"p{q}_us": round(float(np.percentile(figures_us, q)), 2) for q in (50, 99)}


def measure(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    placements = tuple(
        Placement(f"task/model/v{number}@1", DEVICE_CLASSES[number % len(DEVICE_CLASSES)])
        for number in range(count)
    )
    one_s = rng.uniform(0.002, 0.2, count)
    model = MeasuredCostModel(
        row
        for number, placement in enumerate(placements)
        for row in measurements(placement, float(one_s[number]))
    )
    overhead_us = float(np.median([timed(lambda: None) for _ in range(CALLS)]))
    observe_us, estimate_us = [], []
    for call in range(CALLS):
        number, batch = int(rng.integers(count)), int(rng.choice(BATCHES))
        load = Load(float(rng.integers(4)), call * 0.01)
        latency_s = float(one_s[number] * batch * 1.4 * rng.lognormal(0.0, 0.1))
        placement = placements[number]

        def observe(
            placement: Placement = placement,
            batch: int = batch,
            load: Load = load,
            latency_s: float = latency_s,
        ) -> None:
            model.observe(placement, batch, load, latency_s)

        def estimate(batch: int = batch, load: Load = load) -> None:
            model.estimate(placements, batch, load)

        observe_us.append(timed(observe, overhead_us))
        estimate_us.append(timed(estimate, overhead_us))
    assert model.ignored_count == 0
    return {
        "placements": count,
        "observe": quantiles(observe_us),
        "estimate_after_observe": quantiles(estimate_us),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--placements", type=int, nargs="+", default=[100, 1000, 10_000])
    asked = parser.parse_args()
    found = [measure(count) for count in asked.placements]
    if asked.json:
        print(json.dumps({"calls": CALLS, "results": found}, indent=2))
        return
    print(f"one run, {CALLS} calls; p50 / p99 in microseconds of CPU time")
    print(f"goals: observe {GOAL_OBSERVE_US:g}, estimate of 1,000 after it {GOAL_ESTIMATE_US:g}")
    for row in found:
        observed, estimated = row["observe"], row["estimate_after_observe"]
        print(
            f"{row['placements']:6d} placements: "
            f"observe {observed['p50_us']:6.1f} / {observed['p99_us']:6.1f}, "
            f"estimate {estimated['p50_us']:7.1f} / {estimated['p99_us']:7.1f}"
        )


if __name__ == "__main__":
    main()
