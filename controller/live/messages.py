"""What gateways, workers and the control loop say to each other, once a second.

Processes of two releases may meet: see ``release.PROTOCOL`` before changing anything here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelless.controller.api.feedback import Feedback
from modelless.controller.control.succession import Standing
from modelless.controller.device.changes import Change
from modelless.controller.dispatch.counters import Kind, Meters
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.trials import TrialCounts
from modelless.controller.effects import PlanEffect
from modelless.policies.views import WorkerState
from modelless.profiler.cost_model.measured_model import Drift
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.variants.vocabulary import Placement


@dataclass(frozen=True, slots=True)
class Report:
    """What one process says to the control loop.

    Attributes:
        member_id: its worker id: of a gateway or of a pool's worker.
        is_gateway: whether queries come in there.
        state: its device and what is loaded; None for a gateway without a device.
        failed_loads: what could not be loaded, and why, by variant id.
        interval_s: seconds since its last report.
        arrivals, unmet: queries by scope since its last report.
        outcomes: finished queries by outcome since its last report.
        served: answered queries by variant since its last report.
        kinds: as in ``DispatchCounters``, since its last report.
        open_queries: queries waiting or running now, by scope.
        queued: queries waiting now; at a worker of a pool, whether a batch does.
        resident_bytes: memory of the process.
        tasks: that its event loop has: they must not pile up.
        host: the machine's name: devices of one host disturb each other.
        coverage: how its cost model's predictions fared lately, by device class.
        drifts: placements that came to take another time than was measured.
        trials: what was counted of versions on trial since its last report.
        feedback: on answers of other gateways, for these.
        pool: the pool its device belongs to.
        is_leaving: it goes, and this is its last report.
        changes: loads and evictions that ended since its last report.
        meters: what became of queries and batches since its last report.
        quarantined: workers that it gives no batches for now, and why.
        is_urgent: a query has begun to wait for a load that none waited for before.
        standing: which release it is of, and whether it serves yet.
    """

    member_id: str
    is_gateway: bool
    state: WorkerState | None
    failed_loads: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 0.0
    arrivals: Mapping[str, int] = field(default_factory=dict)
    unmet: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[Kind, Sequence[int]] = field(default_factory=dict)
    open_queries: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0
    resident_bytes: int = 0
    tasks: int = 0
    host: str = ""
    coverage: tuple[Coverage, ...] = ()
    drifts: tuple[Drift, ...] = ()
    trials: tuple[TrialCounts, ...] = ()
    feedback: tuple[Feedback, ...] = ()
    pool: str = ""
    is_leaving: bool = False
    changes: tuple[Change, ...] = ()
    meters: Meters = field(default_factory=Meters)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    is_urgent: bool = False
    standing: Standing = field(default_factory=Standing)

    @property
    def held(self) -> frozenset[str]:
        """What it has loaded."""
        return frozenset(self._loaded)

    @property
    def offer(self) -> WorkerReport | None:
        """What gateways may send batches for; None if it is a gateway itself, or has no device."""
        if self.is_gateway or self.state is None:
            return None
        return WorkerReport(self.member_id, self.state.device_class, self._loaded)

    @property
    def _loaded(self) -> tuple[str, ...]:
        """In order; what is still loading has no size yet."""
        instances = self.state.instances if self.state is not None else ()
        return tuple(each.variant_id for each in instances if each.memory_bytes)

    @property
    def unmet_at_home(self) -> dict[str, float]:
        """What a gateway's clients asked for in vain: by scope, their strictest minimum accuracy,
        percent."""
        strictest: dict[str, float] = {}
        for scope, _, min_accuracy_percent in self.kinds:
            if self.unmet.get(scope):
                strictest[scope] = max(strictest.get(scope, 0.0), min_accuracy_percent)
        return strictest


@dataclass(frozen=True, slots=True)
class Orders:
    """What the control loop answers.

    Attributes:
        effects: loads and unloads for this member, in order.
        directory: pool workers that gateways may send batches to.
        shares: the plan's, for gateways' selection policies; see ``Targets``.
        status: the cluster in a few figures, for anyone who asks a gateway.
        busy_neighbours: mean number of the other devices of its host that were busy lately.
        feedback: on this gateway's answers, that came in elsewhere.
        starting_s: how soon a worker can be there, by device class, where scaling starts workers.
        is_at_rest: scaling keeps no worker of any pool just now.
        is_settled: whether everybody has had time to report: before, who is not in the directory
            is not gone.
        predecessor_id: whose place it takes, while it starts; empty: nobody's.
        lacking: what that one serves and this one does not yet.
    """

    effects: tuple[PlanEffect, ...]
    directory: tuple[WorkerReport, ...]
    shares: Mapping[str, Mapping[Placement, float]]
    status: Mapping[str, Any]
    busy_neighbours: float = 0.0
    feedback: tuple[Feedback, ...] = ()
    starting_s: Mapping[str, float] = field(default_factory=dict)
    is_at_rest: bool = False
    is_settled: bool = True
    predecessor_id: str = ""
    lacking: tuple[str, ...] = ()
