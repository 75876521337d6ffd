"""The control loop: takes everyone's reports, asks the planner, hands out orders.

An actor of its own, outside Serve's controller, so that neither can stall the other. It keeps
nothing that the next reports do not bring again: killed and restarted, it knows all within seconds,
and until then decides nothing that it might regret. If the store is away as it starts, it answers
nobody until that is back, and serving goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelless.controller.api.feedback import Feedback
from modelless.controller.config import Settings
from modelless.controller.control.decision_log import Chronicle
from modelless.controller.control.service import Service, follow_up
from modelless.controller.control.settling import without_rash
from modelless.controller.dispatch.counters import demands_of, missed
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.effects import (
    Advise,
    LoadInstance,
    PlanEffect,
    ResizeWorker,
    ScalePool,
    UnloadInstance,
)
from modelless.controller.live.cluster.release import PROTOCOL, ProtocolError, release_of
from modelless.controller.live.control.history_notes import HistoryNotes
from modelless.controller.live.control.last_run import LastRun, read_last_run
from modelless.controller.live.control.metrics import ClusterMetrics, Scalars
from modelless.controller.live.control.neighbourhood import Neighbourhood, busy_neighbours
from modelless.controller.live.control.pools import PoolBook
from modelless.controller.live.control.predictions import (
    DriftNotes,
    drifts_status,
    predictions_status,
)
from modelless.controller.live.control.rates import Recent
from modelless.controller.live.control.rollouts import Rollouts
from modelless.controller.live.control.version_keeper import VersionKeeper
from modelless.controller.live.knowledge import Knowledge, Rereader, read_knowledge
from modelless.controller.live.logs import log_to
from modelless.controller.live.messages import Orders, Report
from modelless.controller.live.pace import EXCHANGE_S, LEAST_PAUSE_S
from modelless.controller.live.recordings import open_planner
from modelless.controller.live.version_follower import VersionFollower
from modelless.controller.live.worker.residency_log import ChangeBook
from modelless.policies.views import ClusterView, Demand
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Placement

# What the status tells of each gateway and worker.


def members_status(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Each member in a few figures, as plain data."""
    members = []
    for report in reports:
        instances = report.state.instances if report.state is not None else ()
        members.append(
            {
                "id": report.member_id,
                "role": "gateway" if report.is_gateway else "worker",
                "release": report.standing.release,
                "is_starting": report.standing.is_starting,
                "resizing_to": report.state.resizing_to if report.state else "",
                "device_class": report.state.device_class if report.state else None,
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


def _quarantine_of(member_id: str, reports: Sequence[Report]) -> str:
    """Why gateways give the member no batches for now, and how many; empty if none does."""
    signs = [r.quarantined[member_id] for r in reports if member_id in r.quarantined]
    return f"{max(signs)}, say {len(signs)} gateways" if signs else ""


def _rate(counts: Mapping[str, int], interval_s: float) -> float:
    return round(sum(counts.values()) / interval_s, 1) if interval_s > 0.0 else 0.0


# Members that are called to report now, because orders or news wait for them.

WATCH_S = 2.0
"""A member that is not called asks again after this."""


class Calls:
    """Who is called and has not come yet. Each member has one ``wait`` open at most times."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._news = asyncio.Event()

    def call(self, *member_ids: str) -> None:
        """Have the members report."""
        self._called.update(member_ids)
        self._news.set()
        self._news = asyncio.Event()

    def came(self, member_id: str) -> None:
        """The member reports, or is gone."""
        self._called.discard(member_id)

    async def wait(self, member_id: str) -> bool:
        """Whether the member is called: as soon as it is, or False after a while."""
        end_s = time.monotonic() + WATCH_S
        while member_id not in self._called:
            left_s = end_s - time.monotonic()
            if left_s <= 0.0:
                return False
            try:
                await asyncio.wait_for(self._news.wait(), left_s)
            except TimeoutError:
                return False
        self._called.discard(member_id)
        return True


logger = logging.getLogger(__name__)

TICK_S = 1.0
"""Between two decisions, unless somebody waits for one."""

FORGET_S = 5.0
"""A member that was silent this long is gone."""

GRACE_S = 2.0
"""Those whom nobody could have heard may still report for so long."""

SETTLE_S = FORGET_S
"""So long after it began it knows everybody: until then it decides nothing that it might regret."""

DEPARTED_KEPT = 256
"""Members whose goodbye is remembered."""

FEEDBACK_KEPT = 10_000
"""Entries that wait for a gateway to report; more are dropped."""

CALLS = frozenset({"called", "exchange", "metrics", "versions"})
"""What other processes may ask for."""

EXPORT_S = 5.0
"""Between two exports of metrics: Ray's agent hands them on every ten."""


@dataclass(slots=True)
class _Member:
    report: Report
    heard_s: float
    recent: Recent = field(default_factory=Recent)
    orders: list[PlanEffect] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)


class ControlLoop:
    """See the module. Every member calls ``exchange`` once a second, and waits at ``versions``.

    Args:
        home: where the store is.
        settings: as given to ``modelless up``.
        scale_pool: brings a pool to a number of workers.
        export: takes the metrics' values every few seconds; None for nobody.
    """

    def __init__(
        self,
        home: Path,
        settings: Settings,
        scale_pool: Any,
        export: Callable[[Scalars], None] | None = None,
    ) -> None:
        log_to(home, "control")
        self._home, self._settings = home, settings
        self._scale_pool = scale_pool
        self._members: dict[str, _Member] = {}
        self._shares: Mapping[str, Mapping[Placement, float]] = {}
        self._began_s = self._ticked_s = -float("inf")
        self._totals: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._started_s = time.time()
        self._pools = PoolBook(settings)
        self._changes = ChangeBook()
        self._rollouts = Rollouts(self._reports)
        self._release = release_of(settings)
        self._export = export
        self._exported_s = -float("inf")
        self._calls = Calls()
        self._departed: deque[str] = deque(maxlen=DEPARTED_KEPT)
        self._early: asyncio.TimerHandle | None = None

    def _begin(self) -> None:
        """Read what is known, once; raising here costs one exchange, in the constructor all."""
        if self._began_s > 0.0:
            return
        home, settings = self._home, self._settings
        knowledge = read_knowledge(home, settings)
        self._drift_notes = DriftNotes(home, knowledge.fingerprints)
        self._chronicle = Chronicle()
        self._history = HistoryNotes(home, settings.history.max_entries)
        self._device_classes = knowledge.device_classes
        self._max_batch = settings.limits.max_batch
        self._keeper = VersionKeeper(
            home, {name_of(v.id): v.version for v in knowledge.catalog.variants}
        )
        self._service = self._keeper.service
        self._learn(knowledge)
        self._follower = VersionFollower(
            knowledge, Rereader(home, settings), self._keeper.watch, self._serve, self._learn
        )
        self._last_run = LastRun(home)
        asked = settings.residency.preload
        preload = read_last_run(home) if asked == "last-run" else asked
        limits = self._pools.limits(knowledge.device_classes)
        self._planner = open_planner(settings, limits, preload)
        self._metrics = ClusterMetrics(self._device_classes, self._reports)
        self._following = asyncio.create_task(self._follower.follow_forever())
        self._began_s = time.monotonic()

    async def close(self) -> None:
        """Write what is recorded, and the history, to their ends: this process is ended next."""
        if self._began_s > 0.0:
            await asyncio.to_thread(self._planner.close)
            await self._history.finish()

    def is_for(self, home: Path, settings: Settings, release: str) -> bool:
        """Whether it was started with these, from this code."""
        return (self._home, self._settings, self._release) == (home, settings, release)

    async def answer(self, protocol: int, method: str, *arguments: Any) -> Any:
        """One of the ``CALLS`` from another process.

        Raises:
            ProtocolError: it speaks another protocol; nothing of what it says was taken in.
        """
        if protocol != PROTOCOL or method not in CALLS:
            raise ProtocolError.between(protocol)
        return await getattr(self, method)(*arguments)

    async def metrics(self) -> str:
        """The cluster in Prometheus' text format."""
        self._begin()
        return self._metrics.render()

    async def exchange(self, report: Report) -> Orders:
        """Take a member's report; answer with its orders and with who else is there."""
        now_s = time.monotonic()
        self._begin()
        member = self._members.get(report.member_id)
        is_new = member is None
        if report.is_leaving:
            self._part_with(report, now_s)
            return Orders((), (), {}, {})
        if member is None:
            member = self._members[report.member_id] = _Member(report, now_s)
            self._pools.on_worker(report.pool, now_s)
        held_before = member.report.held
        member.report, member.heard_s = member.recent.take(report), now_s
        self._count(report, now_s)
        if is_new or now_s - self._ticked_s >= TICK_S:
            self._tick(now_s)
        elif report.is_urgent:
            self._tick_early(now_s)
        if not report.is_gateway and report.held != held_before:
            waiting = [each for each in self._reports() if each.is_gateway and each.queued]
            self._calls.call(*(each.member_id for each in waiting))
        self._calls.came(report.member_id)
        orders, member.orders = tuple(member.orders), []
        feedback, member.feedback = tuple(member.feedback), []
        predecessor_id, lacking = self._rollouts.place_of(report)
        return Orders(
            orders,
            self._directory(),
            self._shares,
            self.status(),
            busy_neighbours(report, self._reports()),
            feedback,
            self._pools.starting_s(self._planner.scaled),
            self._pools.is_at_rest(self._planner.scaled),
            self._is_settled(now_s),
            predecessor_id,
            lacking,
        )

    def _part_with(self, report: Report, now_s: float) -> None:
        """Forget one that says goodbye; what it has counted since its last report stays, once."""
        self._members.pop(report.member_id, None)
        self._chronicle.left(report.member_id)
        if report.member_id not in self._departed:  # though a new control loop never knew it
            self._departed.append(report.member_id)
            self._count(report, now_s)
        self._calls.came(report.member_id)

    def _count(self, report: Report, now_s: float) -> None:
        """Add up what happened since the member's last report."""
        for outcome, count in report.outcomes.items():
            self._totals[outcome] = self._totals.get(outcome, 0) + count
        for variant_id, count in report.served.items():
            self._served[variant_id] = self._served.get(variant_id, 0) + count
        self._metrics.take(report)
        self._drift_notes.take(report.drifts)
        self._keeper.take(report.trials, report.failed_loads)
        for told in report.feedback:
            owner = self._members.get(told.gateway_id)
            if owner is not None and len(owner.feedback) < FEEDBACK_KEPT:
                owner.feedback.append(told)
        self._last_run.count(report.served, now_s)
        self._changes.enter(report.changes, report.unmet)

    async def called(self, member_id: str) -> bool:
        """Whether the member should report now: as soon as that is so, or False after a while."""
        return await self._calls.wait(member_id)

    async def versions(self, token: str) -> Service:
        """Which versions are in service, once that is not what ``token`` stands for any more."""
        self._begin()
        return await self._keeper.watch(token)

    def _is_settled(self, now_s: float) -> bool:
        return now_s - self._began_s > SETTLE_S

    def status(self) -> Mapping[str, Any]:
        """The cluster in a few figures, as plain data."""
        members = members_status(self._reports())
        if self._began_s < 0.0:
            return {"members": members}
        return {
            "members": members,
            "not_served": dict(self._not_served),
            "pools": self._pools.status(),
            "predictions": predictions_status(self._reports()),
            "drifted": drifts_status(self._reports()),
            "residency": self._changes.status(),
            "outcomes": dict(self._totals),
            "served_by_variant": dict(self._served),
            "trials": self._keeper.status(),
            "began_s": round(self._started_s, 1),
            "up_s": round(time.time() - self._started_s, 1),
            "protocol": PROTOCOL,
            "release": self._release,
        }

    def _reports(self) -> list[Report]:
        return [member.report for member in self._members.values()]

    def _serve(self, service: Service) -> None:
        self._service = service
        self._variants = service.current_of(self._facts)

    def _learn(self, knowledge: Knowledge) -> None:
        facts = knowledge.variant_facts(self._max_batch)
        self._facts = {each.variant_id: each for each in facts}
        self._not_served = knowledge.servable().not_served
        self._neighbourhood = Neighbourhood(knowledge.cost_model, tuple(self._facts))
        self._serve(self._service)

    def _tick_early(self, now_s: float) -> None:
        """Somebody waits for a load: tick now, or as soon as may be after the last tick."""
        wait_s = self._ticked_s + LEAST_PAUSE_S - now_s
        if wait_s <= 0.0:
            self._tick(now_s)
        elif self._early is None:
            loop = asyncio.get_running_loop()
            self._early = loop.call_later(wait_s, lambda: self._tick(time.monotonic()))

    def _tick(self, now_s: float) -> None:
        self._forget(now_s)
        self._ticked_s = now_s
        if self._early is not None:
            self._early.cancel()
            self._early = None
        if self._export is not None and now_s - self._exported_s >= EXPORT_S:
            self._exported_s = now_s
            self._export(self._metrics.scalars())
        view = self._view(now_s)
        self._last_run.hold(frozenset().union(*(report.held for report in self._reports())), now_s)
        effects = self._planner.tick(view)
        came = self._changes.take()
        for problem in self._planner.problems:
            logger.error("a policy failed: %s", problem)
        placing = (LoadInstance, UnloadInstance)
        busy = {effect.worker_id for effect in effects if isinstance(effect, placing)}
        effects += follow_up(self._service, view.workers, self._facts, busy)
        effects += self._rollouts.bequests()
        present = Counter(report.pool for report in self._reports())
        if self._is_settled(now_s):
            self._pools.on_plan(effects, present)
        is_calm = self._is_settled(now_s) and not self._rollouts.is_under_way(now_s)
        self._changes.decline(self._planner.declined)
        ordered = effects if is_calm else without_rash(effects)
        self._history.take(self._chronicle.tick(view, ordered, came, self._planner.problems))
        for effect in ordered:
            if isinstance(effect, (*placing, ResizeWorker)):
                orders = self._members[effect.worker_id].orders
                if effect not in orders:
                    orders.append(effect)
            elif isinstance(effect, ScalePool):
                there = present[effect.device_class]
                if self._pools.ask(effect, there, now_s):
                    logger.info("%s: %d of %d", effect.device_class, effect.workers, there)
                    self._scale_pool(effect)
            elif isinstance(effect, Advise):
                self._shares = {scope: dict(shares) for scope, shares in effect.shares}
        self._calls.call(*(name for name, member in self._members.items() if member.orders))

    def _forget(self, now_s: float) -> None:
        """Part with those that were silent for too long.

        While nobody at all was heard it may have been this loop that was deaf, as its processor was
        taken or Ray was slow: everybody is given the time to be heard again.
        """
        was_deaf = now_s - self._ticked_s > TICK_S + EXCHANGE_S
        for name, member in list(self._members.items()):
            if was_deaf:
                member.heard_s = max(member.heard_s, now_s + GRACE_S - FORGET_S)
            if now_s - member.heard_s > FORGET_S:
                logger.warning("%s has not reported for %.0f s: forgotten", name, FORGET_S)
                del self._members[name]
                self._calls.came(name)

    def _view(self, now_s: float) -> ClusterView:
        arrivals: dict[str, float] = {}
        unmet: dict[str, float] = {}
        demands: list[Demand] = []
        open_queries: Counter[str] = Counter()
        workers = []
        for member in self._members.values():
            report = member.report
            if report.state is not None:
                beside = self._neighbourhood.beside(report, self._reports())
                slowdowns = self._neighbourhood.slowdowns(report.state.device_class, beside)
                state = replace(
                    report.state,
                    slowdowns=slowdowns,
                    pool=report.pool,
                    unmet=report.unmet_at_home,
                )
                workers.append(self._service.kept(state))
            demands += demands_of(report.kinds, report.interval_s)
            open_queries.update(report.open_queries)
            for rates, counts in ((arrivals, report.arrivals), (unmet, report.unmet)):
                for scope, count in counts.items():
                    rates[scope] = rates.get(scope, 0.0) + count / report.interval_s
        return ClusterView(
            now_s,
            self._device_classes,
            tuple(workers),
            self._variants,
            arrivals,
            unmet,
            tuple(demands),
            open_queries,
            self._pools.pools,
            sum(missed(r.outcomes) / r.interval_s for r in self._reports()),
        )

    def _directory(self) -> tuple[WorkerReport, ...]:
        told = (report.offer for report in self._reports())
        return tuple(offer for offer in told if offer is not None)
