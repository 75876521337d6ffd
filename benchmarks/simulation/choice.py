"""What deciding costs: a choice among many placements, and a query's whole way through dispatch.

Also what a quote costs, and how honest it is: with ``--quotes``, 5,000 queries of a simulated
world, in runs of several seeds, are quoted as they arrive. In ten bins, the quoted probabilities
are compared with the share that was answered in time. The expected calibration error, the mean
difference, should be under 0.05.

A choice is what a gateway does to bind one query: it finds the candidates, waits included, and
asks the selection policy. It should stay under 100 microseconds at p99 with 1,000 placements, and
cost at most three times as much with 10,000 as with 100.

    python benchmarks/simulation/choice.py [--json] [--placements 100 1000 10000]
        [--policies NAME ...]
    python benchmarks/simulation/choice.py --quotes bursty flash-crowd failures [--seeds N]

Every figure is of the least disturbed of several rounds, that is, the one of the least p99.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.messages import (
    BatchDone,
    Execute,
    QueryArrived,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.replay.tape import Recorded, Tape
from modelless.controller.sim.engine import Engine as Simulation
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import WorldFile, load_world
from modelless.policies.discovery import build_policy
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import QueryView
from modelless.variants.estimates import Estimates, Load
from modelless.variants.vocabulary import (
    Accuracy,
    DeviceClass,
    Engine,
    Placement,
    Precision,
    Provenance,
    Variant,
)

POLICIES = ("cheapest-feasible", "most-accurate-feasible")
GOAL_US = 100.0
GOAL_RATIO = 3.0
GOAL_CALIBRATION = 0.05
CPU = DeviceClass("cpu-1", "cpu", 1, 1 << 34, 0.05, 8.0)
MAX_BATCH = 8


class SetCosts:
    """A cost model with set latencies, seconds by variant."""

    def __init__(self, latency_s: dict[str, float]) -> None:
        self._latency_s = latency_s

    def estimate(
        self, placements: Sequence[Placement], batch: int, load: Load, size: int = 0
    ) -> Estimates:
        del load, size
        one_s = np.array([self._latency_s[placement.variant_id] for placement in placements])
        p50_s = one_s * (0.3 + 0.7 * batch)
        return Estimates(p50_s, p50_s * 1.1, p50_s * 1.3, one_s * 1e9, one_s * 10.0)

    def observe(
        self, placement: Placement, batch: int, load: Load, latency_s: float, size: int = 0
    ) -> bool:
        del placement, batch, load, latency_s, size
        return False

    def doubt(self) -> None: ...


def make_instances(rng: np.random.Generator, placements: int, workers: int) -> ReadyInstances:
    """Random variants of one task, dealt out to the workers."""
    variants, latency_s = {}, {}
    for number in range(placements):
        variant = Variant(
            task="imagenet",
            model=f"model{number // 8}",
            name=f"v{number % 8}",
            version=1,
            precision=Precision.FP32,
            resolution_px=None,
            engine=Engine.ONNXRUNTIME_CPU,
            artifact_sha256="0" * 64,
            artifact_bytes=1,
            accuracy=Accuracy(float(rng.uniform(50, 90)), "top-1", Provenance.DERIVED, "made up"),
        )
        variants[variant.id] = variant
        latency_s[variant.id] = float(rng.lognormal(np.log(0.02), 0.7))
    instances = ReadyInstances(variants, {CPU.name: CPU}, SetCosts(latency_s), MAX_BATCH)
    names = tuple(variants)
    for number in range(workers):
        instances.update_worker(WorkerReport(f"worker-{number}", CPU.name, names[number::workers]))
        instances.set_backlog(f"worker-{number}", 100.0 + float(rng.exponential(0.01)), {})
    return instances


def make_queries(rng: np.random.Generator, count: int, now_s: float) -> list[QueryView]:
    """Queries of all sorts: tight, loose, accurate, impossible."""
    return [
        QueryView(
            number,
            "imagenet",
            now_s,
            now_s + float(rng.lognormal(np.log(0.04), 0.7)),
            float(rng.choice([0.0, rng.uniform(50.0, 95.0)])),
        )
        for number in range(count)
    ]


def time_choices(placements: int, policy: str, workers: int, count: int) -> Iterator[int]:
    rng = np.random.default_rng(7)
    instances = make_instances(rng, placements, workers)
    selection = build_policy(SelectionPolicy, policy)
    now_s = 100.0
    instances.candidates("imagenet", 1, now_s)  # once a second in service, not once a query
    for query in make_queries(rng, count, now_s):
        start_ns = time.perf_counter_ns()
        candidates = instances.candidates(query.scope, query.items, now_s)
        selection.on_arrival(query, candidates, rng)
        yield time.perf_counter_ns() - start_ns


def time_quotes(placements: int, policy: str, workers: int, count: int) -> Iterator[int]:
    """Nanoseconds of each quote, with 256 queries that wait."""
    rng = np.random.default_rng(7)
    instances = make_instances(rng, placements, workers)
    dispatcher = Dispatcher(instances, build_policy(SelectionPolicy, policy), rng)
    for worker_id, report in list(instances.reports.items()):
        instances.remove_worker(worker_id)
        dispatcher.handle(WorkerReported(report), 0.0)
    now_s = 100.0
    for query in make_queries(rng, 256, now_s):
        waits = query._replace(deadline_s=now_s + 60.0, min_accuracy_percent=0.0)
        dispatcher.handle(QueryArrived(waits), now_s)
    for query in make_queries(rng, count, now_s):
        start_ns = time.perf_counter_ns()
        dispatcher.quote(query, now_s)
        yield time.perf_counter_ns() - start_ns


class _Quoting(Recorder):
    """Keeps what becomes of each query besides the books."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.in_time: dict[int, bool] = {}

    def answer(
        self, query_id: int, asked: Any, running: Any, answered_s: float, *args: Any, **more: Any
    ) -> None:
        """See ``Recorder``."""
        self.in_time[query_id] = answered_s <= asked.arrival_s + asked.client.latency_s
        super().answer(query_id, asked, running, answered_s, *args, **more)

    def fail(self, query_id: int, *args: Any) -> None:
        """See ``Recorder``."""
        self.in_time[query_id] = False
        super().fail(query_id, *args)


def quote_run(file: WorldFile, seed: int, count: int) -> list[tuple[float, bool]]:
    """Return the quoted probabilities of some queries of a world, and whether each was in time."""
    asked = list(queries(file, seed))
    fleet = build_fleet(file)
    recorder = _Quoting(
        Summary(seed, file.world.name), None, dict(fleet.variants), dict(fleet.device_classes)
    )
    engine = Simulation(file.world, fleet, iter(asked), seed, recorder)
    dispatcher = engine._dispatcher
    handle, quoted = dispatcher.handle, dict[int, float]()
    every = max(len(asked) // count, 1)

    def quote_first(event: Any, now_s: float) -> Any:
        if isinstance(event, QueryArrived) and event.query.query_id % every == 0:
            quoted[event.query.query_id] = dispatcher.quote(event.query, now_s).probability
        return handle(event, now_s)

    dispatcher.handle = quote_first  # type: ignore[method-assign]
    engine.run()
    return [(told, recorder.in_time[number]) for number, told in quoted.items()][:count]


def judge_quotes(name: str, seeds: int) -> None:
    """Quote 5,000 queries of a world as they arrive, and print how honest the quotes are."""
    file = load_world(Path(__file__).parents[1] / "worlds" / f"{name}.yaml")
    runs = [quote_run(file, seed, 5000 // seeds) for seed in range(1, seeds + 1)]
    told, in_time = np.array([pair for run in runs for pair in run]).T
    bins = np.minimum((told * 10).astype(int), 9)
    error = 0.0
    print(f"{name}, {seeds} seeds: {len(told)} quotes, {in_time.mean():.1%} in time")
    for number in range(10):
        here = bins == number
        if here.any():
            error += here.mean() * abs(told[here].mean() - in_time[here].mean())
            print(f"  {here.sum():5} quoted {told[here].mean():.3f}: {in_time[here].mean():.3f}")
    means = ", ".join("{:.3f}: {:.3f}".format(*np.mean(run, axis=0)) for run in runs)
    print(f"  means of the runs, quoted: observed: {means}")
    print(f"  expected calibration error {error:.4f} (goal: under {GOAL_CALIBRATION})", flush=True)


def time_recorded(placements: int, policy: str, workers: int, count: int) -> Iterator[int]:
    """As ``time_dispatch``, with all inputs and effects recorded on a tape."""
    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(Path(folder) / "a.tape.gz", {}, 1 << 28)
        yield from time_dispatch(placements, policy, workers, count, tape)
        tape.close()


def time_dispatch(
    placements: int, policy: str, workers: int, count: int, tape: Tape | None = None
) -> Iterator[int]:
    """Nanoseconds of each query's way in, to a batch of one, and out, with idle workers."""
    rng = np.random.default_rng(7)
    dispatcher = Dispatcher(
        make_instances(rng, placements, workers), build_policy(SelectionPolicy, policy), rng
    )
    handle = dispatcher.handle if tape is None else Recorded(dispatcher, tape).handle
    for worker_id, report in list(dispatcher.instances.reports.items()):
        dispatcher.instances.remove_worker(worker_id)
        handle(WorkerReported(report), 0.0)
    now_s = 100.0
    for query in make_queries(rng, count, 0.0):
        shifted = query._replace(arrival_s=now_s, deadline_s=now_s + query.deadline_s)
        start_ns = time.perf_counter_ns()
        effects = handle(QueryArrived(shifted), now_s)
        spent_ns = time.perf_counter_ns() - start_ns
        now_s += 0.02
        for effect in effects:
            if isinstance(effect, Execute):
                start_ns = time.perf_counter_ns()
                handle(BatchDone(effect.batch_id, 0.02), now_s)
                yield spent_ns + time.perf_counter_ns() - start_ns


def measure(timed: Callable[[], Iterator[int]], rounds: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(rounds):
        spent_us = np.fromiter(timed(), dtype=np.float64)[200:] / 1e3
        p50_us, p99_us = np.percentile(spent_us, [50, 99])
        if not best or p99_us < best["p99_us"]:
            best = {"p50_us": round(float(p50_us), 2), "p99_us": round(float(p99_us), 2)}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--placements", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 40])
    parser.add_argument("--queries", type=int, default=3000, help="choices in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quotes", nargs="+", metavar="WORLD", help="judge quotes; nothing else")
    parser.add_argument("--seeds", type=int, default=5, help="runs of these worlds")
    told = parser.parse_args()
    for name in told.quotes or ():
        judge_quotes(name, told.seeds)
    if told.quotes:
        return
    rows: list[dict[str, Any]] = []
    for what, timed, sizes in (
        ("choice", time_choices, told.placements),
        ("dispatch", time_dispatch, [28]),
        ("recorded", time_recorded, [28]),
        ("quote", time_quotes, [28, 1000]),
    ):
        for policy in told.policies:
            for workers in told.workers:
                for placements in sizes:
                    figures = measure(
                        lambda t=timed, n=placements, p=policy, w=workers: t(  # type: ignore[misc]
                            n, p, w, told.queries
                        ),
                        told.rounds,
                    )
                    rows.append(
                        {
                            "what": what,
                            "policy": policy,
                            "workers": workers,
                            "placements": placements,
                            **figures,
                        }
                    )
    goals = judge(rows)
    if told.json:
        print(json.dumps({"rows": rows, "goals": goals}, indent=2))
        return
    print(f"{'what':9} {'policy':24} {'workers':>7} {'placements':>10} {'p50 us':>8} {'p99 us':>8}")
    for row in rows:
        print(
            f"{row['what']:9} {row['policy']:24} {row['workers']:7} {row['placements']:10} "
            f"{row['p50_us']:8.1f} {row['p99_us']:8.1f}"
        )
    for name, goal in goals.items():
        print(f"{name}: {goal['worst']} (goal: {goal['goal']})")


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The worst of what the goals are about."""
    choices = [row for row in rows if row["what"] == "choice"]
    goals = {}
    thousand = [row["p99_us"] for row in choices if row["placements"] == 1000]
    if thousand:
        goals["p99 of a choice among 1,000 placements, us"] = {
            "worst": max(thousand),
            "goal": GOAL_US,
        }
    for quantile in ("p50", "p99"):
        ratios = [
            large[f"{quantile}_us"] / small[f"{quantile}_us"]
            for small in choices
            for large in choices
            if (small["placements"], large["placements"]) == (100, 10_000)
            and (small["policy"], small["workers"]) == (large["policy"], large["workers"])
        ]
        if ratios:
            goals[f"10,000 placements to 100, {quantile}"] = {
                "worst": round(max(ratios), 2),
                "goal": GOAL_RATIO,
            }
    return goals


if __name__ == "__main__":
    main()
