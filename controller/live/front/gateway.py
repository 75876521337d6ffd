"""A gateway: queries arrive and are dispatched here, and its own device runs most of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from modelless.common.errors import ModellessError, UnavailableError
from modelless.controller.api.keys import KeyRing
from modelless.controller.api.v2_reply import Reply, render_error, render_json, render_text
from modelless.controller.assembly import build_selection
from modelless.controller.config import Settings, with_changes
from modelless.controller.control.messages import MemberReport
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import (
    AccuraciesRevised,
    BatchReturned,
    CatalogChanged,
    ShutDown,
    Tick,
)
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.control.control_link import ControlLink
from modelless.controller.live.front.access import Access
from modelless.controller.live.front.console.pages import VariantRow
from modelless.controller.live.front.dispatcher_inputs import DispatcherInputs, report_fields
from modelless.controller.live.front.feedback import FeedbackDesk
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.front.interfaces import Respond, RunBatch
from modelless.controller.live.front.receipt_log import ReceiptLog
from modelless.controller.live.front.remote_workers import Overhead, RemoteWorkers
from modelless.controller.live.front.spans import SpanLog
from modelless.controller.live.key_file import KeyFollower
from modelless.controller.live.knowledge import Knowledge, Rereader
from modelless.controller.live.orders import Orders
from modelless.controller.live.recordings import open_dispatcher
from modelless.controller.live.report_pace import EXCHANGE_S, Pace
from modelless.controller.live.successor import Successor
from modelless.controller.live.version_follower import VersionFollower
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack
from modelless.controller.live.worker.device import LocalDevice
from modelless.policies.views import WorkerState
from modelless.variants.estimates import Load
from modelless.variants.registry.versions import Line, name_of
from modelless.variants.runtimes.resident_memory import resident_bytes
from modelless.variants.vocabulary import DeviceClass, Variant

_T = TypeVar("_T")

# Requests that the control loop answers, for the whole cluster.


class ControlRequests:
    """Passes requests on to the control loop, off the path of queries.

    Args:
        control: the control loop.
    """

    def __init__(self, control: ControlLink) -> None:
        self._control = control
        self._tasks: set[asyncio.Task[None]] = set()

    def scrape(self, accept: str, respond: Respond) -> None:
        """Answer with the metrics, in the form that the header ``Accept`` asks for."""
        self._begin(self._control.metrics(accept), lambda found: render_text(*found), respond)

    def pin(self, scope: str, is_pinned: bool, by: str, respond: Respond) -> None:
        """Pin a scope, or unpin it, for somebody."""
        done = render_json({"name": scope, "pinned": is_pinned})
        self._begin(self._control.pin(scope, is_pinned, by), lambda _: done, respond)

    def batch(self, respond: Respond, act: str, *arguments: object) -> None:
        """Begin an offline run, tell its state or cancel it; see ``BatchJobs``."""
        self._begin(self._control.batch(act, *arguments), render_json, respond)

    def _begin(
        self, call: Coroutine[Any, Any, _T], render: Callable[[_T], Reply], respond: Respond
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call, render, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, call: Coroutine[Any, Any, _T], render: Callable[[_T], Reply], respond: Respond
    ) -> None:
        try:
            reply = render(await call)
        except Exception as error:  # noqa: BLE001  (a request that fails says it by its status)
            problem = getattr(error, "cause", error)  # Ray wraps what an actor raises
            if not isinstance(problem, ModellessError):
                problem = UnavailableError(f"the control loop does not answer: {error}", 1.0)
            reply = render_error(problem)
        respond(reply)


# The CPU cores of the machine that a device keeps to.


def cores_of(rank: int, threads: int, devices: int) -> frozenset[int]:
    """Return the CPU cores of one of several equal devices; none if there are too few for all.

    A model that always runs on one core finds its weights in that core's cache, and never shares
    the core with another model.

    Args:
        rank: the device's number, from 0.
        threads: number of cores for each device.
        devices: number of devices.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 0 <= rank < devices or devices * threads > len(cores):
        return frozenset()
    return frozenset(cores[rank * threads : (rank + 1) * threads])


# What operators see of the variants.


def rows_of(knowledge: Knowledge, service: Service) -> list[VariantRow]:
    """Return a row a version: its accuracy, and what one item takes and costs by device class."""
    placements = [
        each
        for each in knowledge.cost_model.placements
        if each.device_class in knowledge.worker_classes
    ]
    times_s = knowledge.cost_model.estimate(placements, 1, Load(0.0, time.monotonic())).p50_s
    p50_s: dict[str, dict[str, float]] = {}
    for (variant_id, device_class), seconds in zip(placements, times_s.tolist(), strict=True):
        p50_s.setdefault(variant_id, {})[device_class] = seconds
    rows = []
    for variant in knowledge.catalog.versions.values():
        took_s = p50_s.get(variant.id, {})
        usd = {
            name: 1e3 * knowledge.device_class(name).cost_usd(each) for name, each in took_s.items()
        }
        state = _state_of(variant, service.lines.get(name_of(variant.id)))
        rows.append(VariantRow(variant.id, variant.accuracy, took_s, usd, state))
    return rows


def _state_of(variant: Variant, line: Line | None) -> str:
    if line is None or line.current == variant.version:
        return "retired" if line is not None and line.retired else "current"
    is_tried = line.trial is not None and line.trial.variant_id == variant.id
    return "on trial" if is_tried else "earlier" if variant.version in line.earlier else "not used"


logger = logging.getLogger(__name__)

TICK_S = 0.02
OWN_TIME_LEARNT = 0.02
OWN_TIME_STEP_S = 0.0003
KEYS_S = 1.0
"""How often it is looked whether keys have changed: a revoked one counts for so long."""
NO_KEYS = KeyRing()
IDLE_TICK_S = 0.1
"""Time to the first tick after a quiet time: a refusal may be this late."""
WHOLE_S = 3600.0
"""How often the garbage collector looks through everything when nothing is open; in busy gateways
half as often."""


class Collector:
    """Collects garbage once a second, of that second alone; and seldom all.

    A collection of everything that is remembered, receipts above all, holds the event loop: 37 ms
    after 10,000 queries, and ever longer. What outlives its second is hardly ever garbage in a
    cycle, which only the collector frees.

    Args:
        now_s: the time, seconds of any clock.
    """

    def __init__(self, now_s: float) -> None:
        self._whole_s = now_s

    def collect(self, now_s: float, *, is_idle: bool) -> None:
        """Collect the last second's garbage, or all if that is due. Call this once a second."""
        if now_s - self._whole_s >= (WHOLE_S if is_idle else 2.0 * WHOLE_S):
            self._whole_s = now_s
            gc.unfreeze()
        gc.collect()
        gc.freeze()


class Gateway:
    """Everything in a gateway's process but its HTTP server.

    Args:
        gateway_id: its id, and that of its device.
        settings: as given to ``modelless up``.
        knowledge: tasks, variants, profiles: read once from the store.
        remote: sends batches to other workers.
        control: takes a report once a second and answers with orders, and tells which versions are
            in service.
        reread: reads the store anew, for versions registered or profiled since.
        rank: the gateway's number, from 0; None if unknown.
        count: number of gateways.
        receipt_log: writes receipts to files; None: nothing does.
        successor: its part in the replacement of another gateway.
        keys: the home's keys; None: there are none.
        spans: exports spans of sampled queries; None: nothing does.
        home: see ``V2Frontend``.
    """

    def __init__(
        self,
        gateway_id: str,
        settings: Settings,
        knowledge: Knowledge,
        remote: RemoteWorkers,
        control: ControlLink,
        reread: Rereader,
        rank: int | None = None,
        count: int = 1,
        receipt_log: ReceiptLog | None = None,
        successor: Successor | None = None,
        keys: KeyFollower | None = None,
        spans: SpanLog | None = None,
        home: Path | None = None,
    ) -> None:
        self.gateway_id = gateway_id
        self._base = self._settings = settings
        self._knowledge = knowledge
        self._tasks_by_name = dict(knowledge.catalog.tasks)
        self._remote = remote
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._dispatcher, self._tape = open_dispatcher(gateway_id, settings, knowledge)
        self._device = self._open_device(rank, count)
        self._keys = keys
        self._access = Access(settings, lambda: keys.ring if keys is not None else NO_KEYS)
        self._desk = FeedbackDesk(
            gateway_id,
            TrialArms(settings.seed, gateway_id, self._dispatcher.instances.is_served),
            self._tasks_by_name,
        )
        self.cluster = ControlRequests(control)
        self.frontend = V2Frontend(
            knowledge.catalog,
            knowledge.servable(),
            self._dispatcher,
            self,
            time.monotonic,
            settings,
            gateway_id,
            self._desk,
            self._access,
            home,
        )
        self._pace = Pace()
        self.frontend.on_load_wanted = partial(self._pace.hurry, urgent=True)
        self._logs = [log for log in (receipt_log, spans) if log is not None]
        self._successor = successor or Successor()
        self._reported_s = self._handed_s = time.monotonic()
        self._own, self._told_own_s = Overhead(0.0, OWN_TIME_LEARNT, time.monotonic), 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._wake_s = 0.0
        self._status: Mapping[str, Any] = {"members": []}  # as the control loop's, before it begins
        self._tasks: list[asyncio.Task[None]] = []
        self._inputs = DispatcherInputs(
            self.frontend.decide, self._desk.arms, remote, time.monotonic
        )
        self._follower = VersionFollower(
            knowledge, reread, control.versions, self._on_service, self._on_knowledge
        )

    def start(self) -> None:
        """Begin to tick, and to exchange reports for orders with the control loop."""
        self._on_device_change()  # an empty device can be loaded: queries may wait for that
        self._remote.start(self._inputs.tell_of_others)
        sys.setswitchinterval(0.0001)  # a finished batch must not wait for the loop's 5 ms
        self._tasks = [
            self._loop.create_task(self._tick_forever()),
            self._loop.create_task(self._exchange_forever()),
            self._loop.create_task(
                self._pace.heed_forever(partial(self._control.called, self.gateway_id))
            ),
            self._loop.create_task(self._follower.follow_forever()),
            self._loop.create_task(self._follow_keys_forever()),
        ]

    def check_health(self) -> None:
        """Raise an error if this gateway cannot serve any more."""
        if self._device is not None:
            self._device.check_health(time.monotonic())
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"a loop of the gateway has ended: {task}")

    async def drain(self, most_s: float) -> None:
        """Let open queries finish for at most ``most_s`` seconds; then refuse the rest, and end."""
        self.frontend.is_draining = True
        self.frontend.console.close()
        end_s = time.monotonic() + most_s
        while self._has_open and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        self.close()
        # with what it has counted since its last report
        await self._control.say_goodbye(self._report(), self._desk.for_others())

    @property
    def _has_open(self) -> bool:
        """Whether queries are open, or requests read or replies rendered aside."""
        return self._dispatcher.open_queries > 0 or self.frontend.is_busy_aside

    def close(self) -> None:
        """Refuse the queries that wait, and stop."""
        for task in self._tasks:
            task.cancel()
        if self._wake is not None:
            self._wake.cancel()
        self.frontend.decide(ShutDown())
        self.frontend.close()
        for log in self._logs:
            log.close(self._dispatcher.receipts)
        if self._tape is not None:
            self._tape.close()
        if self._device is not None:
            self._device.close()

    def status(self) -> Mapping[str, Any]:
        """Return the control loop's last status of the cluster."""
        return self._status

    def variant_rows(self) -> list[VariantRow]:
        """Return what the console shows of each variant."""
        return rows_of(self._knowledge, self._inputs.service)

    # -- batches ------------------------------------------------------------------------------

    def run_batch(self, batch: RunBatch) -> None:
        """See ``interfaces.Host``."""
        if self._device is not None and batch.worker_id == self.gateway_id:
            self._handed_s = time.monotonic()
            self._device.run(batch.batch_id, batch.variant_id, batch.inputs, self._on_local_batch)
        else:
            allowed = self._dispatcher.patience(batch.batch_id, time.monotonic())
            self._remote.run(batch, *allowed, self._on_remote_batch)

    def _on_local_batch(self, batch_id: int, busy_s: float, result: Any) -> None:
        if isinstance(result, TurnedBack):
            self._on_device_change()  # else the batch would be sent there again
            self.frontend.decide(BatchReturned(batch_id, result.others_s))
            return
        # The device runs one batch at a time: whatever is not its time is this process's own.
        self._own.learn(time.monotonic() - self._handed_s - busy_s)
        self.frontend.on_batch_done(batch_id, busy_s, result, lost=False)

    def _on_remote_batch(
        self, batch_id: int, result: Ran | TurnedBack | Exception, lost: bool
    ) -> None:
        if isinstance(result, TurnedBack):
            if result.holds is not None:
                self._inputs.correct(result.holds)  # else the batch would be sent there again
            self.frontend.decide(BatchReturned(batch_id, result.others_s))
        elif isinstance(result, Ran):
            self.frontend.on_batch_done(
                batch_id,
                result.busy_s,
                result.outputs,
                lost=False,
                others_s=result.others_s,
                waited_s=result.waited_s,
            )
        else:
            self.frontend.on_batch_done(batch_id, 0.0, result, lost=lost)

    # -- time ---------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        refreshed_s = time.monotonic()
        collector = Collector(refreshed_s)
        while True:
            await asyncio.sleep(TICK_S if self._dispatcher.open_queries else IDLE_TICK_S)
            now_s = time.monotonic()
            try:
                if self._dispatcher.open_queries or self._dispatcher.quarantined:
                    self.frontend.decide(Tick())
                if now_s - refreshed_s >= 1.0:
                    refreshed_s = now_s
                    self._inputs.tell_load()
                    self._on_device_change()  # again: dispatch forgets a worker that seems lost
                    self._inputs.tell_of_others()
                    for log in self._logs:
                        log.log_new(self._dispatcher.receipts)
                    collector.collect(now_s, is_idle=not self._dispatcher.open_queries)
            except Exception:  # the gateway must outlive whatever a policy does
                logger.exception("a tick failed")

    def wake_at(self, at_s: float) -> None:
        """Tick at this time, or earlier if an earlier tick is due: that one asks for the next."""
        if self._wake is not None and not self._wake.cancelled():
            if self._wake_s <= at_s:
                return
            self._wake.cancel()
        self._wake_s = at_s
        self._wake = self._loop.call_later(max(at_s - time.monotonic(), 0.0), self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        self.frontend.decide(Tick())

    async def _exchange_forever(self) -> None:
        silent = False
        while True:
            try:
                orders = await self._exchange()
                self._obey(orders)
                self._successor.on_orders(orders)
                silent = False
            except Exception as error:  # serving goes on without a control loop
                self._successor.on_failure(error)
                if not silent:
                    logger.warning("the control loop does not answer: %s", error, exc_info=True)
                silent = True
            is_empty = self._device is None or self._device.is_empty
            is_woken = self.frontend.is_at_rest and self._dispatcher.open_queries > 0
            settled = (self.frontend.is_ready or not is_empty) and not is_woken
            await self._pace.pause(EXCHANGE_S if settled else 0.1)

    async def _exchange(self) -> Orders:
        """Report, and return the orders; what tenants spent is reported again if that fails."""
        report = self._report()
        try:
            return await self._control.exchange(report, self._desk.for_others())
        except Exception:
            self._access.books.put_back(report.tenants)
            raise

    async def _follow_keys_forever(self) -> None:
        while True:
            await asyncio.sleep(KEYS_S)
            try:
                if self._keys is not None:
                    await asyncio.to_thread(self._keys.follow)
            except (ModellessError, OSError) as error:  # those that were read last still count
                logger.warning("%s", error)

    def _open_device(self, rank: int | None, count: int) -> LocalDevice | None:
        settings = self._settings.gateways
        if settings.device_class is None:
            return None
        device_class = self._knowledge.device_class(settings.device_class)
        return LocalDevice(
            self.gateway_id,
            device_class,
            settings.memory_bytes or device_class.memory_bytes,
            self._knowledge.fetch,
            self._tasks_by_name,
            self._on_device_change,
            self._cores_of(device_class, rank, count),
            [self._knowledge.device_class(name) for name in settings.sizes],
            self._settings.residency.pinned,
            lambda variant_id: self._knowledge.load_s(device_class.name, variant_id),
            lambda variant_id: self._knowledge.item_shapes.get(variant_id),
            self._settings.limits.max_batch,
            record=self._settings.record,
        )

    def take_rank(self, rank: int, count: int) -> None:
        """Set the gateway's number and the number of gateways."""
        if self._device is not None:
            self._device.keep_to(self._cores_of(self._device.device_class, rank, count))

    def _cores_of(self, owned: DeviceClass, rank: int | None, count: int) -> Collection[int]:
        if rank is None or not self._settings.gateways.pin:
            return ()
        return cores_of(rank, owned.threads, count)

    def _state(self) -> WorkerState | None:
        if self._device is None:
            return None
        return self._device.state(self._dispatcher.in_use(self.gateway_id))

    def _report(self) -> MemberReport:
        now_s = time.monotonic()
        interval_s, self._reported_s = now_s - self._reported_s, now_s
        return MemberReport(
            member_id=self.gateway_id,
            is_gateway=True,
            state=self._state(),
            failed_loads=dict(self._device.failed_loads) if self._device is not None else {},
            interval_s=interval_s,
            **report_fields(self._dispatcher),
            resident_bytes=resident_bytes(),
            tasks=len(asyncio.all_tasks()),
            host=platform.node(),
            coverage=self._knowledge.cost_model.coverage(),
            drifts=self._knowledge.cost_model.drifts(),
            trials=self._desk.arms.take_counts(),
            pool=GATEWAYS,
            changes=self._device.take_changes() if self._device is not None else (),
            is_urgent=self._pace.take_urgency(),
            replica=self._successor.replica,
            replies=self.frontend.take_replies(),
            tenants=self._access.books.take_use(),
            feedback=self._desk.arms.take_feedback(),
        )

    def _obey(self, orders: Orders) -> None:
        self._status = orders.status
        self.frontend.console.sample(orders.status, time.time())
        if self._device is not None:
            in_use = self._dispatcher.in_use(self.gateway_id)
            self._device.obey(orders.effects, in_use, self._knowledge.catalog.versions)
        self._desk.obey(orders)
        self._access.books.note_others(orders.tenants)
        self.frontend.is_at_rest = orders.is_at_rest
        self._inputs.obey(orders)

    def _on_service(self, service: Service) -> None:
        """Serve these versions from now on; batches on others still end."""
        was, self._inputs.service = self._inputs.service, service
        if service.revision != self._successor.revision:
            self.change_settings(service.revision, service.changes)
        if service.accuracies_percent != was.accuracies_percent:
            self.frontend.decide(AccuraciesRevised(service.accuracies_percent))
        self._serve()
        self._on_device_change()
        self._inputs.tell_of_others()
        # Last: no worker serves them any more. (Nothing ever served what is gone from the start.)
        if was.token and service.gone != was.gone:
            self._tell_catalog("variants were retired")
        if self._inputs.shares:
            self._inputs.advise()

    def change_settings(self, revision: int, changes: Mapping[str, Any]) -> None:
        """Go by a revision of the settings; one that does not fit changes nothing."""
        before = self._settings
        try:
            settings = with_changes(self._base, changes)
            selection = build_selection(settings)
        except ModellessError as error:
            logger.error("revision %d of the settings: %s", revision, error)
            return
        self._settings, self._successor.revision = settings, revision
        if settings == before:
            return
        if self._tape is not None:
            self._tape.cut("settings were changed")
        self._access.change(settings)
        self.frontend.change(settings)
        was, now = before.policies, settings.policies
        if (was.selection, was.explore, was.advisory) != (now.selection, now.explore, now.advisory):
            shares = self._desk.arms.add_arms(self._inputs.shares)
            self.frontend.decide(selection._replace(shares=shares))
        self._pace.hurry()  # to report it

    def _on_knowledge(self, knowledge: Knowledge) -> None:
        """Use what was registered or profiled since the start; none of it is loaded yet."""
        self._knowledge = knowledge
        self._tasks_by_name.update(knowledge.catalog.tasks)
        self._tell_catalog("variants were registered or profiled that it did not begin with")
        self._serve()

    def _serve(self) -> None:
        served = self._knowledge.served_by(self._inputs.service)
        self.frontend.names.servable = served.servable()
        self.frontend.serve(self._inputs.service, served.catalog)

    def _tell_catalog(self, change: str) -> None:
        if self._tape is not None:
            self._tape.cut(change)
        knowledge, gone = self._knowledge, self._inputs.service.gone
        variants = {
            name: each for name, each in knowledge.catalog.versions.items()
            if name_of(name) not in gone
        }  # fmt: skip
        self.frontend.decide(CatalogChanged(variants, knowledge.cost_model))

    def _on_device_change(self) -> None:
        """Report the device to the dispatcher, with the time to hand it a batch."""
        if self._device is not None:
            if abs(self._own.seconds - self._told_own_s) > OWN_TIME_STEP_S:
                self._told_own_s = self._own.seconds
            self._inputs.tell(self._device.report(), self._told_own_s)
