"""Random but repeatable inputs for policies: candidates, queries, queues, clusters.

Every function takes the generator that it draws from. Latencies are seconds, sizes bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from modelless.policies.priorities import urgency
from modelless.policies.views import (
    Candidates,
    ClusterView,
    Demand,
    Instance,
    Pool,
    QueryView,
    QueueView,
    ResidentView,
    VariantFacts,
    WorkerState,
    WorkerView,
)
from modelless.variants.estimates import Estimates
from modelless.variants.vocabulary import DeviceClass, Placement

NOW_S = 1000.0
TASK = "imagenet"
DEVICE_CLASSES = {
    "cpu-1": DeviceClass("cpu-1", "cpu", 1, 2 << 30, 0.05, 8.0),
    "gpu-1": DeviceClass("gpu-1", "gpu", 1, 64 << 30, 3.50, 700.0),
}
LARGER = DeviceClass("cpu-2", "cpu", 2, 4 << 30, 0.10, 16.0)


def variant_id(number: int, task: str = TASK) -> str:
    """Returns the id of the variant of that number; ids are in no order by name."""
    return f"{task}/model{number * 7919 % 10_007}/v{number % 8}@1"


def make_candidates(
    rng: np.random.Generator, rows: int, *, unknown: float = 0.0, idle: bool = False
) -> Candidates:
    """Returns candidates of ``rows`` rows on a few workers.

    Args:
        rng: random generator.
        rows: number of rows.
        unknown: share of rows whose estimates are inf or NaN.
        idle: whether no worker has anything to do.
    """
    classes = rng.choice(list(DEVICE_CLASSES), rows)
    placements = tuple(Placement(variant_id(i), str(name)) for i, name in enumerate(classes))
    p50_s = rng.lognormal(np.log(0.02), 1.0, rows)
    p50_s[rng.random(rows) < unknown / 2] = np.inf
    p50_s[rng.random(rows) < unknown / 2] = np.nan
    p90_s = p50_s * rng.uniform(1.0, 1.3, rows)
    p99_s = p90_s * rng.uniform(1.0, 1.5, rows)
    price_usd_per_s = np.array([DEVICE_CLASSES[str(name)].cost_usd(1.0) for name in classes])
    workers = 4
    waits_s = np.zeros(workers) if idle else rng.exponential(0.02, workers)
    known = np.where(np.isfinite(p50_s), 1.0, np.inf)
    return Candidates(
        placements,
        accuracy_percent=np.round(rng.uniform(50.0, 90.0, rows), 1),
        cost_usd=price_usd_per_s * p50_s,
        estimates=Estimates(p50_s, p90_s, p99_s, known * 5e7, known * 0.5),
        free_at_s=NOW_S + waits_s[rng.integers(0, workers, rows)],
        now_s=NOW_S,
    )


def reorder(candidates: Candidates, order: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Candidates:
    """Returns the same candidates in another order: row ``order[i]`` becomes row i."""
    estimates = candidates.estimates
    return Candidates(
        tuple(candidates.placements[row] for row in order),
        candidates.accuracy_percent[order],
        candidates.cost_usd[order],
        Estimates(
            estimates.p50_s[order],
            estimates.p90_s[order],
            estimates.p99_s[order],
            estimates.memory_bytes[order],
            estimates.load_s[order],
        ),
        candidates.free_at_s[order],
        candidates.now_s,
    )


def make_query(
    rng: np.random.Generator, query_id: int, *, limited: bool = True, scope: str = TASK
) -> QueryView:
    """Returns a query that has just arrived, with random limits or with none."""
    if not limited:
        return QueryView(query_id, scope, NOW_S, float("inf"))
    return QueryView(
        query_id,
        scope,
        arrival_s=NOW_S,
        deadline_s=NOW_S + float(rng.choice([rng.lognormal(np.log(0.05), 1.0), 0.001, np.inf])),
        min_accuracy_percent=float(rng.choice([0.0, rng.uniform(50.0, 92.0)])),
        max_cost_usd=float(rng.choice([np.inf, np.inf, rng.lognormal(np.log(1e-6), 2.0)])),
        priority=int(rng.choice([0, 0, 0, 5])),
        tenant=str(rng.choice(["", "one", "other"])),
    )


def make_worker(
    rng: np.random.Generator, residents: int, *, max_batch: int = 8, unknown: float = 0.0
) -> WorkerView:
    """Returns an idle worker that holds the variants 0 to ``residents`` - 1.

    Args:
        rng: random generator.
        residents: number of variants.
        max_batch: most items in a batch.
        unknown: share of variants whose latency is inf or NaN.
    """
    views = {}
    for number in range(residents):
        one_s = float(rng.lognormal(np.log(0.02), 0.7))
        if rng.random() < unknown:
            one_s = float(rng.choice([np.inf, np.nan]))
        share = float(rng.uniform(0.3, 1.0))  # of the time that more items take more of
        p50_s = (0.0, *(one_s * (1.0 - share + share * b) for b in range(1, max_batch + 1)))
        name = variant_id(number)
        accuracy = float(np.round(rng.uniform(50.0, 90.0), 1))
        views[name] = ResidentView(name, accuracy, p50_s, tuple(1.3 * s for s in p50_s))
    counts = {"cpu-1": 3, "gpu-1": 1}
    return WorkerView("worker-0", "cpu-1", views, max_batch, worker_counts=counts)


def make_queues(
    rng: np.random.Generator,
    worker: WorkerView,
    queues: int,
    queries: int,
    *,
    deferred: bool = False,
) -> list[QueueView]:
    """Returns queues for the worker as the core keeps them: sorted, not empty, each of one shape.

    Every third deferred one is narrowed to the model of one of the worker's variants.

    Args:
        rng: random generator.
        worker: the worker.
        queues: number of queues, each of another variant or shape.
        queries: number of queries in all, at least as many as queues.
        deferred: whether the queries are bound to no variant yet.
    """
    names = sorted(worker.residents)
    out = []
    next_id = int(rng.integers(1000))
    for number in range(queues):
        name = names[number % len(names)]
        scope = name.rpartition("/")[0] if deferred and number % 3 == 2 else TASK
        members = []
        for _ in range(queries // queues + (number < queries % queues)):
            query = make_query(rng, next_id, scope=scope)
            items = int(rng.choice([1, 1, 1, 2, 3]))
            members.append(query._replace(items=items, batch_key=(number // len(names),)))
            next_id += 1
        members.sort(key=urgency)
        bound = None if deferred else name
        out.append(QueueView(scope, bound, members[0].batch_key, tuple(members)))
    return out


def make_cluster(
    rng: np.random.Generator, variants: int, workers: int, *, unknown: float = 0.0
) -> ClusterView:
    """Returns a cluster whose workers hold some of the variants of three tasks.

    Args:
        rng: random generator.
        variants: number of variants.
        workers: number of workers.
        unknown: share of variants whose size, load time and latency are inf or NaN.
    """
    tasks = (TASK, "speech", "text")
    facts = []
    for number in range(variants):
        one_s = float(rng.lognormal(np.log(0.02), 1.0))
        size = float(rng.integers(10_000_000, 400_000_000))
        if rng.random() < unknown:
            one_s = size = float(rng.choice([np.inf, np.nan]))
        classes = list(DEVICE_CLASSES)[: 1 + int(rng.random() < 0.7)]
        task = tasks[number % len(tasks)]
        facts.append(
            VariantFacts(
                variant_id(number, task),
                task,
                float(np.round(rng.uniform(50.0, 90.0), 1)),
                dict.fromkeys(classes, size),
                dict.fromkeys(classes, size / 1e8),
                {name: one_s / (1 + 9 * (name == "gpu-1")) for name in classes},
            )
        )
    states = []
    for number in range(workers):
        name = "cpu-1" if number % 3 else "gpu-1"
        instances: list[Instance] = []
        left = DEVICE_CLASSES[name].memory_bytes
        for fact in facts[: 3 * workers : 2]:
            size = fact.memory_bytes.get(name, np.inf)
            if size <= left and rng.random() < 0.5:
                instances.append(make_instance(rng, f"worker-{number}", fact.variant_id, int(size)))
                left -= int(size)
        states.append(
            WorkerState(
                f"worker-{number}", name, DEVICE_CLASSES[name].memory_bytes, tuple(instances)
            )
        )
    arrivals = {task: float(rng.exponential(50.0)) for task in tasks}
    unmet = {task: float(rng.choice([0.0, 2.0])) for task in tasks}
    return ClusterView(NOW_S, DEVICE_CLASSES, tuple(states), tuple(facts), arrivals, unmet)


def make_busy(view: ClusterView) -> ClusterView:
    """Returns the cluster at work: demand by kind, open queries, and pools that may grow a little.

    Workers of ``cpu-1`` may be resized to ``cpu-2``, which is twice as large and as quick.
    """
    variants = tuple(
        replace(
            variant,
            memory_bytes=_with_size(variant.memory_bytes, 1.0),
            load_s=_with_size(variant.load_s, 1.0),
            latency_s=_with_size(variant.latency_s, 0.5),
        )
        for variant in view.variants
    )
    there = Counter(worker.device_class for worker in view.workers)
    demands = tuple(
        Demand(task, limit_s, least, share * rate)
        for task, rate in view.arrivals_per_s.items()
        for share, limit_s, least in ((0.5, 0.2, 0.0), (0.3, 1.0, 70.0), (0.2, float("inf"), 99.0))
    )
    return replace(
        view,
        device_classes={**view.device_classes, LARGER.name: LARGER},
        variants=variants,
        demands=demands,
        open_queries=dict.fromkeys(view.arrivals_per_s, 20),
        pools=(
            Pool("cpu-1", ("cpu-1", LARGER.name), 0, there["cpu-1"] + 2, start_s=5.0),
            Pool("gpu-1", ("gpu-1",), 0, there["gpu-1"] + 1, start_s=30.0),
        ),
        missed_per_s=1.0,
    )


def _with_size(by_class: Mapping[str, float], factor: float) -> dict[str, float]:
    """Returns the figures with those of ``cpu-1``, scaled, for ``cpu-2``."""
    return {**by_class, LARGER.name: factor * by_class["cpu-1"]}


def make_instance(
    rng: np.random.Generator, worker_id: str, variant: str, memory_bytes: int
) -> Instance:
    """Returns an idle instance with some history; several may have the same."""
    return Instance(
        worker_id,
        variant,
        memory_bytes,
        load_s=float(rng.choice([0.2, 0.5, 2.0])),
        last_used_s=NOW_S - float(rng.integers(0, 60)),
        use_count=int(rng.integers(0, 50)),
    )
