"""What simulating costs: queries a second of CPU, and memory, in a small and in a large world.

Both worlds are made here: a steady load near what the devices can do, so that batches form, with
little refused. ``small`` is 40 workers and 50 variants, ``large`` 1,000 workers and 500 variants.
The goals are 50,000 queries a second of CPU in the small one, and in the large one 10 million
queries on two cores in ten minutes and 2 GiB.

    python benchmarks/simulation/simulator.py [--worlds small large] [--queries N] [--rounds N]
        [--processes N] [--policies NAME ...] [--json FILE]

Every run has a process of its own, so that its peak of memory is its own. CPU time is all of a
run's, from the parsed world to the summary.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import WorldFile, parse_world

GOAL_PER_S = 50_000.0
GOAL_MIB = 2048.0


class Scale(NamedTuple):
    """How large a world is.

    Attributes:
        workers: in all; a fifth of them GPUs.
        queries: in a run, unless told otherwise.
    """

    workers: int
    tasks: int
    rate_per_s: float
    queries: int


VARIANTS_PER_TASK = 10
SCALES = {
    "small": Scale(workers=40, tasks=5, rate_per_s=16_000.0, queries=200_000),
    "large": Scale(workers=1000, tasks=50, rate_per_s=400_000.0, queries=1_000_000),
}


def make_world(scale: Scale, queries: int, policy: str) -> WorldFile:
    gpus = scale.workers // 5
    return parse_world(
        {
            "name": f"{scale.workers} workers",
            "seed": 1,
            "duration_s": queries / scale.rate_per_s,
            "devices": [
                {"name": "cpu-4", "count": scale.workers - gpus, "memory_mib": 4096},
                {
                    "name": "gpu",
                    "kind": "gpu",
                    "count": gpus,
                    "memory_mib": 8192,
                    "price_usd_per_hour": 0.3,
                },
            ],
            "tasks": [
                {
                    "name": "task",
                    "copies": scale.tasks,
                    "variants": {
                        "kind": "ladder",
                        "count": VARIANTS_PER_TASK,
                        "latency_ms": [4, 40],
                        "accuracy": [60, 80],
                        "memory_mib": [20, 120],
                        "further_item": 0.3,
                        "speeds": {"cpu-4": 1, "gpu": 5},
                    },
                }
            ],
            "queries": [
                {
                    "tasks": ["task-*"],
                    "arrivals": {"kind": "poisson", "rate_per_s": scale.rate_per_s},
                    "popularity": {"zipf": 0.3},
                    "slos": [
                        {"weight": 3, "latency_ms": 100},
                        {"weight": 1, "latency_ms": 300, "min_accuracy": 66},
                        {"weight": 1, "latency_ms": 1000},
                    ],
                }
            ],
            "policies": {"selection": policy},
            "limits": {"max_queued": 100_000},
        },
        Path(),
    )


def run(name: str, queries: int, policy: str) -> dict[str, Any]:
    file = make_world(SCALES[name], queries, policy)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    figures = simulate(file).figures()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {
        "queries": figures["queries"],
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "per_cpu_s": figures["queries"] / cpu_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "attainment": figures["attainment"],
        "mean_batch": figures["mean_batch"],
        "utilisation": figures["utilisation"],
    }


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and extremes of several runs of one world, which differ only in what they cost."""
    rates = [one["per_cpu_s"] for one in runs]
    return {
        **runs[0],
        "per_cpu_s": statistics.median(rates),
        "per_cpu_s_range": [min(rates), max(rates)],
        "cpu_s": statistics.median(one["cpu_s"] for one in runs),
        "wall_s": statistics.median(one["wall_s"] for one in runs),
        "peak_mib": max(one["peak_mib"] for one in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--worlds", nargs="+", choices=SCALES, default=["small"])
    parser.add_argument("--policies", nargs="+", default=["best-value"])
    parser.add_argument("--queries", type=int, help="in a run; default: by world")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    told = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    rows = []
    print(
        f"{'world':6} {'policy':24} {'queries':>9} {'cpu s':>7} {'queries/cpu s':>22} "
        f"{'peak MiB':>8} {'good':>6} {'batch':>5}  busy"
    )
    with ProcessPoolExecutor(told.processes, mp_context=context, max_tasks_per_child=1) as pool:
        for name in told.worlds:
            for policy in told.policies:
                queries = told.queries or SCALES[name].queries
                running = [pool.submit(run, name, queries, policy) for _ in range(told.rounds)]
                row = summarise([one.result() for one in running])
                rows.append({"world": name, "policy": policy, **row})
                least, most = row["per_cpu_s_range"]
                busy = ", ".join(f"{k} {share:.0%}" for k, share in row["utilisation"].items())
                print(
                    f"{name:6} {policy:24} {row['queries']:9} {row['cpu_s']:7.2f} "
                    f"{row['per_cpu_s']:8.0f} ({least:.0f}-{most:.0f}) {row['peak_mib']:8.0f} "
                    f"{row['attainment']:6.1%} {row['mean_batch']:5.2f}  {busy}",
                    flush=True,
                )
    print(f"goals: {GOAL_PER_S:,.0f} queries/cpu s in small; {GOAL_MIB:,.0f} MiB")
    if told.json:
        told.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
