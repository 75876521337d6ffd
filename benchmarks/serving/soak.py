"""Drifting load with a fault every two minutes: does anything grow, is any query lost?

    python benchmarks/serving/soak.py --home HOME [--minutes 30] [--every-s 120] [--per-s 100]

The load drifts between a quarter of ``--per-s`` and all of it, 300 ms deadlines, an open-loop
client in a process of its own; the faults of ``recovery.py`` come in turn. Every few seconds each
process is looked at: resident memory, open files, threads; of gateways and workers the tasks of
their event loops and what waits. Printed is each surviving process's median in the first and in the
last third, of processes that lived through both, and where every query went: the client's log
beside the gateways' own. Those of a gateway that was killed, or told a control loop that was, end
with it: they are the difference.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from open_loop import OpenLoop, outcomes
from recovery import FAULTS, HANG_S
from under_test import ROLES, UnderTest, running

from modelless.controller.demo.query_log import Row

FIGURES = ("rss_mib", "files", "threads")
SHORT = [
    name
    for name, fault in FAULTS.items()
    if not fault.is_outage and not fault.on_nodes and fault.lasts_s + fault.after_s < 100.0
]
"""Faults in one cluster that are over well before the next comes."""

Sample = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every-s", type=float, default=120.0)
    parser.add_argument("--per-s", type=float, default=100.0)
    parser.add_argument("--latency-ms", type=float, default=300.0)
    parser.add_argument("--faults", default=",".join(SHORT))
    parser.add_argument("--look-s", type=float, default=5.0)
    parser.add_argument("--port", type=int, default=8150)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.faults.split(",")
    with (
        running(arguments.home, arguments.port) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        samples: list[Sample] = []
        ended = threading.Event()
        watcher = threading.Thread(
            target=watch, args=(cluster, samples, ended, arguments.look_s), daemon=True
        )
        watcher.start()
        steps = drift(arguments.minutes * 60.0, arguments.per_s)
        load = OpenLoop(cluster.url, Path(folder), steps, arguments.latency_ms, seed=0)
        injected = inject(cluster, load, names, arguments.every_s, arguments.minutes * 60.0)
        rows = load.finish()
        cluster.wait_whole()
        ended.wait(2.0 * arguments.look_s)  # the last second's counts are told a second later
        ended.set()
        watcher.join()
    print_growth(samples)
    print_books(rows, samples, injected, arguments.latency_ms)
    if arguments.json:
        found = {"injected": injected, "samples": samples, "rows": len(rows)}
        arguments.json.write_text(json.dumps(found))


def drift(seconds: float, per_s: float) -> list[tuple[float, float]]:
    """Steps of ten seconds along two waves, the slower one as long as all of it."""
    count = max(int(seconds / 10.0), 1)
    steps = []
    for number in range(count):
        slow = math.sin(2.0 * math.pi * number / count)
        quick = math.sin(2.0 * math.pi * number / 9.0)
        share = 0.625 + 0.25 * slow + 0.125 * quick
        steps.append((seconds / count, per_s * share))
    return steps


def inject(
    cluster: UnderTest, load: OpenLoop, names: list[str], every_s: float, seconds: float
) -> list[tuple[float, str]]:
    """A fault every ``every_s`` seconds, the last one early enough to be recovered from."""
    injected: list[tuple[float, str]] = []
    at_s = every_s / 2.0
    for name in cycle(names):
        if at_s + max(HANG_S + 5.0, every_s / 2.0) > seconds:
            return injected
        load.wait_until(at_s)
        end_fault = FAULTS[name].inject(cluster)
        injected.append((at_s, name))
        print(f"{at_s:7.0f} s  {name}", flush=True)
        at_s += every_s
        load.wait_until(min(at_s, seconds) - 1.0)
        if end_fault is not None:
            end_fault()
        cluster.wait_whole()
    return injected


def watch(cluster: UnderTest, samples: list[Sample], ended: threading.Event, look_s: float) -> None:
    while not ended.wait(look_s):
        sample: Sample = {"processes": {}, "status": None}
        for process_id, command in cluster.processes().items():
            role = next((name for name, word in ROLES.items() if word in command), None)
            if role is not None:
                with suppress(OSError):
                    sample["processes"][str(process_id)] = {"role": role, **figures_of(process_id)}
        with suppress(OSError, ValueError):
            sample["status"] = cluster.status()
        samples.append(sample)


def figures_of(process_id: int) -> dict[str, float]:
    folder = Path(f"/proc/{process_id}")
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024.0,
        "files": float(len(list((folder / "fd").iterdir()))),
        "threads": float(status["Threads"]),
    }


def print_growth(samples: list[Sample]) -> None:
    """First and last third of each process's figures, of those that were there in both."""
    third = max(len(samples) // 3, 1)
    seen: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for number, sample in enumerate(samples):
        for process_id, found in sample["processes"].items():
            for name in FIGURES:
                seen[found["role"], process_id][name].append((number, found[name]))
        for member in (sample["status"] or {}).get("members", []):
            for name in ("tasks", "queued"):
                seen[member["role"], member["id"]][name].append((number, float(member[name])))
    print(f"\n{'process':28}{'figure':>9}{'first third':>13}{'last third':>12}{'most':>9}")
    for (role, name), figures in sorted(seen.items()):
        for figure, values in figures.items():
            first = [value for number, value in values if number < third]
            last = [value for number, value in values if number >= len(samples) - third]
            if first and last:
                most = max(value for _, value in values)
                print(
                    f"{role + ' ' + name:28}{figure:>9}{statistics.median(first):>13.1f}"
                    f"{statistics.median(last):>12.1f}{most:>9.1f}"
                )


def print_books(
    rows: list[Row],
    samples: list[Sample],
    injected: list[tuple[float, str]],
    latency_ms: float,
) -> None:
    """The client's log of queries, and beside them what the gateways counted."""
    booked = outcomes(rows, latency_ms)
    lost = sum(booked["lost"].values())
    print(f"\nclient: {booked['sent']} sent, {booked['in_time']} answered in time, "
          f"{booked['late']} late,")  # fmt: skip
    print(f"  refused {booked['refused'] or 'none'}, without an answer {booked['lost'] or 'none'}")
    # A control loop that begins anew counts from 0, while gateways still repeat what the last said.
    by_loop: defaultdict[float, Counter[str]] = defaultdict(Counter)
    for status in (sample["status"] for sample in samples if sample["status"]):
        by_loop[status["began_s"]] |= Counter(status["outcomes"])  # each of them only grows
    counted = sum(by_loop.values(), Counter[str]())
    print(f"gateways: {sum(counted.values())} counted: {dict(counted)}")
    print(f"  the client's answers and refusals less these: "
          f"{len(rows) - lost - sum(counted.values())}")  # fmt: skip
    print(f"faults: {dict(Counter(name for _, name in injected))}")


if __name__ == "__main__":
    main()
