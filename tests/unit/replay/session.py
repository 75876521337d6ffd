"""A made-up session of a gateway and of a control loop, recorded on tapes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.assembly import build_dispatcher, build_planner
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.dispatch.messages import (
    Advised,
    BatchDone,
    BatchFailed,
    BatchReturned,
    DispatchEffect,
    Execute,
    LoadChanged,
    QueryArrived,
    QueryCancelled,
    ShutDown,
    Tick,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.replay.recorded import Recorded, RecordedPlanner
from modelless.controller.replay.snapshot import Snapshot
from modelless.controller.replay.tape import SUFFIX, Tape
from modelless.controller.sim.worlds.measurements import measurement
from modelless.policies.views import ClusterView, Demand, Instance, VariantFacts, WorkerState
from modelless.profiler.cost_model.host_model import CostInputs
from modelless.profiler.cost_model.learned.unmeasured import PredictedFigures
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import DEVICES, LADDER, make_query, make_variant

START_S = 1000.0
CLOCK = {"monotonic_s": START_S, "time_s": 1.7e9}


def snapshot(**settings: Any) -> Snapshot:
    """Three variants measured on a CPU at some batches, and one supposed on a card."""
    rows = [
        measurement(
            name,
            "cpu-1",
            batch,
            tuple(p50_s * (0.4 + 0.6 * batch) * f for f in (1, 1.1, 1.3)),
            20e6,
            0.5,
        )
        for name, (p50_s, _) in LADDER.items()
        for batch in (1, 4, 8)
    ]
    supposed = [
        PredictedFigures(Placement(name, "h200"), n, 0.002 * n, 0.003 * n, 0.004 * n, 1e9, 2.0)
        for name in LADDER
        for n in (1, 8)
    ]
    variants = {name: make_variant(name, accuracy) for name, (_, accuracy) in LADDER.items()}
    return Snapshot(parse_settings(settings), variants, DEVICES, CostInputs(rows, (), supposed))


def open_tape(folder: Path, what: str, document: Mapping[str, Any], name: str = "g") -> Tape:
    header = {"what": what, "name": name, "clock": CLOCK, **document}
    return Tape(folder / f"{what}-{name}{SUFFIX}", header, 1 << 24)


def record_gateway(
    folder: Path, known: Snapshot, queries: int = 300, seed: int = 0, name: str = "g"
) -> None:
    """Bursts of all sorts of queries on three workers; batches that fail, a worker that is lost.

    The workers are shared: batches wait for others', and some are turned back.
    """
    rng = np.random.default_rng(seed)
    dispatcher = build_dispatcher(
        known.settings,
        known.variants,
        known.device_classes,
        known.cost_inputs.model(),
    )
    tape = open_tape(folder, "gateway", known.document(), name)
    handle = Recorded(dispatcher, tape).handle
    now_s = START_S
    names = list(known.variants)
    running: list[tuple[float, int, float]] = []

    def carry_out(effects: list[DispatchEffect], at_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Execute):
                busy_s = float(rng.lognormal(math.log(0.02), 0.4))
                heapq.heappush(running, (at_s + busy_s, effect.batch_id, busy_s))

    reports = [
        WorkerReport("w0", "cpu-1", tuple(names), 0.0008),
        WorkerReport("w1", "cpu-1", tuple(names[:2]), 0.0015),
        WorkerReport("w2", "h200", tuple(names[1:])),
    ]
    held = make_query(0, now_s, latency_ms=5000.0)  # nothing is ready yet
    carry_out(handle(QueryArrived(held), now_s), now_s)
    for report in reports:
        carry_out(handle(WorkerReported(report, report.hop_s), now_s), now_s)
    shares = {"imagenet": {Placement(names[0], "cpu-1"): 0.25, Placement(names[2], "h200"): 0.75}}
    handle(Advised(shares), now_s)
    for number in range(1, queries + 1):
        now_s += float(rng.exponential(0.004 if number % 100 < 60 else 0.05))
        while running and running[0][0] <= now_s:
            at_s, batch_id, busy_s = heapq.heappop(running)
            if rng.random() < 0.03:
                lost = bool(rng.random() < 0.5)
                carry_out(handle(BatchFailed(batch_id, worker_lost=lost), at_s), at_s)
                if lost:
                    for report in reports:
                        seen = handle(WorkerReported(report, report.hop_s), at_s)
                        carry_out(seen, at_s)
            elif rng.random() < 0.05:
                others_s = float(rng.exponential(0.03))
                carry_out(handle(BatchReturned(batch_id, others_s), at_s), at_s)
            else:
                others_s, waited_s = rng.exponential(0.01, 2) if rng.random() < 0.1 else (0.0, 0.0)
                done = handle(BatchDone(batch_id, busy_s, float(others_s), float(waited_s)), at_s)
                carry_out(done, at_s)
        query = make_query(
            number,
            now_s,
            scope=str(rng.choice(["imagenet", "imagenet/lite0", "imagenet/none"])),
            latency_ms=None if rng.random() < 0.1 else float(rng.lognormal(math.log(60.0), 0.7)),
            min_accuracy=float(rng.choice([0.0, 72.0, 78.0, 99.0])),
            items=int(rng.choice([1, 1, 1, 3])),
            priority=int(rng.choice([0, 0, 5])),
            batch_key=((224, 224, 3),),
            tenant=str(rng.choice(["", "a", "a", "a", "b"])),
            serve_late=bool(rng.random() < 0.1),
        )
        carry_out(handle(QueryArrived(query), now_s), now_s)
        if rng.random() < 0.05:
            handle(QueryCancelled(number), now_s)
        if number % 5 == 0:
            carry_out(handle(Tick(), now_s), now_s)
        if number % 50 == 0:
            handle(LoadChanged(Load(float(rng.uniform(0, 2)), now_s)), now_s)
        if number == queries // 2:
            carry_out(handle(WorkerLost("w1"), now_s), now_s)
            empty = reports[0]._replace(variant_ids=())
            carry_out(handle(WorkerReported(empty), now_s), now_s)
            carry_out(handle(WorkerReported(reports[0]), now_s), now_s)
    handle(ShutDown(), now_s)
    tape.close()


def record_control(
    folder: Path, settings: Settings, ticks: int = 40, seed: int = 0, name: str = "g"
) -> None:
    """Demand that drifts between two tasks, on two workers with room for half of the variants."""
    rng = np.random.default_rng(seed)
    limits = PlanLimits({}, {})
    header = {"settings": settings.model_dump(mode="json"), "limits": limits, "preload": []}
    tape = open_tape(folder, "control", header, name)
    planner = RecordedPlanner(build_planner(settings, limits), tape)
    variants = tuple(
        VariantFacts(
            f"{task}/{model}/x@1",
            task,
            60.0 + 10 * place,
            {"cpu-1": 4e8},
            {"cpu-1": 0.5},
            {"cpu-1": 0.01 * 2**place},
            {"cpu-1": tuple(0.01 * 2**place * b for b in range(9))},
        )
        for task in ("cats", "dogs")
        for place, model in enumerate("abc")
    )
    for tick in range(ticks):
        now_s = START_S + tick
        held = rng.choice(len(variants), size=2, replace=False)
        workers = tuple(
            WorkerState(
                f"w{n}",
                "cpu-1",
                1 << 30,
                tuple(
                    Instance(f"w{n}", variants[row].variant_id, 400_000_000, 0.5, now_s - 3.0, tick)
                    for row in held
                ),
                float(rng.random()),
                {variants[0].variant_id: 1.2},
            )
            for n in range(2)
        )
        rates = {"cats": float(rng.exponential(20.0)), "dogs": float(rng.exponential(5.0))}
        demands = tuple(Demand(task, math.inf, 0.0, rate) for task, rate in rates.items())
        unmet = {"dogs": 1.0} if tick % 7 == 0 else {}
        planner.tick(
            ClusterView(now_s, DEVICES, workers, variants, rates, unmet, demands, {"cats": tick})
        )
    tape.close()
