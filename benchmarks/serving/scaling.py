"""Scaling over a step of load: seconds until attainment is back over 99 %, and what it cost.

Queries come at 20 % of one worker's capacity, then at 200 %, then at 20 % again, open loop, from a
process of its own. The same step is met in four ways:

- threads: one worker that may be resized from one core to two; one variant;
- vertical: the same, and any variant may answer (a less accurate one is quicker);
- horizontal: one worker of one core or two of them; one variant;
- both: workers by number and size, any variant.

    python benchmarks/serving/scaling.py --home HOME [--only threads,horizontal] [--seconds 30]
        [--port N]

HOME must hold the ``imagenet`` zoo, profiled on both classes (``modelless zoo add imagenet;
modelless profile imagenet --device-class cpu-1,cpu-2``). One worker's capacity is what the variant
(``--variant``) does on ``cpu-1`` by its profile, in the best batch that takes half the deadline,
times 0.7.

Attainment is the share of the queries sent in a second that were answered in time. Recovered is the
first second of the step from which five in a row are at 99 % or more. Lost are queries without any
answer or with an error; refusals (late or too many) are told apart. Core-seconds: of workers that
were there, sampled twice a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from open_loop import send, spec_of

from modelless.common.errors import ModellessError
from modelless.controller.config import Settings
from modelless.controller.demo.cluster_process import running_cluster
from modelless.controller.demo.query_log import Row
from modelless.controller.live.knowledge import read_knowledge
from modelless.controller.usecases.client import get_json

LOW, HIGH = 0.2, 2.0
IN_A_ROW = 5
GOAL = 0.99
UTILISATION = 0.7
POOL: dict[str, Any] = {"device_class": "cpu-1", "workers": 1, "min_workers": 1, "max_cores": 2}
MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "threads": ({"max_workers": 1, "sizes": ["cpu-2"]}, True),
    "vertical": ({"max_workers": 1, "sizes": ["cpu-2"]}, False),
    "horizontal": ({"max_workers": 2}, True),
    "both": ({"max_workers": 2, "sizes": ["cpu-2"]}, False),
}
"""The pool's settings, and whether clients insist on the one variant."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODES))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the three levels")
    parser.add_argument("--deadline-ms", type=float, default=500.0)
    parser.add_argument("--variant", default="imagenet/efficientnet-lite0/int8-224")
    parser.add_argument("--capacity", type=float, help="queries a second; default: by the profile")
    parser.add_argument("--port", type=int, default=8160)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    per_s = arguments.capacity or profiled_per_s(arguments)
    print(f"one worker's capacity: {per_s:.1f}/s of {arguments.variant}", flush=True)
    results = {}
    for mode in arguments.only.split(","):
        arguments.port += 1  # the one before may still be closing
        results[mode] = found = measure(mode, per_s, arguments)
        print(row(mode, found), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def row(mode: str, found: dict[str, Any]) -> str:
    back_s = found["recovered_s"]
    recovered = "not recovered" if back_s is None else f"recovered after {back_s} s"
    levels = ", ".join(f"{share:.1%}" for share in found["attained"])
    return (
        f"{mode:11} {recovered:20} in time {levels}; way down: {found['missed_down']} missed; "
        f"lost {found['lost']} of {found['queries']}; {found['core_s']:.0f} core-s"
    )


def profiled_per_s(arguments: argparse.Namespace) -> float:
    """The variant's throughput on one core within the deadline, by its profile."""
    settings = Settings(serve_dominated=True, tasks=("imagenet",))
    for facts in read_knowledge(arguments.home, settings).variant_facts(8):
        if facts.variant_id.startswith(arguments.variant + "@"):
            batches = enumerate(facts.batch_s["cpu-1"])
            half_s = arguments.deadline_ms / 2e3
            return UTILISATION * max(n / s for n, s in batches if 0.0 < s <= half_s)
    raise SystemExit(f"{arguments.variant} is not registered, or not profiled on cpu-1")


def measure(mode: str, per_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    pool, is_one_variant = MODES[mode]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {
            "serve_dominated": True,
            "tasks": ["imagenet"],
            "gateways": {"count": 1, "device_class": None},
            "pools": [{**POOL, **pool}],
            "policies": {"scaling": {"policy": "expected-value", "pools": {"down_after_s": 10.0}}},
        }
        file = folder / "config.yaml"
        file.write_text(json.dumps(config))
        with running_cluster(arguments.home, arguments.port, config=file) as cluster:
            time.sleep(5.0)  # the rest of the variants
            scope = arguments.variant if is_one_variant else "imagenet"
            kinds = [(1.0, {"latency_ms": arguments.deadline_ms})]
            steps = [(arguments.seconds, share * per_s) for share in (LOW, HIGH, LOW)]
            spec = spec_of(cluster.url, folder, scope, kinds, steps)
            core_s: list[float] = []
            stopping = threading.Event()
            watch = threading.Thread(target=count_cores, args=(cluster.url, stopping, core_s))
            watch.start()
            rows = send(spec, folder)
            stopping.set()
            watch.join()
    return {**figures(rows, arguments.seconds, arguments.deadline_ms), "core_s": sum(core_s)}


def figures(rows: Sequence[Row], seconds: float, deadline_ms: float) -> dict[str, Any]:
    width = int(3 * seconds)
    sent, good = np.zeros(width), np.zeros(width)
    lost = 0
    statuses: list[Counter[str]] = [Counter(), Counter(), Counter()]
    for _, due_s, status, latency_ms, *_ in rows:
        second = min(int(due_s), width - 1)
        sent[second] += 1
        good[second] += status == 200 and latency_ms <= deadline_ms
        lost += status == 0 or status == 500
        is_late = status == 200 and latency_ms > deadline_ms
        statuses[min(int(due_s // seconds), 2)]["late" if is_late else str(status)] += 1
    share = np.divide(good, sent, out=np.ones(width), where=sent > 0)
    up, down = int(seconds), int(2 * seconds)
    recovered_s = next(
        (
            second - up
            for second in range(up, down - IN_A_ROW + 1)
            if (share[second : second + IN_A_ROW] >= GOAL).all()
        ),
        None,
    )
    edges = (0, up, down, width)
    return {
        "queries": len(rows),
        "lost": lost,
        "recovered_s": recovered_s,
        "attained": [
            float(good[a:b].sum() / max(sent[a:b].sum(), 1.0)) for a, b in pairwise(edges)
        ],
        "missed_down": int((sent - good)[down:].sum()),
        "statuses": statuses,
        "share_by_second": share.round(3).tolist(),
    }


def count_cores(url: str, stopping: threading.Event, core_s: list[float]) -> None:
    """Sample how many cores the pool's workers own, until told to stop."""
    told_s = time.monotonic()
    while not stopping.wait(0.5):
        try:
            status = get_json(url, "/modelless/status")
        except ModellessError:
            continue
        now_s = time.monotonic()
        classes = [member["device_class"] for member in status["members"]]
        core_s.append((now_s - told_s) * sum(int(c.split("-")[1]) for c in classes if c))
        told_s = now_s


if __name__ == "__main__":
    main()
