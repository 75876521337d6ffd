"""The CPU that a query takes, by process and thread, microseconds.

Starts modelless as ``front_door.py`` does, drives it with the same client, and reads from /proc
what each thread has used meanwhile. ``model`` is the gateways' threads that run batches: a thread
that is held to one core. The kernel's own work for sockets counts to the thread that asks for it.

    python benchmarks/serving/budget.py --home HOME [--connections 1,16] [--seconds 10]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import front_door

PROC = Path("/proc")
ROLES = {
    "--client": "client",
    "GatewayReplica": "gateways",
    "SERVE_REPLICA": "gateways",
    "ControlLoop": "control loop",
    "ServeController": "Serve's controller",
    "HAProxyManager": "HAProxy's manager",
    "haproxy": "HAProxy",
    "gcs_server": "Ray's GCS",
    "raylet": "Ray's raylet",
    " up ": "modelless up",
}
"""Of a process, by what its command line has in it; the first that fits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--variant", default="imagenet/efficientnet-lite0/int8-224")
    parser.add_argument("--connections", default="1,16")
    parser.add_argument("--seconds", type=float, default=10.0)
    told = parser.parse_args()
    variant = front_door.find_variant(told.home, told.variant)
    body, more = front_door.v2_request(variant)
    counts = [int(count) for count in told.connections.split(",")]
    columns = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "body").write_bytes(body)
        system = front_door.SYSTEMS["modelless"]
        with front_door.server("modelless", system, told, variant, folder) as headers:
            for connections in counts:
                spec = {"host": "127.0.0.1", "port": front_door.PORT, "connections": connections}
                spec |= {"marker": "", "warm_up_s": 2.0, "seconds": told.seconds, "grpc": False}
                spec |= {"path": f"/v2/models/{variant['name']}/infer", "headers": headers | more}
                (folder / "spec").write_text(json.dumps(spec | {"body": str(folder / "body")}))
                columns.append(measure(folder / "spec", told.seconds))
    report(counts, columns)


def measure(spec: Path, seconds: float) -> tuple[float, dict[str, float]]:
    """Returns queries a second, and microseconds a query by role."""
    command = [sys.executable, front_door.__file__, "--client", str(spec)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    time.sleep(2.5)  # the client's own warm-up, and its start
    before, began_s = used_ns(), time.monotonic()
    time.sleep(seconds - 1.0)
    after, took_s = used_ns(), time.monotonic() - began_s
    per_s = json.loads(client.communicate()[0])["per_s"]
    spent: dict[str, float] = defaultdict(float)
    for thread, (role, ns) in after.items():
        spent[role] += (ns - before.get(thread, (role, 0))[1]) / 1e3 / (per_s * took_s)
    return per_s, spent


def used_ns() -> dict[tuple[int, str], tuple[str, int]]:
    """Returns the role of each thread of this process's descendants, and its CPU time so far."""
    parents = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            pid, rest = path.parent.name, path.read_text().rpartition(")")[2]
        except OSError:  # it has ended
            continue
        parents[int(pid)] = int(rest.split()[1])
    found = {}
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor == 0 or pid == os.getpid():
            continue
        for task in (PROC / str(pid) / "task").glob("*"):
            try:
                ns = int((task / "schedstat").read_text().split()[0])
                found[pid, task.name] = role_of(pid, task), ns
            except OSError:
                continue
    return found


def role_of(pid: int, task: Path) -> str:
    """Returns what the table calls a thread."""
    line = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    name = next((role for part, role in ROLES.items() if part in line), "other")
    if name != "gateways":
        return name
    cores = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
    if cores is not None and cores[1].isdigit():
        return "gateways: model"
    is_ray = (task / "comm").read_text().strip() != "ray::IDLE"
    return "gateways: Ray's threads" if is_ray else "gateways: event loop"


def report(counts: list[int], columns: list[tuple[float, dict[str, float]]]) -> None:
    """The table: a row a role, a column a number of connections."""
    print(f"{'us a query':26}" + "".join(f"{count:>10} conn." for count in counts))
    roles = {role for _, spent in columns for role in spent}
    for role in sorted(roles, key=lambda role: -columns[-1][1].get(role, 0.0)):
        print(f"{role:26}" + "".join(f"{spent.get(role, 0.0):16.0f}" for _, spent in columns))
    print(f"{'sum':26}" + "".join(f"{sum(spent.values()):16.0f}" for _, spent in columns))
    print(f"{'queries a second':26}" + "".join(f"{per_s:16.1f}" for per_s, _ in columns))


if __name__ == "__main__":
    main()
