"""What the death of each process costs: unanswered queries, seconds, and whether a hand is needed.

Each victim is killed, or stands still for good (SIGSTOP), under a steady open-loop load on two
gateways before a pool of two workers, Fashion-MNIST. Each trial has a cluster of its own.

    modelless zoo add fashion-mnist; modelless profile --device-class cpu-1,cpu-2
    python benchmarks/serving/kills.py --home HOME
    python benchmarks/serving/kills.py --home HOME --supervise --victims gcs,raylet --times 10

- unanswered: no reply, or an HTTP error; the kinds say which, in the server's words;
- again, s: from the kill to the first of three seconds in a row with 99 % in time; 0: no second
  was worse; inf: not while it was looked;
- hand: whether somebody would have to act: ``WHOLE_S`` after the load's end queries are not in
  time again, a gateway or a worker is missing, or there is no victim of that kind that runs;
- down, s: how long 'modelless down' took afterwards; left: processes that it left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import under_test
from open_loop import OpenLoop, outcomes
from recovery import by_second, recovered_s
from under_test import UnderTest, configured

VICTIMS = {
    "worker": (under_test.ROLES["worker"], signal.SIGKILL),
    "gateway": (under_test.ROLES["gateway"], signal.SIGKILL),
    "control": (under_test.ROLES["control"], signal.SIGKILL),
    "haproxy": (under_test.ROLES["haproxy"], signal.SIGKILL),
    "haproxy-stopped": (under_test.ROLES["haproxy"], signal.SIGSTOP),
    "agent": ("/ray_agent.py ", signal.SIGKILL),
    "raylet": ("/raylet/raylet ", signal.SIGKILL),
    "gcs": ("/gcs/gcs_server ", signal.SIGKILL),
    "up": ("", signal.SIGKILL),
    "cluster": (" up --config ", signal.SIGKILL),
}
"""Words in the victim's command, and what it gets. ``up`` is the process that was started;
``cluster`` is the one below it that has the cluster, with ``--supervise``."""

DOWN_S, WHOLE_S = 150.0, 15.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--home", type=Path, required=True, help="with fashion-mnist, profiled")
    add("--victims", default=",".join(v for v in VICTIMS if v != "cluster"), help="with commas")
    add("--times", type=int, default=1, help="trials of each (%(default)s)")
    add("--supervise", action="store_true", help="run 'modelless up --supervise'")
    add("--per-s", type=float, default=20.0, help="queries a second (%(default)s)")
    add("--latency-ms", type=float, default=1000.0, help="deadline (%(default)s)")
    add("--after-s", type=float, default=40.0, help="seconds of load after it (%(default)s)")
    add("--port", type=int, default=8160, help="where clients go (%(default)s)")
    add("--json", type=Path, help="write every trial here")
    arguments = parser.parse_args()
    trials = []
    print(f"{'victim':17}{'sent':>6}{'unanswered':>12}{'late':>6}{'again, s':>10}{'hand':>6}"
          f"{'down, s':>9}{'left':>6}  kinds", flush=True)  # fmt: skip
    for name in arguments.victims.split(","):
        for seed in range(arguments.times):
            trials.append({"victim": name, **trial(name, seed, arguments)})
            print_row(trials[-1])
            if arguments.json:
                text = json.dumps(trials, indent=1).replace("Infinity", "null")
                arguments.json.write_text(text)


def trial(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A cluster of its own, one load with one death in it, and ``modelless down``."""
    options = ["--supervise"] if arguments.supervise else []
    cluster = configured(arguments.home.resolve(), arguments.port, options)
    cluster.start()
    try:
        cluster.wait_whole()
        time.sleep(2.0)
        found = load(cluster, name, seed, arguments)
        return {**found, **take_down(cluster)}
    finally:
        for process_id in cluster.processes():
            os.kill(process_id, signal.SIGKILL)
        cluster.process.kill()
        cluster.process.wait()


def load(cluster: UnderTest, name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    before_s = 4.0
    with tempfile.TemporaryDirectory() as folder:
        steps = [(before_s + arguments.after_s, arguments.per_s)]
        queries = OpenLoop(cluster.url, Path(folder), steps, arguments.latency_ms, seed)
        queries.wait_until(before_s)
        words, number = VICTIMS[name]
        ids = sorted(pid for pid, command in cluster.processes().items() if words in command)
        if not ids:
            raise SystemExit(f"no {name} is running")
        killed_s = queries.now_s()
        os.kill(cluster.process.pid if name == "up" else ids[-1], number)
        rows = queries.finish()
    after = [row for row in rows if row.due_s >= killed_s]
    shares = by_second(after, killed_s, arguments.latency_ms)
    again_s = recovered_s(shares)
    end_s = time.monotonic() + WHOLE_S
    while not (is_whole := _runs(cluster, words) and cluster.is_whole()):
        if time.monotonic() > end_s:
            break
        time.sleep(0.5)
    hand = math.isinf(again_s) or not is_whole
    errors = Counter(f"{row.status} {row.error}" for row in rows if row.status not in (0, 200))
    found = {"again_s": again_s, "hand": hand, "shares": shares, "errors": dict(errors)}
    return {**outcomes(rows, arguments.latency_ms), **found}


def _runs(cluster: UnderTest, words: str) -> bool:
    """Whether a process of that kind runs, and none stands still."""
    ids = [pid for pid, command in cluster.processes().items() if words in command]
    with contextlib.suppress(OSError):
        return bool(ids) and all(
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
            for pid in ids
        )
    return False


def take_down(cluster: UnderTest) -> dict[str, Any]:
    command = [*cluster.command[: cluster.command.index("up")], "down"]
    began_s = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=DOWN_S, check=False)
    down_s = time.monotonic() - began_s
    cluster.process.poll()
    return {"down_s": round(down_s, 1), "left": sorted(cluster.processes().values())}


def print_row(row: dict[str, Any]) -> None:
    kinds = {**row["errors"], **row["lost"]}
    hand = "yes" if row["hand"] else "no"
    print(
        f"{row['victim']:17}{row['sent']:>6}{sum(kinds.values()):>12}{row['late']:>6}"
        f"{row['again_s']:>10.0f}{hand:>6}{row['down_s']:>9.1f}{len(row['left']):>6}"
        f"  {', '.join(f'{count} {kind}' for kind, count in kinds.items())}",
        flush=True,
    )


if __name__ == "__main__":
    main()
