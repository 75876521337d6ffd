"""Made-up sessions of a gateway, a control loop and a device, recorded on tapes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.assembly import build_dispatcher
from modelless.controller.config import RecordSettings, Settings, parse_settings
from modelless.controller.control.messages import (
    FactsChanged,
    MemberLeft,
    MemberReport,
    MemberReported,
    PinsChanged,
    VersionsChanged,
)
from modelless.controller.control.messages import Tick as ControlTick
from modelless.controller.control.served_versions import Service
from modelless.controller.device import messages as device
from modelless.controller.device.messages import ChangeKind, ResidencyChange
from modelless.controller.dispatch.counters import Meters
from modelless.controller.dispatch.messages import (
    AccuraciesRevised,
    Advised,
    BatchDone,
    BatchFailed,
    BatchReturned,
    CacheHit,
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
from modelless.controller.dispatch.trials import ArmCounts, FeedbackCounts, TrialCounts
from modelless.controller.live.recordings import open_control, open_device
from modelless.controller.replay.snapshot import Snapshot
from modelless.controller.replay.tape import SUFFIX, Recorded, Tape
from modelless.controller.sim.worlds.measurements import measurement
from modelless.policies.reasons import Reason
from modelless.policies.scopes import arm_of
from modelless.policies.views import Instance, VariantFacts, WorkerState
from modelless.profiler.cost_model.model_inputs import CostInputs
from modelless.profiler.cost_model.slowdowns import Bottleneck, Slowdowns
from modelless.profiler.cost_model.unmeasured.figures import PredictedFigures
from modelless.variants.estimates import Load
from modelless.variants.registry.versions import Line, Trial, TrialRules
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
    arm = arm_of("imagenet", names[0], on_trial=False)
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
            scope=str(rng.choice([arm, "imagenet/lite0", "imagenet/none"])),
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
        if number % 10 == 0:
            cached = make_query(queries + number, now_s)
            carry_out(handle(CacheHit(cached, names[0]), now_s), now_s)
        if number % 5 == 0:
            carry_out(handle(Tick(), now_s), now_s)
        if number % 50 == 0:
            handle(LoadChanged(Load(float(rng.uniform(0, 2)), now_s)), now_s)
        if number in (queries // 3, queries // 2):
            handle(AccuraciesRevised({names[0]: 61.5} if number < queries // 2 else {}), now_s)
        if number == queries // 2:
            carry_out(handle(WorkerLost("w1"), now_s), now_s)
            empty = reports[0]._replace(variant_ids=())
            carry_out(handle(WorkerReported(empty), now_s), now_s)
            carry_out(handle(WorkerReported(reports[0]), now_s), now_s)
    handle(ShutDown(), now_s)
    tape.close()


def record_control(folder: Path, settings: Settings, ticks: int = 40, seed: int = 0) -> None:
    """Demand that drifts between two tasks, on two workers with room for half of the variants.

    A third worker comes and goes, and a version is on trial.
    """
    rng = np.random.default_rng(seed)
    recorded = settings.model_copy(update={"record": RecordSettings(folder=str(folder))})
    control, tape = open_control(recorded, list(DEVICES), ["dogs"], START_S)
    assert tape is not None
    variants = tuple(
        VariantFacts(
            f"{task}/{model}/x@{version}",
            task,
            60.0 + 10 * place,
            {"cpu-1": 4e8},
            {"cpu-1": 0.5},
            {"cpu-1": 0.01 * 2**place},
            {"cpu-1": tuple(0.01 * 2**place * b for b in range(9))},
        )
        for task in ("cats", "dogs")
        for place, model in enumerate("abc")
        for version in ((1, 2) if (task, model) == ("cats", "a") else (1,))
    )
    kinds = {Placement(each.variant_id, "cpu-1"): Bottleneck.MEMORY_BOUND for each in variants}
    sort = ("cpu-1", Bottleneck.MEMORY_BOUND)
    slowdowns = Slowdowns(kinds, {(sort, sort): 0.2})
    stated_low_percent = {each.variant_id: each.accuracy_percent for each in variants}
    control.handle(FactsChanged(variants, DEVICES, slowdowns, stated_low_percent), START_S)
    trial = Trial("cats/a/x", 2, 1, 0.2, 7, 1.7e9, TrialRules(accuracy_tolerance=0.02))
    lines = {name: Line(name, 1) for name in (each.variant_id[:-2] for each in variants)}
    service = Service("b", lines | {trial.name: Line(trial.name, 1, trial=trial)})
    control.handle(VersionsChanged(service, {}, 1.7e9), START_S)
    control.handle(PinsChanged(("cats/b",)), START_S)
    for tick in range(ticks):
        now_s = START_S + tick
        held = rng.choice(len(variants), size=2, replace=False)
        for n in range(2 + tick % 2):
            name = f"w{n}"
            instances = tuple(
                Instance(name, variants[row].variant_id, 400_000_000, 0.5, now_s - 3.0, tick)
                for row in held
            )
            change = ResidencyChange(
                now_s, name, ChangeKind.LOADED, instances[0].variant_id, Reason.WANTED
            )
            state = WorkerState(name, "cpu-1", 1 << 30, instances, float(rng.random()))
            report = MemberReport(name, False, state, interval_s=1.0, changes=(change,))
            control.handle(MemberReported(report), now_s)
        if tick % 2 == 1:
            control.handle(MemberLeft(MemberReport("w2", False, None)), now_s)
        rates = {"cats": int(rng.poisson(20.0)), "dogs": int(rng.poisson(5.0))}
        meters = Meters()
        for scope in rates:
            meters.count_end(scope, "served")
            meters.count_latency(scope, 0.02, 7)
        arms = ArmCounts(30, {3: 30}, 30), ArmCounts(50, {3: 40, 5: 10}, 50)
        report = MemberReport(
            "g",
            True,
            None,
            interval_s=1.0,
            arrivals=rates,
            unmet={"dogs": 1} if tick % 7 == 0 else {},
            kinds={(scope, math.inf, 70.0): [rate, rate] for scope, rate in rates.items()},
            open_queries={"cats": tick},
            trials=(TrialCounts(trial.number, *arms),),
            meters=meters,
            feedback=(FeedbackCounts("dogs/c/x@1", "shop", 8.0 if tick < 10 else 3.5, 2.0),),
        )
        control.handle(MemberReported(report), now_s)
        control.handle(ControlTick(), now_s)
    tape.close()


def record_device(folder: Path, steps: int = 600, seed: int = 0) -> None:
    """Orders and batches of all sorts, on a device with room for two of three variants."""
    rng = np.random.default_rng(seed)
    arguments = {
        "worker_id": "w",
        "device_class": "cpu-1",
        "memory_bytes": 1 << 30,
        "now_s": START_S,
        "sizes": ["cpu-1", "cpu-2"],
        "pinned": ["cats/a"],
        "most_waiting": math.inf,
    }
    machine, tape = open_device(RecordSettings(folder=str(folder)), arguments)
    assert tape is not None
    names = [f"cats/{model}/x@1" for model in "abc"]
    now_s = START_S
    to_come: list[device.Event] = []
    for number in range(steps):
        now_s += float(rng.exponential(0.05))
        name, draw = str(rng.choice(names)), rng.random()
        event: device.Event
        if to_come and draw < 0.5:
            event = to_come.pop(int(rng.integers(len(to_come))))
        elif draw < 0.8:
            event = device.BatchHandedIn(number, name, 0.02, float(rng.choice([0.01, math.inf])))
        else:
            reason = Reason.ANOTHER_COPY if draw < 0.93 else Reason.WANTED
            order: device.Order = device.LoadInstance("w", name, reason, 400_000_000)
            if draw > 0.98:
                size = str(rng.choice(arguments["sizes"]))
                order = device.ResizeWorker("w", size, Reason.OPTIMISED)
            other = device.UnloadInstance("w", str(rng.choice(names)), Reason.ROOM_NEEDED, name)
            event = device.Ordered([other, order], frozenset(machine.in_use))
        for effect in machine.handle(event, now_s):
            if isinstance(effect, device.StartBatch):
                to_come.append(device.BatchEnded(effect.batch_id, 0.2))
            elif isinstance(effect, device.StartLoad) and rng.random() < 0.2:
                to_come.append(device.LoadFailed(effect.copy_id, "no such operator"))
            elif isinstance(effect, device.StartLoad):
                to_come.append(device.LoadEnded(effect.copy_id, 400_000_000, 0.5))
            elif isinstance(effect, device.Free):
                to_come.append(device.FreeEnded(effect.copy_id, 0.01))
            elif isinstance(effect, device.WakeAt):
                to_come.append(device.Tick())
    tape.close()
