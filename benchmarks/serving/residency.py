"""Cold starts that clients see, live: an eviction policy against LRU on the same queries.

Three tasks are served by one gateway whose memory holds a quarter of their variants. Clients ask
for variants by name, each as often as a Zipf law says, and every ``--drift-s`` seconds a third of
the ranks is swapped. The same trace goes to each policy in turn, on a cluster of its own:

    python benchmarks/serving/residency.py --source HOME [--policies lru miss-cost] [--seconds 120]
        [--per-s 10] [--drift-s 30] [--latency-ms 300] [--port 8170] [--json FILE]

``HOME`` is a home with the zoo's imagenet, profiled (``modelless zoo add imagenet``, ``modelless
profile``); each of its models becomes a task in a home of the benchmark's own. A cold start is a
query that found nothing ready: it waited for a load or was refused. With a deadline that most loads
end too late for, policies may differ in what they load; with a long one every miss is loaded, by
any. Before the trace, ``--burst`` patient queries at once ask for one variant that is not there:
that should cause one load.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from modelless.common.errors import ModellessError
from modelless.common.files import default_home
from modelless.controller.demo.cluster_process import running_cluster
from modelless.controller.usecases.client import Client, EncodedQuery, encode_infer
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import SLO, Variant

TASK = "imagenet"
DEVICE_CLASS = "cpu-1"
POLICIES: dict[str, Any] = {
    "lru": "lru",
    "lfu": "lfu",
    "gdsf": "gdsf",
    "miss-cost": {"policy": "miss-cost", "half_lives_s": [10.0, 60.0]},
}


@dataclass(frozen=True)
class Shot:
    due_s: float
    scope: str


@dataclass(frozen=True)
class Outcome:
    """What became of a query: HTTP status, milliseconds from when it was due."""

    scope: str
    status: int
    latency_ms: float


def prepare(source: Path, home: Path) -> tuple[list[Variant], int]:
    """A home with a task for each model of ``source``; its variants, and the bytes of all of them.

    The files are the same, so what was measured of them holds.
    """
    variants: list[Variant] = []
    sizes: dict[str, int] = {}
    with closing(open_registry(source)) as old, closing(open_registry(home)) as new:
        catalog = old.catalog()
        measured = Records(old.store).everything()
        for model in old.models(TASK):
            task = replace(catalog.tasks[TASK], name=model.name)
            new.add_task(task)
            new.add_model(replace(model, task=task.name))
            for variant in old.variants(TASK, model.name):
                made = new.register_variant(
                    task=task.name,
                    model=model.name,
                    name=variant.name,
                    precision=variant.precision,
                    engine=variant.engine,
                    accuracy=variant.accuracy,
                    artifact=old.artifacts.read(variant.artifact_sha256),
                    resolution_px=variant.resolution_px,
                )
                variants.append(made)
                for row in measured:
                    if row.variant_id == variant.id:
                        Records(new.store).add(replace(row, variant_id=made.id))
                        if row.device_class == DEVICE_CLASS:
                            sizes[made.id] = max(sizes.get(made.id, 0), row.memory_bytes)
    return variants, sum(sizes.values())


def trace(scopes: Sequence[str], seconds: float, per_s: float, drift_s: float) -> list[Shot]:
    """Poisson arrivals; Zipf 0.9 over the scopes; at each drift a third of the ranks is swapped."""
    rng = np.random.default_rng(7)
    weights = 1.0 / np.arange(1, len(scopes) + 1) ** 0.9
    order = rng.permutation(len(scopes))
    shots: list[Shot] = []
    due_s, drifts = 0.0, 0
    while (due_s := due_s + float(rng.exponential(1.0 / per_s))) < seconds:
        while due_s >= (drifts + 1) * drift_s:
            drifts += 1
            for _ in range(max(len(scopes) // 6, 1)):
                one, other = rng.choice(len(scopes), 2, replace=False)
                order[[one, other]] = order[[other, one]]
        rank = int(rng.choice(len(scopes), p=weights / weights.sum()))
        shots.append(Shot(due_s, scopes[order[rank]]))
    return shots


def send(url: str, queries: Mapping[str, EncodedQuery], shots: Sequence[Shot]) -> list[Outcome]:
    """Send each when it is due, whatever became of those before it."""
    local = threading.local()

    def ask(shot: Shot) -> Outcome:
        if not hasattr(local, "client"):
            local.client = Client(url, timeout_s=60.0)
        try:
            status = local.client.send(queries[shot.scope]).status
        except ModellessError:
            status = 0
        return Outcome(shot.scope, status, (time.monotonic() - began_s - shot.due_s) * 1e3)

    def due() -> Iterator[Shot]:
        for shot in shots:
            time.sleep(max(began_s + shot.due_s - time.monotonic(), 0.0))
            yield shot

    with ThreadPoolExecutor(128) as pool:
        began_s = time.monotonic()
        sent = [pool.submit(ask, shot) for shot in due()]
        return [each.result() for each in sent]


def run(policy: str, home: Path, variants: Sequence[Variant], told: Any, budget: int) -> dict:
    """One cluster, one policy: the burst, then the trace."""
    settings = {
        "http": {"port": told.port},
        "gateways": {"count": 1, "device_class": DEVICE_CLASS, "memory_bytes": budget},
        "policies": {
            "scaling": {"policy": "on-demand", "loads_per_worker": 4},
            "placement": "room-to-load",
            "eviction": POLICIES[policy],
        },
        "serve_dominated": True,
    }
    config = home / f"{policy}.yaml"
    config.write_text(yaml.safe_dump(settings))
    slo = SLO(latency_ms=told.latency_ms)
    rng = np.random.default_rng(1)
    pixels = {}
    for variant in variants:
        side = variant.resolution_px or 224
        scope = variant.id.partition("@")[0]
        pixels[scope] = rng.integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    queries = {scope: encode_infer(scope, {"image": each}, slo) for scope, each in pixels.items()}
    shots = trace(sorted(queries), told.seconds, told.per_s, told.drift_s)
    with running_cluster(home, told.port, config=config) as cluster:
        status = settle(cluster.url)
        there = {name for member in status["members"] for name in member["loaded"]}
        absent = next(v for v in variants if v.id not in there)
        scope = absent.id.partition("@")[0]
        patient = {scope: encode_infer(scope, {"image": pixels[scope]}, SLO(latency_ms=30_000.0))}
        burst = send(cluster.url, patient, [Shot(0.0, scope)] * told.burst)
        before = settle(cluster.url)
        burst_loads = sum(
            change["kind"] == "loaded" and change["variant_id"] == absent.id
            for change in before["residency"]["recent"]
        )
        outcomes = send(cluster.url, queries, shots)
        after = settle(cluster.url)
    return {
        "policy": policy,
        "burst_answered": sum(outcome.status == 200 for outcome in burst),
        "burst_loads": burst_loads,
        **figures(outcomes, before, after, told.latency_ms),
    }


def settle(url: str) -> dict[str, Any]:
    """The status once the last seconds' reports are in it."""
    time.sleep(3.0)
    with Client(url) as client:  # one left idle for a whole run would be closed
        status: dict[str, Any] = client.get("/modelless/status")
    return status


def figures(
    outcomes: Sequence[Outcome], before: dict[str, Any], after: dict[str, Any], latency_ms: float
) -> dict[str, Any]:
    """What clients saw, and what the cluster did."""

    def grown(*path: str) -> float:
        values = []
        for status in (before, after):
            value: Any = status
            for name in path:
                value = value.get(name, 0) if isinstance(value, dict) else 0
            values.append(value)
        return values[1] - values[0]

    answered = [outcome for outcome in outcomes if outcome.status == 200]
    in_time = [outcome for outcome in answered if outcome.latency_ms <= latency_ms]
    usual_ms: dict[str, float] = {}
    for scope in {outcome.scope for outcome in answered}:
        taken = [o.latency_ms for o in answered if o.scope == scope]
        usual_ms[scope] = statistics.median(taken)
    waited_ms = sum(max(o.latency_ms - usual_ms[o.scope], 0.0) for o in answered)
    return {
        "queries": len(outcomes),
        "cold_starts": grown("residency", "cold_queries"),
        "refused": len(outcomes) - len(answered),
        "attainment_percent": 100.0 * len(in_time) / max(len(outcomes), 1),
        "waited_s": waited_ms / 1e3,
        "loads": grown("residency", "counts", "loaded"),
        "evictions": grown("residency", "counts", "unloaded"),
        "loading_s": grown("residency", "loading_s"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--source", type=Path, default=default_home())
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=["lru", "miss-cost"])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--per-s", type=float, default=10.0)
    parser.add_argument("--drift-s", type=float, default=30.0)
    parser.add_argument("--latency-ms", type=float, default=300.0)
    parser.add_argument("--memory-share", type=float, default=0.25)
    parser.add_argument("--burst", type=int, default=50)
    parser.add_argument("--port", type=int, default=8170)
    parser.add_argument("--json", type=Path, help="write all figures here")
    told = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="modelless-residency-"))
    try:
        variants, all_bytes = prepare(told.source, home)
        budget = int(told.memory_share * all_bytes)
        print(
            f"{len(variants)} variants take {all_bytes / 2**20:.0f} MiB; memory {budget >> 20} MiB"
        )
        rows = []
        for policy in told.policies:
            rows.append(run(policy, home, variants, told, budget))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if len(rows) > 1 and rows[0]["cold_starts"]:
        for row in rows[1:]:
            fewer = 1.0 - row["cold_starts"] / rows[0]["cold_starts"]
            print(
                f"{row['policy']}: {fewer:.0%} fewer cold starts than {rows[0]['policy']}, "
                f"{row['attainment_percent'] - rows[0]['attainment_percent']:+.1f} points of "
                "attainment"
            )
    if told.json is not None:
        told.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
