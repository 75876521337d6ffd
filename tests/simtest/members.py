"""The members of a simulated cluster: gateways and workers, as thin drivers of the machines.

They say and do the same as ``live/front/gateway``, ``live/front/remote_workers``,
``live/worker/pool`` and ``live/worker/device``, without tensors, threads and sockets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from modelless.controller.control.messages import MemberReport, Replica
from modelless.controller.control.served_versions import Service
from modelless.controller.device import messages as device
from modelless.controller.device.machine import Device
from modelless.controller.device.messages import ResidencyChange, StartBatch, StartLoad
from modelless.controller.dispatch import messages as dispatch
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.exploration import Exploration
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import Complete, Execute, Refuse, WorkerReport
from modelless.controller.dispatch.ready_instances import ReadyInstances
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.front.dispatcher_inputs import DispatcherInputs, report_fields
from modelless.controller.live.orders import Orders
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack
from modelless.policies.discovery import build_policy
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import QueryView
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Placement
from tests.simtest import fleet
from tests.simtest.world import Call, GoneError, Process, Respond, Task, Timer

EXCHANGE_S, LEAST_PAUSE_S, AGAIN_S = 1.0, 0.05, 0.5
PATIENCE_S, GOODBYE_S, BATCH_S = 5.0, 1.0, 30.0
FIRST_ANSWER_S, MOST_LOADING_S, MOST_DRAIN_S = 5.0, 10.0, 5.0
TICK_S, IDLE_TICK_S = 0.05, 0.1
BELIEVED_GONE_S = 5.0
LIMITS = DispatchLimits(
    max_queued=60,
    max_batch=fleet.MAX_BATCH,
    max_hold_s=8.0,
    max_late_s=3.0,
    overdue_factor=6.0,
    overdue_s=1.0,
)
"""Shorter than the default, so that a run of some seconds sees each limit reached."""


@dataclass(slots=True)
class Asked:
    """One query as its client knows it.

    Attributes:
        query: as asked; its deadline is in seconds from its arrival.
        query_id: at the gateway that took it; 0 if none did.
        ends: what became of it, with the time and the reason or the variant.
    """

    query: QueryView
    query_id: int = 0
    ends: list[tuple[str, float, str]] = field(default_factory=list)


def ask(task: str, latency_s: float, min_accuracy_percent: float = 0.0) -> Asked:
    """Return a query with few limits."""
    return Asked(
        QueryView(0, task, 0.0, latency_s, min_accuracy_percent, has_default_deadline=True)
    )


class LocalDevice:
    """A driver of a device: its engines are times drawn from the table."""

    def __init__(self, process: Member, device_class: str, most_waiting: float) -> None:
        self._process, self._cluster = process, process.cluster
        setup = self._cluster.setup
        self.machine = Device(
            process.name,
            device_class,
            setup.memory_mib * fleet.MIB,
            process.now_s,
            sizes=(device_class, *setup.sizes),
            pinned=setup.pinned,
            most_waiting=most_waiting,
        )
        self._rng = process.world.rng("engine", process.name)
        self.engines: dict[int, Placement] = {}
        self.loading: StartLoad | None = None
        self.jobs: deque[tuple[Any, int, Respond]] = deque()  # of the batch thread
        self._handed_in: dict[int, tuple[int, Respond]] = {}
        self.changes: list[ResidencyChange] = []
        self._changes_told = 0
        self._wake: Timer | None = None
        self._busy_s, self._asked_s = 0.0, process.now_s

    def run(self, batch_id, variant_id, items, callback, expected_s=0.0, patience_s=inf) -> None:
        """Take a batch, and call back with what became of it."""
        self._handed_in[batch_id] = items, callback
        self._handle(device.BatchHandedIn(batch_id, variant_id, expected_s, patience_s))

    def obey(self, orders: Orders, in_use: set[str]) -> None:
        known = self._process.knowledge.variants
        effects = [each for each in orders.effects if getattr(each, "variant_id", None) in known
                   or not hasattr(each, "variant_id")]  # fmt: skip
        self._handle(device.Ordered(effects, tuple(sorted(in_use))))

    @property
    def freeing(self) -> set[int]:
        """The copies that are being freed."""
        return {job.copy_id for job, *_ in self.jobs if not isinstance(job, StartBatch)}

    def report(self) -> WorkerReport:
        """The variants that are ready, for dispatch."""
        machine = self.machine
        return WorkerReport(machine.worker_id, machine.device_class, machine.ready)

    def for_report(self, in_use: set[str]) -> dict[str, Any]:
        """What a member's report says of its device."""
        now_s = self._process.now_s
        share = min(self._busy_s / max(now_s - self._asked_s, 1e-9), 1.0)
        self._busy_s, self._asked_s = 0.0, now_s
        told, self._changes_told = self._changes_told, len(self.changes)
        return {
            "state": self.machine.state(in_use, share, now_s),
            "failed_loads": dict(self.machine.failed_loads),
            "changes": tuple(self.changes[told:]),
        }

    def _handle(self, event: Any) -> None:
        process = self._process
        effects = self.machine.handle(event, process.now_s)
        process.world.note(process.name, event, effects)
        for effect in effects:
            self._carry_out(effect)
        self._cluster.checks.check_device(self)

    def _carry_out(self, effect: Any) -> None:
        process, checks = self._process, self._cluster.checks
        if isinstance(effect, StartBatch):
            self._put((effect, *self._handed_in.pop(effect.batch_id)))
        elif isinstance(effect, device.TurnBatchBack):
            _, callback = self._handed_in.pop(effect.batch_id)
            callback(TurnedBack(effect.others_s, None if effect.is_held else self.report()))
        elif isinstance(effect, StartLoad):
            checks.check_load_start(self, effect)
            self.loading = effect
            placement = Placement(effect.variant_id, effect.device_class)
            took_s = fleet.load_s(placement) * self._rng.uniform(0.8, 1.3) * process.slow
            process.after(took_s, partial(self._end_load, effect, placement, took_s))
        elif isinstance(effect, device.Free):
            checks.check_free(self, effect)
            self._put((effect, 0, None))
        elif isinstance(effect, device.ReportReady):
            process.on_device_change()
        elif isinstance(effect, ResidencyChange):
            self.changes.append(effect._replace(at_s=process.epoch_s))
        elif isinstance(effect, device.WakeAt):
            if self._wake is not None:
                self._wake.cancel()
            delay_s = effect.at_s - process.now_s
            self._wake = process.after(delay_s, lambda: self._handle(device.Tick()))

    def _end_load(self, effect: StartLoad, placement: Placement, took_s: float) -> None:
        self.loading = None
        if self._cluster.fails(self._cluster.bad_loads, effect.variant_id, self._rng):
            self._handle(device.LoadFailed(effect.copy_id, "the engine does not like it"))
        else:
            self.engines[effect.copy_id] = placement
            size = fleet.memory_bytes(placement)
            self._handle(device.LoadEnded(effect.copy_id, size, took_s))

    def _put(self, job: Any) -> None:
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._work()

    def _work(self) -> None:
        """The batch thread: one job at a time, in order."""
        effect, items, _ = self.jobs[0]
        took_s = 0.002
        if isinstance(effect, StartBatch):
            noise = min(max(self._rng.gauss(1.0, 0.08), 0.8), 1.4)
            p50_s = fleet.p50_s(self.engines[effect.copy_id], items)
            took_s = p50_s * noise * self._process.slow
        self._process.after(took_s, partial(self._end_work, took_s))

    def _end_work(self, took_s: float) -> None:
        effect, _, callback = self.jobs.popleft()
        if self.jobs:
            self._work()
        if not isinstance(effect, StartBatch):
            del self.engines[effect.copy_id]
            self._handle(device.FreeEnded(effect.copy_id, took_s))
            return
        variant_id = self.engines[effect.copy_id].variant_id
        self._busy_s += took_s
        self._handle(device.BatchEnded(effect.batch_id, took_s))
        if self._cluster.fails(self._cluster.bad_batches, variant_id, self._rng):
            callback(RuntimeError("the engine raised"))
        else:
            callback(Ran(took_s, 0.0, (), self.machine.remaining_s(self._process.now_s)))


class Member(Process):
    """What a gateway and a worker have in common: how they talk to the control process."""

    is_gateway = False
    most_waiting = inf
    device: LocalDevice | None = None

    def __init__(self, cluster, name, pool, rollout, knowledge, device_class) -> None:
        super().__init__(cluster.world, name)
        self.cluster, self.pool, self.rollout, self.knowledge = cluster, pool, rollout, knowledge
        self.began_s = self.epoch_s
        self.is_starting, self.is_leaving = True, False
        self.service = Service()
        self.epoch = 0  # of the control process that it obeyed last
        if device_class:
            self.device = LocalDevice(self, device_class, self.most_waiting)
        self.control = ""
        self._orders: Orders | None = None
        self._is_urgent = self._is_hurried = False
        self._pause: Timer | None = None  # until the next report
        self._may_report_s = 0.0
        self._reported_s = self.now_s

    def start(self) -> None:
        """Begin to talk to the control process, and to wait for leave to serve."""
        self._exchange()
        self.spawn(self._heed())
        self.spawn(self._follow())
        self.spawn(self._wait_for_leave())

    def is_a(self, role: str) -> bool:
        """Whether it is a gateway or a worker, or is loading, resizing, starting or leaving."""
        mine = self.device
        return {
            "starting": self.is_starting,
            "leaving": self.is_leaving,
            "loading": mine is not None and mine.loading is not None,
            "resizing": mine is not None and bool(mine.machine.resizing_to),
        }.get(role, self.name.startswith(role))

    # -- control ------------------------------------------------------------------------------

    def call_control(self, method: str, *arguments: Any, patience_s: float = PATIENCE_S) -> Any:
        """Return what calls the control process, and hands its answer on; see
        ``live/control/control_link``: after a call that fails the process is found anew."""

        def call(reply: Respond) -> None:
            asked = self.control = self.control or self.cluster.control_name

            def on_reply(result: Any) -> None:
                if isinstance(result, Exception) and self.control == asked:
                    self.control = ""
                reply(result)

            Call(self, asked, method, arguments, on_reply, patience_s)

        return call

    def hurry(self, *, urgent: bool = False) -> None:
        """Report as soon as may be; see ``live/report_pace``."""
        self._is_urgent = self._is_urgent or urgent
        self._is_hurried = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = self.after(self._may_report_s - self.now_s, self._exchange)

    def _exchange(self) -> None:
        if self.is_leaving:
            return
        self._pause, self._is_hurried = None, False
        self.call_control("exchange", self.make_report())(self._on_orders)

    def make_report(self) -> MemberReport:
        """Return the report of this moment; its counts begin anew."""
        now_s, self._reported_s, before_s = self.now_s, self.now_s, self._reported_s
        return MemberReport(
            self.name,
            self.is_gateway,
            host=self.name,
            pool=self.pool,
            interval_s=now_s - before_s,
            replica=Replica("", self.rollout, self.began_s, self.is_starting),
            **self.for_report(),
        )

    def _on_orders(self, orders: Any) -> None:
        if isinstance(orders, Exception):
            self.world.note(self.name, f"no answer: {orders}")
        else:
            self.cluster.checks.check_obeyed(self, orders)
            self.world.note(self.name, orders.effects)
            self.obey(orders)
            if self.is_starting:
                self._orders = orders
        self._may_report_s = self.now_s + LEAST_PAUSE_S
        most_s = LEAST_PAUSE_S if self._is_hurried else EXCHANGE_S if self.is_settled else 0.1
        self._pause = self.after(most_s, self._exchange)

    def _heed(self) -> Task:
        """Report when control calls."""
        while True:
            is_called = yield self.call_control("called", self.name)
            if isinstance(is_called, Exception):
                yield AGAIN_S
            elif is_called:
                self.hurry()

    def _follow(self) -> Task:
        """Follow the versions in service."""
        token = ""
        while True:
            service = yield self.call_control("versions", token)
            if isinstance(service, Exception):
                yield AGAIN_S
                continue
            if service.token != token:
                self.world.note(self.name, service.token)
                self.on_service(service)
                if any(each not in self.knowledge.variants for each in service.in_service):
                    newer = self.cluster.store.read()
                    if newer is None:
                        yield AGAIN_S
                        continue
                    self.knowledge = newer
                    self.on_knowledge()
            token = service.token

    def on_service(self, service: Service) -> None:
        """Other versions are in service."""
        self.service = service

    def on_knowledge(self) -> None:
        """The store has told of more versions."""

    # -- start and end ------------------------------------------------------------------------

    def _wait_for_leave(self) -> Task:
        """Begin to serve when control lets it, or is not heard; see ``live/successor``."""
        began_s = self.now_s
        while True:
            yield 0.05
            orders, waited_s = self._orders, self.now_s - began_s
            if orders is None:
                may_serve = waited_s > FIRST_ANSWER_S
            else:
                may_serve = self.is_ready and not orders.lacking
            if may_serve or waited_s > MOST_LOADING_S + FIRST_ANSWER_S:
                break
        self.is_starting, self._orders = False, None
        self.cluster.serve.on_ready(self)

    @property
    def is_ready(self) -> bool:
        """Whether it could serve."""
        return True

    def leave(self) -> Task:
        """Finish what it has, say goodbye and end."""
        by_s = self.now_s + MOST_DRAIN_S
        while self.is_busy and self.now_s < by_s:
            yield 0.05
        yield self.call_control("leave", self.last_report(), patience_s=GOODBYE_S)
        self.end()


class Worker(Member):
    """A pool's worker; see ``live/worker/pool``."""

    most_waiting = 1
    device: LocalDevice
    _batches = 0

    def for_report(self) -> dict[str, Any]:
        machine = self.device.machine
        queued = max(machine.batches - 1, 0)
        return {**self.device.for_report(machine.in_use), "queued": queued}

    def last_report(self) -> MemberReport:
        return MemberReport(self.name, False, None)

    def obey(self, orders: Orders) -> None:
        self.device.obey(orders, self.device.machine.in_use)

    @property
    def is_settled(self) -> bool:
        return not self.device.machine.is_empty

    @property
    def is_busy(self) -> bool:
        return self.device.machine.batches > 0

    def on_device_change(self) -> None:
        self.hurry()

    def answer(self, method: str, arguments: tuple[Any, ...], respond: Respond) -> None:
        """``run_batch``: the only call that a worker takes."""
        variant_id, items, expected_s, patience_s = arguments
        came_s = self.now_s
        has_others = self.device.machine.remaining_s(came_s) > 0.0
        self._batches += 1

        def done(result: Any) -> None:
            if isinstance(result, Ran):
                waited_s = max(self.now_s - came_s - result.busy_s, 0.0) if has_others else 0.0
                result = result._replace(waited_s=waited_s)
            respond(result)

        self.device.run(self._batches, variant_id, items, done, expected_s, patience_s)


class Gateway(Member):
    """A gateway; see ``live/front/gateway`` and ``live/front/frontend``."""

    is_gateway = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.cluster.settings
        self._model = fleet.make_model(learns=True) if self.cluster.setup.learns else fleet.MODEL
        share, own_rng = settings.policies.explore, np.random.default_rng((settings.seed, 1))
        self.dispatcher = Dispatcher(
            ReadyInstances(self.knowledge.variants, fleet.CLASSES, self._model, fleet.MAX_BATCH),
            build_policy(SelectionPolicy, settings.policies.selection),
            np.random.default_rng(settings.seed),
            LIMITS,
            exploration=Exploration(share, own_rng) if share else None,
        )
        self.arms = TrialArms(settings.seed, self.name, self.dispatcher.instances.is_served)
        self.open: dict[int, Asked] = {}
        self.taken: list[Asked] = []
        self.counted: Counter[str] = Counter()  # outcomes that its reports told of
        self._is_at_rest = False
        self._refreshed_s = self.now_s
        self._wake: Timer | None = None
        self._wake_s = inf
        self._gone: dict[str, float] = {}
        self.inputs = DispatcherInputs(self.decide, self.arms, self, lambda: self.now_s)

    def start(self) -> None:
        self.on_device_change()
        super().start()
        self.spawn(self._tick())

    # -- queries ------------------------------------------------------------------------------

    def take(self, asked: Asked) -> None:
        """A query comes in."""
        self.taken.append(asked)
        asked.query_id, query = len(self.taken), asked.query
        self.open[asked.query_id] = asked
        query = query._replace(
            query_id=asked.query_id,
            scope=self.arms.assign_arm(query.scope, asked.query_id, query.tenant),
            arrival_s=self.now_s,
            deadline_s=self.now_s + query.deadline_s,
        )
        self.decide(dispatch.QueryArrived(query))

    def cancel(self, asked: Asked) -> None:
        """The client goes away before its answer."""
        if self.open.pop(asked.query_id, None) is not None:
            asked.ends.append(("cancelled", self.world.now_s, ""))
            self.decide(dispatch.QueryCancelled(asked.query_id))

    def abandon(self, why: str) -> None:
        """The process ends, with the queries that it has."""
        for asked in self.open.values():
            asked.ends.append((why, self.world.now_s, ""))
        self.open.clear()

    def decide(self, event: dispatch.DispatchEvent) -> None:
        """Pass an event to the dispatcher, and carry out its effects."""
        effects = self.dispatcher.handle(event, self.now_s)
        large = (dispatch.CatalogChanged, dispatch.LoadChanged)
        self.world.note(self.name, type(event) if isinstance(event, large) else event, effects)
        for effect in effects:
            if isinstance(effect, Execute):
                self._run_batch(effect)
        for effect in effects:
            if isinstance(effect, (Complete, Refuse)):
                self._end_query(effect)
            elif isinstance(effect, dispatch.WakeAt):
                self._wake_at(effect.at_s)
            elif isinstance(effect, dispatch.AskForLoad):
                self.hurry(urgent=True)
            elif isinstance(effect, dispatch.PolicyFailed):
                self.world.fail("policy failed", effect.message)

    def _end_query(self, effect: Complete | Refuse) -> None:
        asked = self.open.pop(effect.query_id, None)
        receipt = self.dispatcher.receipt(effect.query_id)
        self.cluster.checks.check_end(self, asked, receipt, effect)
        if isinstance(effect, Complete):
            asked.ends.append(("answered", self.world.now_s, receipt.variant_id))
            self.arms.count_answer(receipt, lambda: None)
        else:
            asked.ends.append(("refused", self.world.now_s, effect.reason.value))
            self.arms.count_refusal(receipt)

    # -- batches ------------------------------------------------------------------------------

    def _run_batch(self, batch: Execute) -> None:
        batch_id, worker_id, variant_id = batch.batch_id, batch.worker_id, batch.variant_id
        items = sum(self.dispatcher.receipt(each).query.items for each in batch.query_ids)
        done = partial(self._on_batch, batch)
        if worker_id == self.name:
            self.device.run(batch_id, variant_id, items, done)
            return
        expected_s, patience_s = self.dispatcher.patience(batch_id, self.now_s)
        if not self.reaches(worker_id):
            self.after(0.0, partial(done, GoneError(worker_id)))
            return
        expected_s = max(expected_s - self.cluster.setup.hop_s, 0.0)
        arguments = variant_id, items, expected_s, patience_s
        Call(self, worker_id, "run_batch", arguments, done, BATCH_S)

    def _on_batch(self, batch: Execute, result: Any) -> None:
        batch_id, worker_id = batch.batch_id, batch.worker_id
        if isinstance(result, (Ran, TurnedBack)):
            others_s = max(result.others_s - self.cluster.setup.hop_s, 0.0)
        if isinstance(result, TurnedBack):
            if worker_id == self.name:
                self.on_device_change()
            elif result.holds is not None:
                self.inputs.correct(result.holds)
            event: Any = dispatch.BatchReturned(batch_id, others_s)
        elif isinstance(result, Ran):
            others_s *= worker_id != self.name
            event = dispatch.BatchDone(batch_id, result.busy_s, others_s, result.waited_s)
        else:
            is_lost = isinstance(result, GoneError)
            if is_lost:
                self._gone[worker_id] = self.now_s + BELIEVED_GONE_S
            event = dispatch.BatchFailed(batch_id, worker_lost=is_lost)
        self.decide(event)
        if self.world.network.repeat:  # an answer may come twice
            self.decide(event)

    # -- time ---------------------------------------------------------------------------------

    def _tick(self) -> Task:
        dispatcher = self.dispatcher
        while True:
            if dispatcher.open_queries or dispatcher.quarantined:
                self.decide(dispatch.Tick())
            if self.now_s - self._refreshed_s >= 1.0:
                self._refreshed_s = self.now_s
                self.inputs.tell_load()
                self.on_device_change()
                self.inputs.tell_of_others()
            yield TICK_S if dispatcher.open_queries else IDLE_TICK_S

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            if self._wake_s <= at_s:
                return
            self._wake.cancel()
        self._wake_s = at_s
        self._wake = self.after(at_s - self.now_s, self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        self.decide(dispatch.Tick())

    # -- control ------------------------------------------------------------------------------

    def for_report(self) -> dict[str, Any]:
        dispatcher = self.dispatcher
        fields = report_fields(dispatcher)
        self.counted.update(fields["outcomes"])
        is_urgent, self._is_urgent = self._is_urgent, False
        of_device = {"state": None}
        if self.device is not None:
            of_device = self.device.for_report(dispatcher.in_use(self.name))
        return {
            **of_device,
            **fields,
            "trials": self.arms.take_counts(),
            "is_urgent": is_urgent,
        }

    def last_report(self) -> MemberReport:
        self.decide(dispatch.ShutDown())
        self.abandon("gateway left")  # batches that run: the process ends before they do
        return self.make_report()

    @property
    def is_ready(self) -> bool:
        served = self.dispatcher.instances.is_served
        return self._is_at_rest or all(served(task) for task in fleet.TASKS)

    @property
    def is_settled(self) -> bool:
        is_empty = self.device is None or self.device.machine.is_empty
        is_woken = self._is_at_rest and self.dispatcher.open_queries > 0
        return (self.is_ready or not is_empty) and not is_woken

    @property
    def is_busy(self) -> bool:
        return self.dispatcher.open_queries > 0

    def obey(self, orders: Orders) -> None:
        if self.device is not None:
            self.device.obey(orders, self.dispatcher.in_use(self.name))
        self._is_at_rest = orders.is_at_rest
        self.inputs.obey(orders)

    # -- the way to other workers ---------------------------------------------------------------

    def reaches(self, worker_id: str) -> bool:
        """Whether Serve's routers here know the worker."""
        return worker_id in self.cluster.serve.routable(self)

    def still_there(self, worker_ids: Collection[str]) -> set[str]:
        """Return the workers that were not found gone lately."""
        return {each for each in worker_ids if self.now_s >= self._gone.get(each, -inf)}

    def hop_s(self, worker_id: str) -> float:
        """Return the time that a batch travels, seconds."""
        return self.cluster.setup.hop_s

    def on_service(self, service: Service) -> None:
        was_gone = self.service.gone
        super().on_service(service)
        self.inputs.service = service
        self.arms.set_trials(service.trials)
        self.on_device_change()
        self.inputs.tell_of_others()
        if service.gone != was_gone:
            self.on_knowledge()
        if self.inputs.shares:
            self.inputs.advise()

    def on_knowledge(self) -> None:
        known, gone = self.knowledge.variants, self.service.gone
        variants = {each: known[each] for each in known if name_of(each) not in gone}
        self.decide(dispatch.CatalogChanged(variants, self._model))

    def on_device_change(self) -> None:
        if self.device is not None:
            self.inputs.tell(self.device.report(), 0.0)
