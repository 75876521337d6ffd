"""What each fault costs: queries without an answer, and seconds until 99 % are in time again.

Two gateways before a pool of two workers, Fashion-MNIST, an open-loop client in a process of its
own at about half of what they can serve, 300 ms deadlines. Each trial: a few quiet seconds, the
fault, and what follows.

    python benchmarks/recovery.py --home HOME [--faults worker-kill,...] [--times 10] [--per-s 150]

HOME must hold the zoo, profiled (``modelless zoo add fashion-mnist; modelless profile``). Prints a
row a fault; ``--json FILE`` keeps every second of every trial. The faults: see ``faults.FAULTS``.

- lost: the connection broke, was refused, or no reply came within 12 s: the client got no answer;
- refused: an HTTP error, by status; late: an answer after the deadline;
- 99 % again: from the fault until the first of three seconds in a row with 99 % in time (0: at
  once); whole: until every gateway and worker was back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import faults
from faults import FAULTS, LATENCY_MS, STATUS, OpenLoop, UnderTest, is_in_time

IN_A_ROW = 3


def main() -> None:
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--faults", default=",".join(FAULTS), help="of: " + ", ".join(FAULTS))
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--per-s", type=float, default=150.0)
    parser.add_argument("--latency-ms", type=float, default=300.0)
    parser.add_argument("--before-s", type=float, default=4.0)
    parser.add_argument("--after-s", type=float, default=20.0)
    parser.add_argument("--store-gone-s", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=8150)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    faults.STORE_GONE_S = arguments.store_gone_s
    kept: dict[str, list[dict[str, Any]]] = {}
    print(
        f"{'fault':22}{'sent':>7}{'in time':>9}{'late':>6}{'lost':>6}"
        f"{'99 % again, s (worst)':>24}{'whole, s (worst)':>18}  refused",
        flush=True,
    )
    with faults.running(arguments.home, arguments.port) as cluster:
        for name in arguments.faults.split(","):
            kept[name] = [trial(cluster, name, seed, arguments) for seed in range(arguments.times)]
            print_row(name, kept[name])
            if arguments.json:
                arguments.json.write_text(json.dumps(kept, indent=1))


def trial(
    cluster: UnderTest, name: str, seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One load with one fault in it; what came of its queries."""
    after_s = arguments.after_s
    if name == "store-gone":
        after_s = max(after_s, arguments.store_gone_s + 5.0)
    steps = [(arguments.before_s + after_s, arguments.per_s)]
    with tempfile.TemporaryDirectory() as folder:
        load = OpenLoop(cluster.url, Path(folder), steps, arguments.latency_ms, seed)
        load.wait_until(arguments.before_s)
        fault_s = load.now_s()
        end_fault = FAULTS[name](cluster)
        try:
            time.sleep(1.0)  # until it is missed
            whole_s = 1.0 + cluster.wait_whole()
            rows = load.finish()
        finally:
            if end_fault is not None:
                end_fault()
    cluster.wait_whole()
    after = [row for row in rows if row[1] >= fault_s]
    shares = by_second(after, fault_s, arguments.latency_ms)
    return {
        "sent": len(rows),
        "in_time": sum(is_in_time(row, arguments.latency_ms) for row in rows),
        "late": sum(r[STATUS] == 200 and r[LATENCY_MS] > arguments.latency_ms for r in rows),
        "lost": sum(row[STATUS] == 0 for row in rows),
        "refused": dict(Counter(str(row[STATUS]) for row in rows if row[STATUS] not in (0, 200))),
        "in_time_before": by_second(
            [row for row in rows if row[1] < fault_s], 0.0, arguments.latency_ms
        ),
        "in_time_after": shares,
        "lost_at_s": [round(row[1] - fault_s, 2) for row in rows if row[STATUS] == 0],
        "again_s": recovered_s(shares),
        "whole_s": whole_s,
    }


def by_second(rows: list[list[Any]], from_s: float, latency_ms: float) -> list[float]:
    """The share in time of the queries due in each second; whole seconds only."""
    if not rows:
        return []
    shares: list[list[bool]] = [[] for _ in range(int(max(row[1] for row in rows) - from_s) + 1)]
    for row in rows:
        shares[int(row[1] - from_s)].append(is_in_time(row, latency_ms))
    return [sum(each) / len(each) for each in shares if each]


def recovered_s(shares: list[float]) -> float:
    """Seconds until the first of ``IN_A_ROW`` good ones; inf if there are none."""
    for second in range(len(shares) - IN_A_ROW + 1):
        if all(share >= 0.99 for share in shares[second : second + IN_A_ROW]):
            return float(second)
    return float("inf")


def print_row(name: str, trials: list[dict[str, Any]]) -> None:
    """One fault's row: sums, and median and worst over its trials."""

    def total(key: str) -> int:
        return sum(trial[key] for trial in trials)

    again = [trial["again_s"] for trial in trials]
    whole = [trial["whole_s"] for trial in trials]
    refused: Counter[str] = sum((Counter(trial["refused"]) for trial in trials), Counter())
    again_text = f"{statistics.median(again):.0f} ({max(again):.0f})"
    whole_text = f"{statistics.median(whole):.1f} ({max(whole):.1f})"
    print(
        f"{name:22}{total('sent'):>7}{total('in_time'):>9}{total('late'):>6}{total('lost'):>6}"
        f"{again_text:>24}{whole_text:>18}  {dict(refused) or ''}",
        flush=True,
    )


if __name__ == "__main__":
    main()
