"""The members of a simulated cluster: gateways and workers, as thin drivers of the machines.

They say and do the same as ``live/front/gateway``, ``live/front/remote_workers``,
``live/worker/pool`` and ``live/worker/device``, without tensors, threads and sockets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modelless.controller.control.messages import MemberReport, Replica
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.control.served_versions import Service
from modelless.controller.device.machine import Device
from modelless.controller.device.messages import (
    BatchEnded,
    BatchHandedIn,
    Free,
    FreeEnded,
    LoadEnded,
    LoadFailed,
    Ordered,
    ReportReady,
    ResidencyChange,
    StartBatch,
    StartLoad,
    TurnBatchBack,
)
from modelless.controller.device.messages import Tick as DeviceTick
from modelless.controller.device.messages import WakeAt as DeviceWakeAt
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import (
    Advised,
    AskForLoad,
    BatchDone,
    BatchFailed,
    BatchReturned,
    CatalogChanged,
    Complete,
    DispatchEvent,
    Execute,
    LoadChanged,
    PolicyFailed,
    QueryArrived,
    QueryCancelled,
    Refuse,
    ShutDown,
    Tick,
    WakeAt,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.messages import Orders
from modelless.policies.discovery import build_policy
from modelless.policies.seams import SelectionPolicy
from modelless.policies.views import QueryView, WorkerState
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement
from tests.simtest import fleet
from tests.simtest.fleet import Knowledge
from tests.simtest.world import GoneError, Process, Respond, Timer

if TYPE_CHECKING:
    from tests.simtest.cluster import Cluster

EXCHANGE_S, LEAST_PAUSE_S, AGAIN_S = 1.0, 0.05, 0.5
PATIENCE_S = 5.0
FIRST_ANSWER_S, MOST_LOADING_S = 5.0, 10.0
TICK_S, IDLE_TICK_S = 0.05, 0.1
GOODBYE_S = 1.0
BELIEVED_GONE_S = 5.0
MOST_DRAIN_S = 5.0
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
    """One query as its client knows it. Times are the world's, seconds.

    Attributes:
        number: of the query in the run.
        scope, items, min_accuracy_percent, max_cost_usd, priority, tenant, serve_late: as asked.
        latency_s: until the deadline.
        has_default_deadline: the client named no deadline.
        gateway: that took it; empty if none did.
        query_id: there.
        arrived_s: when it came to the gateway.
        ends: what became of it, with the time and the reason.
    """

    number: int
    scope: str
    items: int
    latency_s: float
    min_accuracy_percent: float
    max_cost_usd: float
    priority: int
    tenant: str
    serve_late: bool
    has_default_deadline: bool
    gateway: str = ""
    query_id: int = 0
    arrived_s: float = 0.0
    ends: list[tuple[str, float, str]] = field(default_factory=list)


class Ran(NamedTuple):
    """A worker's answer: the batch has run; see ``live/worker/batch_replies``."""

    busy_s: float
    waited_s: float
    others_s: float


class TurnedBack(NamedTuple):
    """A worker's answer: it has not accepted the batch."""

    others_s: float
    holds: WorkerReport | None


class FailedBatch(NamedTuple):
    """A worker's answer: the engine raised."""

    problem: str


class LocalDevice:
    """A driver of a device: its engines are times drawn from the table.

    Args:
        process: that owns it.
        cluster: where it is.
        device_class, memory_bytes, sizes, pool, most_waiting: as for ``Device``.
    """

    def __init__(
        self,
        process: Member,
        cluster: Cluster,
        device_class: str,
        sizes: tuple[str, ...],
        most_waiting: float,
    ) -> None:
        self._process, self._cluster = process, cluster
        setup = cluster.setup
        self.machine = Device(
            process.name,
            device_class,
            setup.memory_mib * fleet.MIB,
            process.now_s,
            sizes=(device_class, *sizes),
            pinned=setup.pinned,
            most_waiting=most_waiting,
        )
        self._rng = cluster.world.rng("engine", process.name)
        self.engines: dict[int, Placement] = {}
        self.loading: StartLoad | None = None
        self.freeing: set[int] = set()
        self._running: tuple[StartBatch | Free, int, Any] | None = None  # by the batch thread
        self._waiting: deque[tuple[StartBatch | Free, int, Any]] = deque()
        self._handed_in: dict[int, tuple[int, Any]] = {}
        self._changes: list[ResidencyChange] = []
        self.all_changes: list[ResidencyChange] = []
        self._wake: Timer | None = None
        self._busy_s, self._asked_s = 0.0, process.now_s

    def run(
        self,
        batch_id: int,
        variant_id: str,
        items: int,
        callback: Any,
        expected_s: float = 0.0,
        patience_s: float = inf,
    ) -> None:
        """See ``live/worker/device``."""
        self._handed_in[batch_id] = items, callback
        self._handle(BatchHandedIn(batch_id, variant_id, expected_s, patience_s))

    def obey(self, orders: Orders, in_use: set[str], known: Knowledge) -> None:
        """See ``live/worker/device``."""
        effects = [
            each for each in orders.effects if getattr(each, "variant_id", None) in known.variants
            or not hasattr(each, "variant_id")
        ]  # fmt: skip
        self._handle(Ordered(effects, tuple(sorted(in_use))))

    @property
    def jobs(self) -> list[StartBatch | Free]:
        """What the batch thread does and has to do."""
        jobs = [self._running, *self._waiting]
        return [job[0] for job in jobs if job is not None]

    def report(self) -> WorkerReport:
        """The variants that are ready, for dispatch."""
        machine = self.machine
        return WorkerReport(machine.worker_id, machine.device_class, machine.ready)

    def state(self, in_use: set[str]) -> WorkerState:
        """The device as planning sees it."""
        now_s = self._process.now_s
        share = self._busy_s / max(now_s - self._asked_s, 1e-9)
        self._busy_s, self._asked_s = 0.0, now_s
        return self.machine.state(in_use, min(share, 1.0), now_s)

    def take_changes(self) -> tuple[ResidencyChange, ...]:
        """Loads and unloads that ended since the last call."""
        taken, self._changes = tuple(self._changes), []
        return taken

    # -- events and effects -------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        process = self._process
        effects = self.machine.handle(event, process.now_s)
        self._cluster.world.note(process.name, event, effects)
        for effect in effects:
            self._carry_out(effect)
        self._cluster.checks.check_device(self)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, StartBatch):
            items, callback = self._handed_in.pop(effect.batch_id)
            self._cluster.checks.check_batch_start(self, effect)
            self._put((effect, items, callback))
        elif isinstance(effect, TurnBatchBack):
            _, callback = self._handed_in.pop(effect.batch_id)
            holds = None if effect.is_held else self.report()
            callback(TurnedBack(effect.others_s, holds))
        elif isinstance(effect, StartLoad):
            self._start_load(effect)
        elif isinstance(effect, Free):
            self._cluster.checks.check_free(self, effect)
            self.freeing.add(effect.copy_id)
            self._put((effect, 0, None))
        elif isinstance(effect, ReportReady):
            self._process.on_device_change()
        elif isinstance(effect, ResidencyChange):
            self._changes.append(effect._replace(at_s=self._process.epoch_s))
            self.all_changes.append(effect)
        elif isinstance(effect, DeviceWakeAt):
            if self._wake is not None:
                self._wake.cancel()
            delay_s = effect.at_s - self._process.now_s
            self._wake = self._process.after(delay_s, lambda: self._handle(DeviceTick()))

    def _start_load(self, effect: StartLoad) -> None:
        self._cluster.checks.check_load_start(self, effect)
        self.loading = effect
        placement = Placement(effect.variant_id, effect.device_class)
        took_s = fleet.load_s(placement) * self._rng.uniform(0.8, 1.3) * self._process.slow

        def end() -> None:
            self.loading = None
            if self._cluster.fails_to_load(effect.variant_id, self._rng):
                self._handle(LoadFailed(effect.copy_id, "the engine does not like it"))
                return
            self.engines[effect.copy_id] = placement
            size = fleet.memory_bytes(placement)
            self._handle(LoadEnded(effect.copy_id, size, took_s))

        self._process.after(took_s, end)

    def _put(self, job: tuple[StartBatch | Free, int, Any]) -> None:
        self._waiting.append(job)
        if self._running is None:
            self._work()

    def _work(self) -> None:
        """The batch thread: one job at a time, in order."""
        self._running = effect, items, callback = self._waiting.popleft()
        if isinstance(effect, Free):
            took_s = 0.002

            def end() -> None:
                del self.engines[effect.copy_id]
                self.freeing.discard(effect.copy_id)
                self._handle(FreeEnded(effect.copy_id, took_s))
        else:
            placement = self.engines[effect.copy_id]
            noise = min(max(self._rng.gauss(1.0, 0.08), 0.8), 1.4)
            took_s = fleet.p50_s(placement, items) * noise * self._process.slow

            def end() -> None:
                self._busy_s += took_s
                others = self.machine
                self._handle(BatchEnded(effect.batch_id, took_s))
                if self._cluster.fails_batch(placement.variant_id, self._rng):
                    callback(FailedBatch("the engine raised"))
                    return
                callback(Ran(took_s, 0.0, others.remaining_s(self._process.now_s)))

        def go_on() -> None:
            self._running = None
            if self._waiting:
                self._work()
            end()

        self._process.after(took_s, go_on)


class Member(Process, ABC):
    """What a gateway and a worker have in common: how they talk to the control process.

    Args:
        cluster: where it is.
        name: of the process.
        pool: that it belongs to.
        rollout: that it belongs to.
        knowledge: as read from the store at its start.
        device_class: of its device; empty for a gateway without one.
        most_waiting: as for ``Device``.
    """

    is_gateway = False

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        pool: str,
        rollout: str,
        knowledge: Knowledge,
        device_class: str,
        most_waiting: float = inf,
    ) -> None:
        super().__init__(cluster.world, name)
        self.cluster, self.pool, self.knowledge = cluster, pool, knowledge
        self.began_s = self.epoch_s
        self.rollout = rollout
        self.is_starting = True
        self.is_leaving = False
        self.service = Service()
        self.epoch = 0  # of the control process that it obeyed last
        self.device: LocalDevice | None = None
        if device_class:
            sizes = cluster.setup.sizes
            self.device = LocalDevice(self, cluster, device_class, sizes, most_waiting)
        self.control = ""
        self._orders: Orders | None = None
        self._is_urgent = self._is_hurried = False
        self._pause: Timer | None = None
        self._may_report_s = 0.0
        self._is_exchanging = False
        self.heard_s = 0.0  # when control answered last, on the world's clock

    def start(self) -> None:
        """Begin to talk to the control process, and to wait for leave to serve."""
        self._exchange()
        self._heed()
        self._follow("")
        self.after(FIRST_ANSWER_S, self._begin_serving_unheard)
        self._end_start_s = self.now_s + MOST_LOADING_S + FIRST_ANSWER_S
        self.after(0.05, self._look_for_leave)

    def is_a(self, role: str) -> bool:
        """Whether it is a gateway or a worker, or is loading, resizing, starting or leaving."""
        device = self.device
        return {
            "starting": self.is_starting,
            "leaving": self.is_leaving,
            "loading": device is not None and device.loading is not None,
            "resizing": device is not None and bool(device.machine.resizing_to),
        }.get(role, self.name.startswith(role))

    # -- control ------------------------------------------------------------------------------

    def call_control(
        self,
        method: str,
        arguments: tuple[Any, ...],
        reply: Respond,
        fail: Any,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """See ``live/control/control_link``: a call that fails finds the process anew."""
        self.control = self.control or self.cluster.control_name
        asked = self.control

        def on_failure(error: Exception) -> None:
            if self.control == asked:
                self.control = ""
            fail(error)

        def on_reply(result: Any) -> None:
            if isinstance(result, Exception):
                on_failure(result)
            else:
                reply(result)

        self.world.network.call(self, asked, method, arguments, on_reply, on_failure, patience_s)

    @abstractmethod
    def make_report(self) -> MemberReport:
        """Return the report of this moment; its counts begin anew."""

    @abstractmethod
    def obey(self, orders: Orders) -> None:
        """Carry out what control has answered."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether reports may come once in a while."""

    @abstractmethod
    def on_device_change(self) -> None:
        """Other variants are ready than before."""

    def on_service(self, service: Service) -> None:
        """Other versions are in service."""
        self.service = service

    def on_knowledge(self) -> None:
        """The store has told of more versions."""

    @property
    def replica(self) -> Replica:
        """What this process is."""
        return Replica("", self.rollout, self.began_s, self.is_starting)

    def hurry(self, *, urgent: bool = False) -> None:
        """Report as soon as may be; see ``live/pace``."""
        self._is_urgent = self._is_urgent or urgent
        self._is_hurried = True
        if self._pause is not None and not self._is_exchanging:
            self._pause.cancel()
            self._pause = self.after(self._may_report_s - self.now_s, self._exchange)

    def take_urgency(self) -> bool:
        """Whether the report that is made now is urgent."""
        is_urgent, self._is_urgent = self._is_urgent, False
        return is_urgent

    def _exchange(self) -> None:
        if self.is_leaving:
            return
        self._is_exchanging, self._is_hurried = True, False
        report = self.make_report()
        self.call_control("exchange", (report,), self._on_orders, self._on_silence)

    def _on_orders(self, orders: Orders) -> None:
        self.heard_s = self.world.now_s
        self.cluster.checks.check_obeyed(self, orders)
        self.world.note(self.name, orders.effects)
        self.obey(orders)
        if self.is_starting:
            self._orders = orders
        self._rest()

    def _on_silence(self, error: Exception) -> None:
        self.world.note(self.name, f"no answer: {error}")
        self._rest()

    def _rest(self) -> None:
        self._is_exchanging = False
        self._may_report_s = self.now_s + LEAST_PAUSE_S
        most_s = LEAST_PAUSE_S if self._is_hurried else EXCHANGE_S if self.is_settled else 0.1
        self._pause = self.after(most_s, self._exchange)

    def _heed(self) -> None:
        def on_call(is_called: bool) -> None:
            if is_called:
                self.hurry()
            self._heed()

        self.call_control(
            "called", (self.name,), on_call, lambda _: self.after(AGAIN_S, self._heed)
        )

    def _follow(self, token: str) -> None:
        def on_versions(service: Service) -> None:
            if service.token != token:
                self.world.note(self.name, service.token)
                self.on_service(service)
                if any(each not in self.knowledge.variants for each in service.in_service):
                    newer = self.cluster.store.read()
                    if newer is None:
                        self.after(AGAIN_S, lambda: self._follow(token))
                        return
                    self.knowledge = newer
                    self.on_knowledge()
            self._follow(service.token)

        self.call_control(
            "versions", (token,), on_versions,
            lambda _: self.after(AGAIN_S, lambda: self._follow(token)),
        )  # fmt: skip

    # -- start and end ------------------------------------------------------------------------

    def _begin_serving_unheard(self) -> None:
        if self._orders is None:
            self._begin_serving()

    def _look_for_leave(self) -> None:
        """See ``live/successor``."""
        if not self.is_starting:
            return
        orders = self._orders
        if (
            orders is not None
            and (not orders.predecessor_id or (not orders.lacking and self.is_ready))
        ) or self.now_s > self._end_start_s:
            self._begin_serving()
        else:
            self.after(0.05, self._look_for_leave)

    @property
    def is_ready(self) -> bool:
        """Whether it could serve."""
        return True

    def _begin_serving(self) -> None:
        if self.is_starting:
            self.is_starting, self._orders = False, None
            self.cluster.serve.on_ready(self)

    def leave(self) -> None:
        """Finish what it has, say goodbye and end."""
        raise NotImplementedError

    def say_goodbye(self, report: MemberReport) -> None:
        """Send the last report and end, whether it arrives or not."""
        self.is_leaving = True

        def end(_: object) -> None:
            if self.is_alive:
                self.end()

        self.call_control("leave", (report,), end, end, GOODBYE_S)


class Worker(Member):
    """A pool's worker; see ``live/worker/pool``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, most_waiting=1)
        self._batches = 0
        self._last_s = self.now_s

    def make_report(self) -> MemberReport:
        device, now_s = self.device, self.now_s
        assert device is not None
        report = MemberReport(
            self.name,
            is_gateway=False,
            state=device.state(device.machine.in_use),
            failed_loads=dict(device.machine.failed_loads),
            interval_s=now_s - self._last_s,
            queued=max(device.machine.batches - 1, 0),
            host=self.name,
            pool=self.pool,
            changes=device.take_changes(),
            replica=self.replica,
        )
        self._last_s = now_s
        return report

    def obey(self, orders: Orders) -> None:
        assert self.device is not None
        self.device.obey(orders, self.device.machine.in_use, self.knowledge)

    @property
    def is_settled(self) -> bool:
        assert self.device is not None
        return not self.device.machine.is_empty

    def on_device_change(self) -> None:
        self.hurry()

    def answer(self, method: str, arguments: tuple[Any, ...], respond: Respond) -> None:
        """``run_batch``: the only call that a worker takes."""
        assert method == "run_batch", method
        assert self.device is not None
        variant_id, items, expected_s, patience_s = arguments
        device, came_s = self.device, self.now_s
        has_others = device.machine.remaining_s(came_s) > 0.0
        self._batches += 1

        def done(result: Ran | TurnedBack | FailedBatch) -> None:
            if isinstance(result, Ran):
                waited_s = max(self.now_s - came_s - result.busy_s, 0.0) if has_others else 0.0
                result = result._replace(waited_s=waited_s)
            respond(result)

        device.run(self._batches, variant_id, items, done, expected_s, patience_s)

    def leave(self) -> None:
        assert self.device is not None
        if self.device.machine.batches and self.now_s < self._leave_by_s:
            self.after(0.1, self.leave)
            return
        self.say_goodbye(MemberReport(self.name, False, None))

    def begin_to_leave(self) -> None:
        """Leave when what was handed in is done."""
        self._leave_by_s = self.now_s + MOST_DRAIN_S
        self.leave()


class Gateway(Member):
    """A gateway; see ``live/front/gateway`` and ``live/front/frontend``."""

    is_gateway = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.cluster.settings
        self._model = fleet.make_model(learns=True) if self.cluster.setup.learns else fleet.MODEL
        self.dispatcher = Dispatcher(
            ReadyInstances(self.knowledge.variants, fleet.CLASSES, self._model, fleet.MAX_BATCH),
            build_policy(SelectionPolicy, settings.policies.selection),
            np.random.default_rng(settings.seed),
            LIMITS,
        )
        self.arms = TrialArms(settings.seed, self.name, self.dispatcher.instances.is_served)
        self.open: dict[int, Asked] = {}
        self.taken: list[Asked] = []
        self.counted: dict[str, int] = {}  # outcomes that its reports told of
        self.batches: dict[int, Execute] = {}
        self.directory: dict[str, WorkerReport] = {}
        self._next_query = 0
        self._shares: Mapping[str, Mapping[Placement, float]] = {}
        self._starting_s: Mapping[str, float] = {}
        self._is_at_rest = False
        self.is_draining = False
        self._reported_s = self._refreshed_s = self.now_s
        self._busy_neighbours = 0.0
        self._wake: Timer | None = None
        self._wake_s = inf
        self._gone: dict[str, float] = {}

    def start(self) -> None:
        self.on_device_change()
        super().start()
        self._tick()

    # -- queries ------------------------------------------------------------------------------

    def take(self, asked: Asked) -> None:
        """A query comes in."""
        self._next_query += 1
        asked.gateway, asked.query_id = self.name, self._next_query
        asked.arrived_s = self.world.now_s
        self.open[asked.query_id] = asked
        self.taken.append(asked)
        query = QueryView(
            asked.query_id,
            self.arms.assign_arm(asked.scope, asked.query_id, asked.tenant),
            self.now_s,
            self.now_s + asked.latency_s,
            asked.min_accuracy_percent,
            asked.max_cost_usd,
            asked.priority,
            asked.items,
            None,
            asked.tenant,
            asked.serve_late,
            False,
            asked.has_default_deadline,
        )
        self.decide(QueryArrived(query))

    def cancel(self, asked: Asked) -> None:
        """The client goes away before its answer."""
        if self.open.pop(asked.query_id, None) is not None:
            asked.ends.append(("cancelled", self.world.now_s, ""))
            self.decide(QueryCancelled(asked.query_id))

    def decide(self, event: DispatchEvent) -> None:
        """Pass an event to the dispatcher, and carry out its effects."""
        effects = self.dispatcher.handle(event, self.now_s)
        is_large = isinstance(event, (CatalogChanged, LoadChanged))
        self.world.note(self.name, type(event) if is_large else event, effects)
        for effect in effects:
            if isinstance(effect, Execute):
                self._run_batch(effect)
        for effect in effects:
            if isinstance(effect, (Complete, Refuse)):
                self._end_query(effect)
            elif isinstance(effect, WakeAt):
                self._wake_at(effect.at_s)
            elif isinstance(effect, AskForLoad):
                self.hurry(urgent=True)
            elif isinstance(effect, PolicyFailed):
                self.world.fail("policy failed", effect.message)

    def _end_query(self, effect: Complete | Refuse) -> None:
        asked = self.open.pop(effect.query_id, None)
        receipt = self.dispatcher.receipt(effect.query_id)
        self.cluster.checks.check_end(self, asked, receipt, effect)
        if asked is None or receipt is None:
            return
        if isinstance(effect, Complete):
            asked.ends.append(("answered", self.world.now_s, receipt.variant_id))
            self.arms.count_answer(receipt, lambda: None)
        else:
            asked.ends.append(("refused", self.world.now_s, effect.reason.value))
            self.arms.count_refusal(receipt)

    # -- batches ------------------------------------------------------------------------------

    def _run_batch(self, batch: Execute) -> None:
        self.batches[batch.batch_id] = batch
        items = sum(self.dispatcher.receipt(each).query.items for each in batch.query_ids)
        if self.device is not None and batch.worker_id == self.name:
            self.device.run(
                batch.batch_id, batch.variant_id, items, lambda r: self._on_batch(batch, r)
            )
            return
        expected_s, patience_s = self.dispatcher.patience(batch.batch_id, self.now_s)
        if batch.worker_id not in self.cluster.serve.routable(self):
            self.after(0.0, lambda: self._on_batch(batch, GoneError(batch.worker_id)))
            return
        hop_s = self.cluster.setup.hop_s
        self.world.network.call(
            self,
            batch.worker_id,
            "run_batch",
            (batch.variant_id, items, max(expected_s - hop_s, 0.0), patience_s),
            lambda result: self._on_batch(batch, result),
            lambda error: self._on_batch(batch, error),
            30.0,
        )

    def _on_batch(self, batch: Execute, result: Any) -> None:
        batch_id = batch.batch_id
        is_again = self.batches.pop(batch_id, None) is None
        if is_again:
            self.world.fail("a call ends once", f"batch {batch_id} of {self.name}")
        if isinstance(result, (Ran, TurnedBack)):
            others_s = max(result.others_s - self.cluster.setup.hop_s, 0.0)
            result = result._replace(others_s=others_s)
        if isinstance(result, TurnedBack):
            if batch.worker_id == self.name:
                self.on_device_change()
            elif result.holds is not None and result.holds.worker_id in self.directory:
                self.directory[result.holds.worker_id] = result.holds
                self._tell_of_others()
            event: DispatchEvent = BatchReturned(batch_id, result.others_s)
        elif isinstance(result, Ran):
            is_own = batch.worker_id == self.name
            others_s = 0.0 if is_own else result.others_s
            event = BatchDone(batch_id, result.busy_s, others_s, result.waited_s)
        else:
            is_lost = isinstance(result, GoneError)
            if is_lost:
                self._gone[batch.worker_id] = self.now_s + BELIEVED_GONE_S
            event = BatchFailed(batch_id, worker_lost=is_lost)
        self.decide(event)
        if self.world.network.repeat:  # an answer may come twice
            self.decide(event)

    # -- time ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.open_queries or dispatcher.quarantined:
            self.decide(Tick())
        if self.now_s - self._refreshed_s >= 1.0:
            self._refreshed_s = self.now_s
            self._tell_load()
            self.on_device_change()
            self._tell_of_others()
        self.after(TICK_S if dispatcher.open_queries else IDLE_TICK_S, self._tick)

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            if self._wake_s <= at_s:
                return
            self._wake.cancel()
        self._wake_s = at_s
        self._wake = self.after(at_s - self.now_s, self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        self.decide(Tick())

    # -- control ------------------------------------------------------------------------------

    def make_report(self) -> MemberReport:
        now_s, device, dispatcher = self.now_s, self.device, self.dispatcher
        interval_s, self._reported_s = now_s - self._reported_s, now_s
        counters = dispatcher.take_counters()
        for outcome, count in counters.outcomes.items():
            self.counted[outcome] = self.counted.get(outcome, 0) + count
        return MemberReport(
            self.name,
            is_gateway=True,
            state=device.state(dispatcher.in_use(self.name)) if device is not None else None,
            failed_loads=dict(device.machine.failed_loads) if device is not None else {},
            interval_s=interval_s,
            arrivals=counters.arrivals,
            unmet=counters.unmet,
            outcomes=counters.outcomes,
            served=counters.served,
            kinds=counters.kinds,
            held=dispatcher.held,
            open_queries=dispatcher.open_by_scope(),
            queued=dispatcher.queued,
            host=self.name,
            trials=self.arms.take_counts(),
            pool=GATEWAYS,
            changes=device.take_changes() if device is not None else (),
            meters=counters.meters,
            quarantined={n: str(sign) for n, sign in dispatcher.quarantined.items()},
            is_urgent=self.take_urgency(),
            replica=self.replica,
        )

    @property
    def is_ready(self) -> bool:
        served = self.dispatcher.instances.is_served
        return self._is_at_rest or all(served(task) for task in ("alpha", "beta"))

    @property
    def is_settled(self) -> bool:
        is_empty = self.device is None or self.device.machine.is_empty
        is_woken = self._is_at_rest and self.dispatcher.open_queries > 0
        return (self.is_ready or not is_empty) and not is_woken

    def obey(self, orders: Orders) -> None:
        self._busy_neighbours = orders.busy_neighbours
        if self.device is not None:
            in_use = self.dispatcher.in_use(self.name)
            self.device.obey(orders, in_use, self.knowledge)
        if orders.shares != self._shares and (orders.shares or orders.is_settled):
            self._shares = orders.shares
            self._advise()
        directory = {report.worker_id: report for report in orders.directory}
        if orders.starting_s != self._starting_s:
            self._starting_s = orders.starting_s
            self._tell_load()
        self._is_at_rest = orders.is_at_rest
        if not orders.is_settled:
            directory = self.directory | directory
        self._gone = {name: until for name, until in self._gone.items() if self.now_s < until}
        for gone in [name for name in directory if name in self._gone]:
            del directory[gone]
        for gone in [name for name in self.directory if name not in directory]:
            self.decide(WorkerLost(gone))
        self.directory = directory
        self._tell_of_others()

    def on_routes(self) -> None:
        """Serve's routers have news."""
        self._tell_of_others()

    def _tell_of_others(self) -> None:
        routable = self.cluster.serve.routable(self)
        hop_s = self.cluster.setup.hop_s
        for report in list(self.directory.values()):
            if report.worker_id not in routable:
                report = report._replace(variant_ids=())
            self._tell(report, hop_s, hop_s)

    def _tell(self, report: WorkerReport, hop_s: float, lead_s: float = 0.0) -> None:
        serving = self.service.serving(report.variant_ids)
        self.decide(WorkerReported(report._replace(variant_ids=serving, hop_s=hop_s), lead_s))

    def _tell_load(self) -> None:
        self.decide(LoadChanged(Load(self._busy_neighbours, self.now_s), self._starting_s))

    def _advise(self) -> None:
        self.decide(Advised(self.arms.add_arms(self._shares)))

    def on_service(self, service: Service) -> None:
        super().on_service(service)
        self.arms.set_trials(service.trials)
        self.on_device_change()
        self._tell_of_others()
        if self._shares:
            self._advise()

    def on_knowledge(self) -> None:
        self.decide(CatalogChanged(self.knowledge.variants, self._model))

    def on_device_change(self) -> None:
        if self.device is not None:
            self._tell(self.device.report(), 0.0)

    def begin_to_leave(self) -> None:
        """Answer what it has, for some seconds; then refuse the rest and leave."""
        self.is_draining = True
        self._leave_by_s = self.now_s + MOST_DRAIN_S
        self.leave()

    def leave(self) -> None:
        if self.dispatcher.open_queries and self.now_s < self._leave_by_s:
            self.after(0.05, self.leave)
            return
        self.decide(ShutDown())
        for asked in self.open.values():  # batches that run: the process ends before they do
            asked.ends.append(("gateway left", self.world.now_s, ""))
        self.open.clear()
        self.say_goodbye(self.make_report())
