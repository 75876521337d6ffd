"""The simulator: the cores, driven over a virtual clock.

Everything that decides is production's own: dispatcher, planner, instances, cost model, policies.
Only what they cannot see is simulated: clients, devices, the network, and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from modelless.controller.control.planner import PlanLimits, Planner
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.exploration import Exploration
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    AskForLoad,
    BatchDone,
    BatchFailed,
    BatchReturned,
    Complete,
    DispatchEvent,
    Execute,
    LoadChanged,
    PolicyFailed,
    QueryArrived,
    Refuse,
    ShutDown,
    Tick,
    WakeAt,
    WorkerLost,
    WorkerReported,
)
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.controller.sim.cluster import SimulatedCluster
from modelless.controller.sim.control import ControlDriver
from modelless.controller.sim.devices import SimulatedBatch, SimulatedWorker
from modelless.controller.sim.events import Events
from modelless.controller.sim.randomness import stream
from modelless.controller.sim.recorder import REFUSED, UNREACHABLE, Recorder
from modelless.controller.sim.worlds.faults import plan_faults
from modelless.controller.sim.worlds.profiles import Fleet
from modelless.controller.sim.worlds.query_streams import Asked
from modelless.controller.sim.worlds.world import World
from modelless.policies.advisory import build_advisory
from modelless.policies.discovery import build_policy
from modelless.policies.seams import (
    Clairvoyant,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)
from modelless.policies.views import Pool, QueryView
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.cost_model.size_model import SizeModel
from modelless.variants.estimates import Load
from modelless.variants.signature import round_size

Progress = Callable[[float, int], None]
"""Called about once a simulated second with the time and the queries so far."""


class ClosedReceipts(RecentReceipts):
    """Hands each finished receipt out once, to the driver that is about to answer.

    Args:
        keeps_served: those of served queries, too; else only of the others.
    """

    def __init__(self, *, keeps_served: bool) -> None:
        super().__init__()
        self._keeps_served = keeps_served

    def add(self, receipt: Receipt) -> None:
        if self._keeps_served or receipt.outcome == "refused":
            self._receipts[receipt.query.query_id] = receipt

    def take(self, query_id: int) -> Receipt | None:
        """The receipt, which is forgotten with this."""
        return self._receipts.pop(query_id, None)


class Engine:
    """One run of a world.

    Args:
        asked: the queries, ascending.

    Attributes:
        clairvoyants: policies that must be told all arrivals before ``run``.
    """

    def __init__(
        self, world: World, fleet: Fleet, asked: Iterator[Asked], seed: int, recorder: Recorder
    ) -> None:
        limits, share = world.limits, world.policies.explore
        self._world = world
        self._source = asked
        self._recorder = recorder
        self._events = Events()
        self._receipts = ClosedReceipts(keeps_served=recorder.needs_receipts)
        self._dispatcher = Dispatcher(
            ReadyInstances(
                fleet.variants,
                fleet.device_classes,
                ServingCostModel(
                    fleet.measurements,
                    sizes=SizeModel(fleet.sized),
                    learns=world.learn_online,
                ),
                limits.max_batch,
            ),
            build_policy(SelectionPolicy, world.policies.selection, clairvoyant=True),
            stream(seed, "policy"),
            DispatchLimits(max_queued=limits.max_queued, max_batch=limits.max_batch),
            self._receipts,
            _no_message,
            Exploration(share, stream(seed, "exploration")) if share else None,
            build_advisory(SelectionPolicy, world.policies.advisory.selection),
        )
        self._cluster = SimulatedCluster(world, fleet, seed, self._events, recorder, self)
        planner = _planner(world, self._cluster.pools)
        self._control = ControlDriver(
            planner,
            fleet,
            self._cluster,
            recorder,
            self._dispatcher,
            self._decide,
            limits.control_s,
        )
        self.clairvoyants = [
            policy
            for policy in (
                self._dispatcher.selection,
                getattr(self._dispatcher.selection, "batching", None),
                planner.scaling,
                planner.placement,
                planner.eviction,
                planner.forecaster,
            )
            if isinstance(policy, Clairvoyant)
        ]
        self._asked: dict[int, Asked] = {}
        # A request for a load is left out: the next control tick sees it.
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Complete: self._complete,
            Execute: self._execute,
            Refuse: self._refuse,
            WakeAt: self._wake,
            PolicyFailed: self._complain,
            AskForLoad: lambda _: None,
        }
        self._done: SimulatedBatch  # the batch whose queries are answered
        self._count = 0
        self._wake_s = inf
        self._source_ended = False
        self._shut_at_s = inf

    def run(self, progress: Progress | None = None) -> None:
        """Let everything happen, until every query has come out."""
        self._cluster.open()
        self._control.tick(0.0, at_once=self._world.warm_start)
        for worker in list(self._cluster.workers.values()):
            self.on_ready(worker)
        plan_faults(self._world.faults, self._cluster, self._events, self.on_batch_done)
        limits = self._world.limits
        self._events.at(limits.tick_ms / 1e3, self._tick)
        self._events.at(limits.control_s, self._control_tick, progress)
        events, source = self._events, self._source
        upcoming = next(source, None)
        while upcoming is not None:
            events.happen_until(upcoming.arrival_s)
            self._ask(upcoming)
            upcoming = next(source, None)
        self._source_ended = True
        self._recorder.summary.span_s = self._world.duration_s or events.now_s
        self._shut_at_s = events.now_s + limits.drain_s
        while self._asked:
            events.happen()
        self._recorder.summary.end_s = events.now_s
        self._cluster.close()

    def moves(self) -> tuple[int, int]:
        """Another one after each query and each event."""
        return self._count, self._events.happened

    # -- queries ------------------------------------------------------------------------------

    def _ask(self, asked: Asked) -> None:
        """A query leaves its client."""
        self._count = query_id = self._count + 1
        client = asked.client
        self._asked[query_id] = asked
        if not client.delay_s:
            self._arrive(query_id)
        elif self._cluster.is_cut(client.site):
            del self._asked[query_id]
            self._recorder.fail(query_id, asked, asked.arrival_s, UNREACHABLE, "site-cut")
        else:
            self._events.at(asked.arrival_s + client.delay_s, self._arrive, query_id)

    def _arrive(self, query_id: int) -> None:
        arrival_s, task, client, size = self._asked[query_id]
        deadline_s = arrival_s + client.latency_s - client.delay_s
        # As ``QueryView(...)``, whose constructor is a Python function: half as long.
        told = (query_id, task, arrival_s, deadline_s, *client.limits)
        query = tuple.__new__(QueryView, told)
        if size:
            query = query._replace(size=round_size(size), batch_key=size)
        self._decide(tuple.__new__(QueryArrived, (query,)))

    def _decide(self, event: DispatchEvent) -> None:
        """Pass an event to the dispatcher, and carry out its effects."""
        carry_out = self._carry_out
        for effect in self._dispatcher.handle(event, self._events.now_s):
            carry_out[type(effect)](effect)

    def _complain(self, effect: PolicyFailed) -> None:
        self._recorder.summary.complain(effect.message)

    def _execute(self, effect: Execute) -> None:
        now_s = self._events.now_s
        worker = self._cluster.workers.get(effect.worker_id)
        if worker is None or not worker.is_reachable:
            delay_s = self._world.limits.detect_s
            self._events.at(now_s + delay_s, self._batch_unsendable, effect.batch_id)
            return
        asked = self._asked
        items = sum([asked[query_id].client.slo.items for query_id in effect.query_ids])
        batch_id, _, variant_id, query_ids = effect
        batch = (batch_id, variant_id, query_ids, items, worker, now_s, inf, inf, 0)
        size = asked[query_ids[0]].size
        self._cluster.send(SimulatedBatch(*batch, worker.settings, size=size))

    def _batch_unsendable(self, batch_id: int) -> None:
        self._decide(BatchFailed(batch_id, worker_lost=True))

    def on_batch_done(self, running: SimulatedBatch) -> None:
        waited_s = running.start_s - running.dispatch_s - running.worker.one_way_s
        self._done = running
        self._decide(BatchDone(running.batch_id, running.busy_s, waited_s=waited_s))

    def on_batch_returned(self, running: SimulatedBatch, others_s: float) -> None:
        self._decide(BatchReturned(running.batch_id, others_s))

    def _complete(self, effect: Complete) -> None:
        query_id = effect.query_id
        asked, recorder = self._asked.pop(query_id), self._recorder
        receipt = self._take_receipt(query_id) if recorder.needs_receipts else None
        reason = receipt.reason if receipt is not None else None
        client = asked.client
        delay_s = client.delay_s
        reached = not delay_s or not self._cluster.is_cut(client.site)
        answered_s = self._events.now_s + delay_s
        recorder.answer(query_id, asked, self._done, answered_s, reason, reached)

    def _refuse(self, effect: Refuse) -> None:
        query_id = effect.query_id
        asked = self._asked.pop(query_id)
        receipt = self._take_receipt(query_id)
        if receipt is not None and receipt.problem:
            self._recorder.summary.complain(receipt.problem)
        self._recorder.fail(
            query_id, asked, self._events.now_s + asked.client.delay_s, REFUSED, effect.reason.value
        )

    def _take_receipt(self, query_id: int) -> Receipt | None:
        receipt = self._receipts.take(query_id)
        if receipt is not None and self._recorder.receipts is not None:
            self._recorder.receipts.append(receipt)
        return receipt

    # -- workers ------------------------------------------------------------------------------

    def on_ready(self, worker: SimulatedWorker) -> None:
        report = worker.report()
        # As in production: its next batch sets out so that it is there when the one before is done.
        self._decide(WorkerReported(report, lead_s=report.hop_s))

    def on_silent(self, worker: SimulatedWorker) -> None:
        self._control.lose(worker.worker_id, self._events.now_s)
        self._decide(WorkerLost(worker.worker_id))

    # -- time ---------------------------------------------------------------------------------

    def _wake(self, effect: WakeAt) -> None:
        if effect.at_s < self._wake_s:
            self._wake_s = effect.at_s
            self._events.at(effect.at_s, self._woken)

    def _woken(self, _: None) -> None:
        if self._wake_s <= self._events.now_s:
            self._wake_s = inf
            self._decide(Tick())

    def _tick(self, _: None) -> None:
        now_s = self._events.now_s
        if self._dispatcher.queued:  # else nothing can expire, and no worker can be given anything
            self._decide(Tick())
        if now_s >= self._shut_at_s:
            self._shut_at_s = inf
            self._decide(ShutDown())
        if not self._source_ended or self._asked:
            self._events.at(now_s + self._world.limits.tick_ms / 1e3, self._tick)

    def _control_tick(self, progress: Progress | None) -> None:
        now_s, interval_s = self._events.now_s, self._world.limits.control_s
        self._decide(Tick())  # for batches that hang
        self._control.tick(now_s)
        known = self._dispatcher.instances.reports
        for worker in list(self._cluster.workers.values()):
            if worker.is_reachable and worker.free_at_s <= now_s:
                told = known.get(worker.worker_id)
                if told is None or told.variant_ids != worker.report().variant_ids:
                    self.on_ready(worker)  # it was given up, and has come to
        load = Load(self._cluster.take_busy_neighbours(), now_s)
        self._decide(LoadChanged(load, self._control.starting_s))
        if progress is not None:
            progress(now_s, self._count)
        if not self._source_ended or self._asked:
            self._events.at(now_s + interval_s, self._control_tick, progress)


def _no_message(receipt: Receipt, max_batch: int) -> tuple[str, float | None]:
    """Return an empty message: simulated clients read none, and wording one takes longer than
    the rest of a refusal."""
    del receipt, max_batch
    return "", None


def _planner(world: World, pools: tuple[Pool, ...]) -> Planner:
    policies = world.policies
    return Planner(
        build_policy(ScalingPolicy, policies.scaling, clairvoyant=True),  # type: ignore[type-abstract]
        build_policy(PlacementPolicy, policies.placement, clairvoyant=True),  # type: ignore[type-abstract]
        build_policy(EvictionPolicy, policies.eviction, clairvoyant=True),  # type: ignore[type-abstract]
        build_policy(Forecaster, policies.forecast, clairvoyant=True),  # type: ignore[type-abstract]
        PlanLimits.of(pools),
        build_advisory(ScalingPolicy, policies.advisory.scaling),  # type: ignore[type-abstract]
    )
