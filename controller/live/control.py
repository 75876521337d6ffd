"""The control loop: takes everyone's reports, asks the planner, hands out orders.

An actor of its own, outside Serve's controller, so that neither can stall the other. It keeps
nothing that the next reports do not bring again: killed and restarted, it knows all within seconds,
and until then decides nothing that it might regret. If the store is away as it starts, it answers
nobody until that is back, and serving goes on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelless.controller.config import Settings
from modelless.controller.core.books import demands_of
from modelless.controller.core.effects import LoadInstance, PlanEffect, ScalePool, UnloadInstance
from modelless.controller.core.plan import PlanLimits, Planner
from modelless.controller.core.roster import WorkerReport
from modelless.controller.core.settling import without_rash
from modelless.controller.live.knowledge import read_knowledge
from modelless.controller.live.logs import log_to
from modelless.controller.live.messages import Orders, Report
from modelless.controller.live.neighbourhood import Neighbourhood, busy_neighbours
from modelless.controller.live.predictions import (
    DriftNotes,
    drifts_status,
    predictions_status,
)
from modelless.policies.discovery import build_policy
from modelless.policies.seams import EvictionPolicy, Forecaster, PlacementPolicy, ScalingPolicy
from modelless.policies.views import ClusterView, Demand
from modelless.variants.vocabulary import Placement

logger = logging.getLogger(__name__)

FORGET_S = 5.0
"""A member that was silent this long is gone."""


@dataclass(slots=True)
class _Member:
    report: Report
    heard_s: float
    orders: list[PlanEffect] = field(default_factory=list)


class ControlLoop:
    """See the module. Its one way in is ``exchange``, called by every member once a second.

    Args:
        home: where the store is.
        settings: as given to ``modelless up``.
        scale_pool: brings a pool to a number of workers.
    """

    def __init__(self, home: Path, settings: Settings, scale_pool: Any) -> None:
        log_to(home, "control")
        self._home, self._settings = home, settings
        self._scale_pool = scale_pool
        self._members: dict[str, _Member] = {}
        self._shares: Mapping[str, Mapping[Placement, float]] = {}
        self._began_s = self._ticked_s = -float("inf")
        self._totals: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._started_s = time.time()

    def _begin(self, now_s: float) -> None:
        """Read what is known; raising here costs one exchange, in the constructor all of them."""
        home, settings = self._home, self._settings
        knowledge = read_knowledge(home, settings)
        self._drift_notes = DriftNotes(home, knowledge.fingerprints)
        self._device_classes = knowledge.device_classes
        self._variants = knowledge.variant_facts(settings.limits.max_batch)
        self._neighbourhood = Neighbourhood(
            knowledge.cost_model, [facts.variant_id for facts in self._variants]
        )
        policies = settings.policies
        self._planner = Planner(
            build_policy(ScalingPolicy, policies.scaling),  # type: ignore[type-abstract]
            build_policy(PlacementPolicy, policies.placement),  # type: ignore[type-abstract]
            build_policy(EvictionPolicy, policies.eviction),  # type: ignore[type-abstract]
            build_policy(Forecaster, policies.forecast),  # type: ignore[type-abstract]
            PlanLimits(
                {pool.device_class: pool.min_workers for pool in settings.pools},
                {pool.device_class: pool.max_workers for pool in settings.pools},
            ),
        )
        self._began_s = now_s

    async def exchange(self, report: Report) -> Orders:
        """Take a member's report; answer with its orders and with who else is there."""
        now_s = time.monotonic()
        if self._began_s < 0.0:
            self._begin(now_s)
        member = self._members.get(report.member_id)
        is_new = member is None
        if member is None:
            member = self._members[report.member_id] = _Member(report, now_s)
        member.report, member.heard_s = report, now_s
        for outcome, count in report.outcomes.items():
            self._totals[outcome] = self._totals.get(outcome, 0) + count
        for variant_id, count in report.served.items():
            self._served[variant_id] = self._served.get(variant_id, 0) + count
        self._drift_notes.take(report.drifts)
        if is_new or now_s - self._ticked_s >= 1.0:
            self._tick(now_s)
        orders, member.orders = tuple(member.orders), []
        return Orders(
            orders,
            self._directory(),
            self._shares,
            self.status(),
            busy_neighbours(report, self._reports()),
            self._is_settled(now_s),
        )

    def _is_settled(self, now_s: float) -> bool:
        return now_s - self._began_s > FORGET_S

    def status(self) -> Mapping[str, Any]:
        """The cluster in a few figures, as plain data."""
        members = []
        for member in self._members.values():
            report = member.report
            instances = report.state.instances if report.state is not None else ()
            members.append(
                {
                    "id": report.member_id,
                    "role": "gateway" if report.is_gateway else "worker",
                    "device_class": report.state.device_class if report.state else None,
                    "loaded": sorted(i.variant_id for i in instances if i.memory_bytes),
                    "loading": sorted(i.variant_id for i in instances if not i.memory_bytes),
                    "failed_loads": dict(report.failed_loads),
                    "quarantine": self._quarantine_of(report.member_id),
                    "memory_bytes": sum(i.memory_bytes for i in instances),
                    "memory_budget_bytes": report.state.memory_bytes if report.state else 0,
                    "resident_bytes": report.resident_bytes,
                    "tasks": report.tasks,
                    "queued": report.queued,
                    "arrivals_per_s": _rate(report.arrivals, report.interval_s),
                }
            )
        return {
            "members": members,
            "predictions": predictions_status(self._reports()),
            "drifted": drifts_status(self._reports()),
            "outcomes": dict(self._totals),
            "served_by_variant": dict(self._served),
            "up_s": round(time.time() - self._started_s, 1),
        }

    def _quarantine_of(self, member_id: str) -> str:
        """Why gateways give the member no batches for now, and how many; empty if none does."""
        signs = [
            member.report.quarantined[member_id]
            for member in self._members.values()
            if member_id in member.report.quarantined
        ]
        return f"{max(signs)}, say {len(signs)} gateways" if signs else ""

    def _reports(self) -> list[Report]:
        return [member.report for member in self._members.values()]

    def _tick(self, now_s: float) -> None:
        self._ticked_s = now_s
        for name in [n for n, m in self._members.items() if now_s - m.heard_s > FORGET_S]:
            logger.warning("%s has not reported for %.0f s: forgotten", name, FORGET_S)
            del self._members[name]
        effects = self._planner.tick(self._view(now_s))
        for problem in self._planner.problems:
            logger.error("a policy failed: %s", problem)
        for effect in effects if self._is_settled(now_s) else without_rash(effects):
            if isinstance(effect, (LoadInstance, UnloadInstance)):
                orders = self._members[effect.worker_id].orders
                if effect not in orders:
                    orders.append(effect)
            elif isinstance(effect, ScalePool):
                self._scale_pool(effect)
            else:
                self._shares = {scope: dict(shares) for scope, shares in effect.shares}

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
                workers.append(replace(report.state, slowdowns=slowdowns))
            demands += demands_of(report.kinds, max(report.interval_s, 1e-3))
            open_queries.update(report.open_queries)
            for rates, counts in ((arrivals, report.arrivals), (unmet, report.unmet)):
                for scope, count in counts.items():
                    rates[scope] = rates.get(scope, 0.0) + count / max(report.interval_s, 1e-3)
        return ClusterView(
            now_s,
            self._device_classes,
            tuple(workers),
            self._variants,
            arrivals,
            unmet,
            tuple(demands),
            open_queries,
        )

    def _directory(self) -> tuple[WorkerReport, ...]:
        workers = [m.report for m in self._members.values() if not m.report.is_gateway]
        return tuple(
            WorkerReport(
                report.member_id,
                report.state.device_class,
                tuple(i.variant_id for i in report.state.instances if i.memory_bytes),
            )
            for report in workers
            if report.state is not None
        )


def _rate(counts: Mapping[str, int], interval_s: float) -> float:
    return round(sum(counts.values()) / interval_s, 1) if interval_s > 0.0 else 0.0
