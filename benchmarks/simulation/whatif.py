"""Whether ``modelless whatif`` is right: its intervals beside what the other policies really do.

Each run has a world of its own, at a light, a moderate or a heavy load in turn. In it, devices are
off their profiles by a factor of each variant's own, which nobody is told. The policy in charge
serves with exploration, and its receipts are kept. ``whatif`` gets these, and a world as
``modelless replay --as-world`` would write it: the same arrivals, and the profiles. The truth is
the first world, served by the other policy.

    python benchmarks/simulation/whatif.py [--runs 50] [--queries 1500] [--explore 0.1] [--json]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modelless import whatif
from modelless.controller.history.off_policy import FIGURES
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import WorldFile, parse_world
from modelless.controller.usecases.simulation.whatif import (
    simulated_receipts,
    true_figures,
    with_policy,
)

OTHERS = ("cheapest-feasible", "most-accurate-feasible", "infaas")
RATES_PER_S = (30.0, 60.0, 90.0)
LADDER = (("a", 8, 62), ("b", 14, 68), ("c", 25, 73), ("d", 45, 77), ("e", 80, 80))
OFF = 0.15  # standard deviation of the logarithm of a variant's true latency over its profile
LIMITS = (
    {"weight": 3, "latency_ms": 100},
    {"weight": 2, "latency_ms": 200, "min_accuracy": 70},
    {"weight": 1, "latency_ms": 600, "min_accuracy": 76},
)


def document(seed: int, arguments: argparse.Namespace, *, is_real: bool) -> dict[str, Any]:
    """The world of a run: as it is, or as it was profiled."""
    rng, rate_per_s = np.random.default_rng(seed), RATES_PER_S[seed % len(RATES_PER_S)]
    variants = []
    for model, latency_ms, accuracy in LADDER:
        points = [
            {"device": "cpu-1", "batch": batch, "p50_ms": latency_ms * (0.4 + 0.6 * batch)}
            for batch in (1, 4, 8)
        ]
        ratio = float(np.exp(rng.normal(0.0, OFF))) if is_real else 1.0
        each = {"model": model, "accuracy": accuracy, "memory_mib": 50, "points": points}
        variants.append({**each, "true_ratios": {"cpu-1": ratio}})
    return {
        "name": f"run-{seed}",
        "seed": seed if is_real else 1_000_000 + seed * 1000,
        "duration_s": arguments.queries / rate_per_s,
        "devices": [{"name": "cpu-1", "count": 4, "memory_mib": 1024}],
        "tasks": [{"name": "vision", "variants": {"kind": "written", "variants": variants}}],
        "queries": [
            {
                "tasks": ["vision"],
                "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
                "slos": list(LIMITS),
            }
        ],
        "policies": {
            "selection": arguments.policy,
            "scaling": "fixed",
            "explore": arguments.explore,
        },
    }


def write_trace(real: WorldFile, path: Path) -> None:
    """The arrivals of a world with their limits, as a recording tells of them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival_s", "task", "latency_ms", "min_accuracy"))
        for asked in queries(real, real.world.seed):
            slo = asked.client.slo
            writer.writerow((asked.arrival_s, asked.task, slo.latency_ms, slo.min_accuracy or ""))


def check(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A row for each policy and figure: the truth, and the estimates with their intervals."""
    with tempfile.TemporaryDirectory() as folder:
        real = parse_world(document(seed, arguments, is_real=True), Path(folder))
        write_trace(real, Path(folder) / "arrivals.csv")
        profiled = document(seed, arguments, is_real=False)
        profiled["queries"][0]["arrivals"] = {"kind": "trace", "path": f"{folder}/arrivals.csv"}
        receipts = simulated_receipts(real)
        found = whatif(*OTHERS, receipts=receipts, world=profiled, runs=arguments.simulations)
        rows = []
        for each in found:
            assert each.in_full is not None
            truth = true_figures(with_policy(real, each.policy)).tolist()
            for name, true in zip(FIGURES, truth, strict=True):
                kinds = {
                    "in full": each.in_full[name],
                    "one query": each.doubly_robust[name],
                    "propensity": each.propensity[name],
                }
                rows.append(
                    {
                        "seed": seed,
                        "policy": each.policy,
                        "figure": name,
                        "truth": true,
                        "observed": each.observed[name],
                        **{kind: (f.value, f.low, f.high) for kind, f in kinds.items()},
                    }
                )
    return rows


def summarise(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """How often the interval held the truth, how far off it was, and how wide the interval is."""
    values, low, high = np.array([row[kind] for row in rows]).T
    truth = np.array([row["truth"] for row in rows])
    slack = 1e-9 * np.maximum(np.abs(truth), 1.0)
    if rows[0]["figure"] == "cost_usd":
        slack = 1e-9 * truth
    return {
        "covered": float(np.mean((low - slack <= truth) & (truth <= high + slack))),
        "error": float(np.mean(np.abs(values - truth))),
        "half": float(np.mean(high - low) / 2.0),
    }


def show(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print a table: a row for each policy and figure."""
    print(f"{arguments.runs} runs; {arguments.policy} in charge, {arguments.explore:.0%} explored")
    print(f"{'policy':<24}{'figure':<12}{'truth':>10}{'observed':>10}", end="")
    for kind in ("in full", "one query", "propensity"):
        print(f"   {kind + ': held, off, +-':<28}", end="")
    print()
    for policy in OTHERS:
        for name in FIGURES:
            mine = [row for row in rows if (row["policy"], row["figure"]) == (policy, name)]
            scale = 1e6 if name == "cost_usd" else 1.0
            means = [scale * np.mean([row[key] for row in mine]) for key in ("truth", "observed")]
            label = "micro-USD" if name == "cost_usd" else name
            print(f"{policy:<24}{label:<12}{means[0]:>10.4g}{means[1]:>10.4g}", end="")
            for kind in ("in full", "one query", "propensity"):
                found = summarise(mine, kind)
                error, half = scale * found["error"], scale * found["half"]
                print(f"   {found['covered']:>7.0%}{error:>10.3g}{half:>10.3g} ", end="")
            print()
    held = [summarise([row], "in full")["covered"] for row in rows]
    print(f"in full: {np.mean(held):.1%} of {len(held)} intervals hold the truth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--queries", type=int, default=1500, help="in each run, roughly")
    parser.add_argument("--explore", type=float, default=0.1, help="share of the queries")
    parser.add_argument("--simulations", type=int, default=4, help="of each policy, for whatif")
    parser.add_argument("--policy", default="best-value", help="in charge")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--json", action="store_true", help="every figure of every run, a line each"
    )
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for found in pool.map(partial(check, arguments), range(arguments.runs)):
            rows += found
            if arguments.json:
                print("\n".join(map(json.dumps, found)), flush=True)
            held = np.mean([summarise([row], "in full")["covered"] for row in rows])
            done = len(rows) // len(found)
            print(f"{done} runs: {held:.1%} held", file=sys.stderr, flush=True)
    if not arguments.json:
        show(rows, arguments)


if __name__ == "__main__":
    main()
