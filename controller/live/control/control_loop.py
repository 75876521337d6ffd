"""The live driver of the control machine: an actor that takes reports and carries effects out.

An actor of its own, outside Serve's controller, so that neither can stall the other. It keeps
nothing that the next reports do not bring again. If the store is away as it starts, it answers
no member until that is back, and serving goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelless.common.errors import (
    EnvironmentUnfitError,
    InvalidInputError,
    ModellessError,
    StoreError,
)
from modelless.controller.api.feedback import Feedback
from modelless.controller.api.tenant_limits import TenantUse
from modelless.controller.assembly import build_changed
from modelless.controller.config import Settings, with_changes
from modelless.controller.control.feedback import stated_low_percent
from modelless.controller.control.machine import DEFAULT_TIMES, ControlTimes
from modelless.controller.control.messages import (
    Advise,
    CallMember,
    ControlEffect,
    ControlEvent,
    FactsChanged,
    ForgetMember,
    MemberLeft,
    MemberReport,
    MemberReported,
    NoteHistory,
    PinsChanged,
    ReviseAccuracies,
    ScalePool,
    Tick,
    VersionEffect,
    WakeAt,
)
from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import Order
from modelless.controller.history.audit import note_act
from modelless.controller.history.feedback import read_feedback, write_feedback
from modelless.controller.live.cluster.release import PROTOCOL, ProtocolError, release_of
from modelless.controller.live.control.batch_jobs import BatchJobs
from modelless.controller.live.control.history_notes import HistoryNotes
from modelless.controller.live.control.last_run import LastRun, read_last_run
from modelless.controller.live.control.metrics import ClusterMetrics, Scalars
from modelless.controller.live.control.pins import read_pins, write_pins
from modelless.controller.live.control.prediction_quality import (
    DriftNotes,
    drifts_status,
    predictions_status,
)
from modelless.controller.live.control.totals import ResidencyTotals, TenantTotals
from modelless.controller.live.control.version_store import VersionStore
from modelless.controller.live.haproxy.counts import ProxyCounts
from modelless.controller.live.knowledge import Knowledge, Rereader, read_knowledge
from modelless.controller.live.logs import log_to
from modelless.controller.live.orders import Orders
from modelless.controller.live.recordings import open_control
from modelless.controller.live.settings_revisions import settings_in_force, write_base
from modelless.controller.live.store_lease import hold_store, leave_store
from modelless.controller.live.version_follower import VersionFollower
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Placement

# The part of the status about each gateway and worker.


def members_status(reports: Sequence[MemberReport]) -> list[dict[str, Any]]:
    """Each member in a few figures, as plain data."""
    members = []
    for report in reports:
        instances = report.state.instances if report.state is not None else ()
        members.append(
            {
                "id": report.member_id,
                "role": "gateway" if report.is_gateway else "worker",
                "release": report.replica.release,
                "revision": report.replica.revision,
                "is_starting": report.replica.is_starting,
                "resizing_to": report.state.resizing_to if report.state else "",
                "device_class": report.state.device_class if report.state else None,
                "loaded_bytes": report.ready_bytes,
                "loaded": sorted(i.variant_id for i in instances if i.memory_bytes),
                "loading": sorted(i.variant_id for i in instances if not i.memory_bytes),
                "pinned": sorted(i.variant_id for i in instances if i.pinned),
                "failed_loads": dict(report.failed_loads),
                "quarantine": _quarantine_of(report.member_id, reports),
                "memory_bytes": sum(i.memory_bytes for i in instances),
                "memory_budget_bytes": report.state.memory_bytes if report.state else 0,
                "resident_bytes": report.resident_bytes,
                "tasks": report.tasks,
                "queued": report.queued,
                "arrivals_per_s": _rate(report.arrivals, report.interval_s),
            }
        )
    return members


def _quarantine_of(member_id: str, reports: Sequence[MemberReport]) -> str:
    """Why gateways give the member no batches for now, and how many do so; empty if none does."""
    signs = [r.quarantined[member_id] for r in reports if member_id in r.quarantined]
    return f"{max(signs)}, say {len(signs)} gateways" if signs else ""


def _rate(counts: Mapping[str, int], interval_s: float) -> float:
    return round(sum(counts.values()) / interval_s, 1) if interval_s > 0.0 else 0.0


logger = logging.getLogger(__name__)

WATCH_S = 4.0
"""A member that is not called asks again after this."""

FEEDBACK_KEPT = 10_000
"""Entries that wait for a gateway to report; more are dropped."""

CALLS = frozenset({"batch", "called", "exchange", "leave", "metrics", "pin", "versions"})
"""The methods that other processes may call."""

EXPORT_S = 5.0
"""Between two exports of metrics: Ray's agent hands them on every ten."""


@dataclass(slots=True)
class _Mailbox:
    """Orders and feedback that wait for a member to report, and whether it is called to."""

    orders: list[Order] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    is_called: asyncio.Event = field(default_factory=asyncio.Event)


class ControlLoop:
    """See the module. Every member calls ``exchange`` once a second, and waits at ``versions``.

    Args:
        scale_pool: brings a pool to a number of workers.
        export: takes the metrics' values every few seconds; None: there is no export.
    """

    def __init__(
        self,
        home: Path,
        settings: Settings,
        scale_pool: Any,
        export: Callable[[Scalars], None] | None = None,
        times: ControlTimes = DEFAULT_TIMES,
    ) -> None:
        log_to(home, "control")
        self._home, self._base = home, settings
        self._scale_pool = scale_pool
        self._export = export
        self._times = times
        self._has_begun = False
        self._pinning = asyncio.Lock()  # else of two pins at a time the later write loses one
        self._superseded: EnvironmentUnfitError | None = None  # another one has the store
        self._mailboxes: dict[str, _Mailbox] = {}
        self._shares: Mapping[str, Mapping[Placement, float]] = {}
        self._totals: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._started_s = time.time()
        self._residency = ResidencyTotals()
        self._batches = BatchJobs(home, settings.batch)
        self._release = release_of(settings)
        self._exported_s = -float("inf")
        self._wake: asyncio.TimerHandle | None = None

    def _begin(self) -> None:
        """Read what is known, once; raising here costs one exchange, in the constructor all."""
        if self._superseded is not None:
            raise self._superseded
        if self._has_begun:
            return
        home = self._home
        hold_store(home)
        settings, self._revision = self._base, 0
        with closing(open_registry(home)) as registry:
            write_base(registry.store, settings)
        try:
            settings, latest = settings_in_force(home, settings)
            self._revision = latest.number
        except InvalidInputError as error:
            logger.error("%s", error)
        self._settings = settings
        knowledge = read_knowledge(home, settings)
        self._drift_notes = DriftNotes(home, knowledge.fingerprints)
        self._history = HistoryNotes(home, settings.history.max_entries)
        self._last_run = LastRun(home)
        reread = Rereader(home, settings)
        self._versions = VersionStore(home, knowledge.served, reread.served, self._handle)
        asked = settings.residency.preload
        preload = read_last_run(home) if asked == "last-run" else asked
        self._control, self._tape = open_control(
            settings, knowledge.device_classes, preload, time.monotonic(), self._times
        )
        self._metrics = ClusterMetrics(knowledge.device_classes, lambda: self._control.reports)
        self._metrics.advice = self._control.advice.totals
        self._kept_feedback = read_feedback(home)
        self._learn(knowledge)
        self._handle(self._versions.latest)
        self._on_service(self._versions.latest.service)
        self._pins = read_pins(home)
        if self._pins:
            self._handle(PinsChanged(self._pins))
        follower = VersionFollower(
            knowledge, reread, self._versions.watch, self._on_service, self._on_knowledge
        )
        self._following = asyncio.create_task(follower.follow_forever())
        self._tenants = TenantTotals(home, time.time())
        self._proxy_counts = ProxyCounts(home / "run" / "sockets")
        self._noting: asyncio.Task[None] | None = None
        self._has_begun = True

    async def _note(self) -> None:
        """Renew the lease on the store, fetch what HAProxy refused, keep what tenants spent."""
        try:
            await asyncio.to_thread(hold_store, self._home)
            self._superseded, self._metrics.is_store_up = None, True
        except EnvironmentUnfitError as error:
            logger.error("%s", error)
            self._superseded = error
        except StoreError as error:
            self._metrics.is_store_up = False
            logger.warning("the lease is not renewed: %s", error)
        self._metrics.proxy_refusals = await asyncio.to_thread(self._proxy_counts.read)
        await self._keep()

    async def _keep(self) -> None:
        await asyncio.to_thread(self._tenants.write)
        feedback = self._control.feedback.documents()
        if feedback != self._kept_feedback:
            try:
                await asyncio.to_thread(write_feedback, self._home, feedback)
                self._kept_feedback = feedback
            except OSError as error:
                logger.warning("feedback is not kept: %s", error)

    async def close(self) -> None:
        """Write what is recorded, and the history, to their ends: this process is ended next."""
        self._batches.close()
        if self._has_begun:
            if self._tape is not None:
                await asyncio.to_thread(self._tape.close)
            await self._history.finish()
            await self._keep()
            with contextlib.suppress(StoreError):  # it ends by itself
                await asyncio.to_thread(leave_store, self._home)

    def is_for(self, home: Path, settings: Settings, release: str) -> bool:
        """Whether it was started with these, from this code."""
        return (self._home, self._base, self._release) == (home, settings, release)

    # -- calls from other processes -----------------------------------------------------------

    async def answer(self, protocol: int, method: str, *arguments: Any) -> Any:
        """Answer one of the ``CALLS`` from another process.

        Raises:
            ProtocolError: it speaks another protocol; nothing of what it says was taken in.
        """
        if protocol != PROTOCOL or method not in CALLS:
            raise ProtocolError.between(protocol)
        return await getattr(self, method)(*arguments)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The cluster in Prometheus' terms, as ``accept`` asks for; with the content type."""
        self._begin()
        return self._metrics.render(accept)

    async def pin(self, scope: str, is_pinned: bool, by: str) -> None:
        """Load a variant of the scope, and evict none of its variants; or end that.

        It holds until it is ended, for clusters that start from this home later, too.

        Args:
            scope: ``task[/model[/variant]]``.
            is_pinned: whether it begins.
            by: who wants it, for the audit log.
        """
        self._begin()
        async with self._pinning:
            pins = dict.fromkeys(self._pins)
            if is_pinned:
                pins[scope] = None
            else:
                pins.pop(scope, None)
            note_act(self._home, "pin" if is_pinned else "unpin", by, scope=scope)
            await asyncio.to_thread(write_pins, self._home, pins)
            self._pins = tuple(pins)
            self._handle(PinsChanged(self._pins))

    async def batch(self, act: str, *arguments: Any) -> dict[str, Any]:
        """Begin, ask after or cancel an offline run; see ``BatchJobs``."""
        acts: dict[str, Callable[..., dict[str, Any]]] = {
            "begin": self._batches.begin,
            "state": self._batches.state,
            "cancel": self._batches.cancel,
        }
        return await asyncio.to_thread(acts[act], *arguments)

    async def exchange(self, report: MemberReport, feedback: Sequence[Feedback] = ()) -> Orders:
        """Take a member's report; answer with its orders and with the other members.

        Args:
            feedback: that came in there, on answers of other gateways.
        """
        self._begin()
        member_id = report.member_id
        mailbox = self._mailbox(member_id)
        self._count(report, feedback)
        self._handle(MemberReported(report))
        mailbox.is_called.clear()
        orders, mailbox.orders = tuple(mailbox.orders), []
        told, mailbox.feedback = tuple(mailbox.feedback), []
        control = self._control
        predecessor_id, lacking = control.succession(member_id)
        return Orders(
            orders,
            control.directory,
            self._shares,
            self.status(),
            control.busy_neighbours(member_id),
            told,
            control.starting_s,
            control.is_at_rest,
            control.is_settled(time.monotonic()),
            predecessor_id,
            lacking,
            self._tenants.of_others(member_id),
        )

    async def leave(self, report: MemberReport, feedback: Sequence[Feedback] = ()) -> None:
        self._begin()
        self._mailboxes.pop(report.member_id, None)
        self._count(report, feedback)
        self._tenants.remove(report.member_id)
        self._handle(MemberLeft(report))

    async def called(self, member_id: str) -> bool:
        """Whether the member should report now: as soon as that is so, or False after a while."""
        is_called = self._mailbox(member_id).is_called
        try:
            await asyncio.wait_for(is_called.wait(), WATCH_S)
        except TimeoutError:
            return False
        is_called.clear()
        return True

    async def versions(self, token: str) -> Service:
        """Return the versions in service, once ``token`` does not stand for them any more."""
        self._begin()
        return await self._versions.watch(token)

    def status(self) -> Mapping[str, Any]:
        """The cluster in a few figures, as plain data."""
        if not self._has_begun:
            return {"members": []}
        control = self._control
        reports = control.reports
        return {
            "members": members_status(reports),
            "not_served": dict(self._not_served),
            "pins": list(self._pins),
            "pools": control.pools_status(),
            "predictions": predictions_status(reports),
            "drifted": drifts_status(reports),
            "advice": control.advice.status(),
            "feedback": control.feedback.status(),
            "residency": self._residency.status(),
            "outcomes": dict(self._totals),
            "replies": {str(code): count for code, count in sorted(self._metrics.replies.items())},
            "proxy_refusals": dict(self._metrics.proxy_refusals),
            "served_by_variant": dict(self._served),
            "statistics": self._metrics.statistics(),
            "tasks": self._metrics.by_task(),
            "tenants": self._tenants.status(self._metrics.by_tenant()),
            "usd_per_hour": self._metrics.usd_per_hour(),
            "trials": control.trials_status(time.monotonic()),
            "began_s": round(self._started_s, 1),
            "at_s": round(time.time(), 1),
            "up_s": round(time.time() - self._started_s, 1),
            "protocol": PROTOCOL,
            "release": self._release,
            "revision": self._revision,
        }

    def _count(self, report: MemberReport, feedback: Sequence[Feedback]) -> None:
        """Add up what happened since the member's last report."""
        for outcome, count in report.outcomes.items():
            self._totals[outcome] = self._totals.get(outcome, 0) + count
        for variant_id, count in report.served.items():
            self._served[variant_id] = self._served.get(variant_id, 0) + count
        self._metrics.add(report)
        if report.tenants:
            used = {name: TenantUse(*use) for name, use in report.tenants.items()}
            self._tenants.add(report.member_id, used, report.interval_s, time.time())
        self._drift_notes.add(report.drifts)
        self._last_run.count(report.served, time.monotonic())
        self._residency.add(report)
        for told in feedback:
            mailbox = self._mailboxes.get(told.gateway_id)
            if mailbox is not None and len(mailbox.feedback) < FEEDBACK_KEPT:
                mailbox.feedback.append(told)

    # -- the machine --------------------------------------------------------------------------

    def _on_knowledge(self, knowledge: Knowledge) -> None:
        self._learn(knowledge)
        self._on_service(self._versions.latest.service)
        self._versions.renew()

    def _on_service(self, service: Service) -> None:
        if service.revision != self._revision:
            self._change_settings(service)
        self._not_served = self._knowledge.served_by(service).servable().not_served

    def _change_settings(self, service: Service) -> None:
        """Plan with the policies of the latest revision; one that does not fit changes nothing."""
        try:
            settings = with_changes(self._base, service.changes)
            policies = build_changed(self._settings, settings)
        except ModellessError as error:
            logger.error("revision %d of the settings: %s", service.revision, error)
            return
        if self._tape is not None:
            self._tape.cut("settings were changed")
        self._settings, self._revision = settings, service.revision
        self._handle(policies)

    def _learn(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._handle(
            FactsChanged(
                knowledge.variant_facts(self._settings.limits.max_batch),
                knowledge.device_classes,
                knowledge.cost_model.slowdowns,
                stated_low_percent(knowledge.catalog.versions.values()),
                self._kept_feedback,
            )
        )

    def _handle(self, event: ControlEvent) -> None:
        for effect in self._control.handle(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: ControlEffect) -> None:
        if isinstance(effect, Order):
            mailbox = self._mailbox(effect.worker_id)
            mailbox.is_called.set()
            if effect not in mailbox.orders:
                mailbox.orders.append(effect)
        elif isinstance(effect, WakeAt):
            self._wake_at(effect.at_s)
        elif isinstance(effect, CallMember):
            self._mailbox(effect.member_id).is_called.set()
        elif isinstance(effect, ScalePool):
            logger.info("%s: %d workers", effect.device_class, effect.workers)
            self._scale_pool(effect)
        elif isinstance(effect, Advise):
            self._shares = {scope: dict(shares) for scope, shares in effect.shares}
        elif isinstance(effect, NoteHistory):
            self._history.add(effect.entries)
        elif isinstance(effect, ForgetMember):
            logger.warning("%s has not reported for too long: forgotten", effect.member_id)
            self._tenants.remove(effect.member_id)
            self._mailboxes.pop(effect.member_id, None)
        elif isinstance(effect, ReviseAccuracies):
            self._metrics.demoted_percent = effect.percent
            self._versions.revise_accuracies(effect.percent)
        elif isinstance(effect, VersionEffect):
            self._versions.write(effect)

    def _wake_at(self, at_s: float) -> None:
        """Tick at this time; of several the first."""
        wait_s = at_s - time.monotonic()
        if wait_s <= 0.0:
            self._tick()
        elif self._wake is None:
            self._wake = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._handle(Tick())
        for problem in self._control.problems:
            logger.error("a policy failed: %s", problem)
        self._residency.add_declined(self._control.declined)
        now_s = time.monotonic()
        held = (report.ready_bytes.keys() for report in self._control.reports)
        self._last_run.hold(frozenset().union(*held), now_s)
        if now_s - self._exported_s >= EXPORT_S:
            self._exported_s = now_s
            if self._noting is None or self._noting.done():
                self._noting = asyncio.get_running_loop().create_task(self._note())
            if self._export is not None:
                self._export(self._metrics.scalars())

    def _mailbox(self, member_id: str) -> _Mailbox:
        return self._mailboxes.setdefault(member_id, _Mailbox())
