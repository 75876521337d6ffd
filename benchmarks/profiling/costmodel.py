"""What the cost model costs: learning from an outcome, and predicting right after it.

``observe`` should stay under 20 microseconds, and an estimate of 1,000 placements that nothing
cached can answer, as after each outcome, under 200.

    python benchmarks/profiling/costmodel.py [--placements 100 1000 10000]

One run, every call timed on its own, in CPU time, so that a busy machine tells the same; what the
clock itself takes is taken off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

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


def measure(count: int) -> tuple[list[float], list[float]]:
    """Microseconds of each observation, and of each estimate after it."""
    rng = np.random.default_rng(1)
    placements = tuple(
        Placement(f"task/model/v{number}@1", DEVICE_CLASSES[number % len(DEVICE_CLASSES)])
        for number in range(count)
    )
    one_s = rng.uniform(0.002, 0.2, count)
    model = ServingCostModel(
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
    assert not any(each.ignored for each in model.coverage())
    return observe_us, estimate_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--placements", type=int, nargs="+", default=[100, 1000, 10_000])
    print(f"one run, {CALLS} calls; p50 / p99 in microseconds of CPU time")
    for count in parser.parse_args().placements:
        observed, estimated = (np.percentile(each, (50, 99)) for each in measure(count))
        print(
            f"{count:6d} placements: observe {observed[0]:6.1f} / {observed[1]:6.1f}, "
            f"estimate {estimated[0]:7.1f} / {estimated[1]:7.1f}"
        )


if __name__ == "__main__":
    main()
