"""What a start, a stop and idleness cost: seconds, memory and processor time.

    python benchmarks/serving/start.py --home HOME --times 10

Each time 'modelless up --detach' is run on a home that has variants and profiles, its first task is
asked until it answers, and 'modelless down' is run. The columns, with the median and the worst:

- answer, s: from the command to the first answer;
- ready, s: until the command returns, which is when every task can be answered;
- MiB: proportional set size of all processes, once variants are loaded;
- idle: cores that all processes together use meanwhile, without queries;
- down, s: how long 'modelless down' takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from modelless.controller.cli.cluster import curl_line
from modelless.controller.live.cluster.run_folder import cluster_members
from modelless.controller.live.cluster.running import read_state
from modelless.variants.registry.registry import open_registry

LOADS_S = 15.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--home", type=Path, required=True, help="with variants that are profiled")
    add("--times", type=int, default=10, help="starts (%(default)s)")
    add("--port", type=int, default=8165, help="where clients go (%(default)s)")
    add("--idle-s", type=float, default=30.0, help="seconds without queries; 0: none (%(default)s)")
    arguments = parser.parse_args()
    columns = ("answer, s", "ready, s", "MiB", "idle", "down, s")
    print("".join(f"{name:>12}" for name in columns), flush=True)
    rows = []
    for _ in range(arguments.times):
        rows.append(measure(arguments.home.resolve(), arguments.port, arguments.idle_s))
        show(rows[-1])
    for name, choose in (("median", statistics.median), ("worst", max)):
        show([choose(column) for column in zip(*rows, strict=True)], name)


def show(row: list[float], name: str = "") -> None:
    print("".join(f"{value:12.3f}" for value in row), name, flush=True)


def measure(home: Path, port: int, idle_s: float) -> list[float]:
    command = [sys.executable, "-P", "-m", "modelless.controller.cli", "--home", str(home)]
    with contextlib.closing(open_registry(home)) as registry:
        task = next(iter(registry.catalog().tasks.values()))
    url, _, request = curl_line(f"http://127.0.0.1:{port}", task).partition(" -d ")
    body = json.dumps(json.loads(request.strip("'"))).encode() if request else None
    began_s = time.monotonic()
    answered_s: list[float] = []

    def ask() -> None:
        while not answered_s:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url.split()[-1], body, timeout=5.0).close()
                answered_s.append(time.monotonic() - began_s)
            time.sleep(0.02)

    threading.Thread(target=ask, daemon=True).start()
    subprocess.run(
        [*command, "up", "--detach", "--port", str(port)], check=True, capture_output=True
    )
    ready_s = time.monotonic() - began_s
    try:
        time.sleep(LOADS_S if idle_s else 0.0)
        processes = {read_state(home).pid, *cluster_members(home / "run")}
        before = sum(map(cpu_s, processes))
        time.sleep(idle_s)
        idle = (sum(map(cpu_s, processes)) - before) / max(idle_s, 1e-9)
        mebibytes = sum(map(proportional_bytes, processes)) / 2**20
    finally:
        began_s = time.monotonic()
        subprocess.run([*command, "down"], check=True, capture_output=True)
    return [answered_s[0], ready_s, mebibytes, idle, time.monotonic() - began_s]


def cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def proportional_bytes(process_id: int) -> float:
    """The process's own memory, and its part of what it shares with others."""
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    return 1024.0 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
