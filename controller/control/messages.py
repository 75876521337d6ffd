"""The events that the control machine handles and the effects that it returns, as plain values.

The driver passes each event to ``Control.handle`` with the time at which it happened, and carries
the effects out in order. All times are seconds on the driver's clock unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import Order, ResidencyChange
from modelless.controller.dispatch.counters import Kind, Meters
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.trials import FeedbackCounts, TrialCounts
from modelless.policies.advisory import Advisory
from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import Reason
from modelless.policies.seams import EvictionPolicy, Forecaster, PlacementPolicy, ScalingPolicy
from modelless.policies.views import VariantFacts, WorkerState
from modelless.profiler.cost_model.online.coverage import Coverage
from modelless.profiler.cost_model.serving_model import Drift
from modelless.profiler.cost_model.slowdowns import Slowdowns
from modelless.variants.registry.versions import Trial
from modelless.variants.vocabulary import DeviceClass, Placement

# Events: what happens to the control machine.


class Replica(NamedTuple):
    """The code and the state of a member's process, for upgrades.

    Attributes:
        release: the code and the settings that it runs, as ``live/cluster/release`` names them.
        rollout: the deployment of its application that started it.
        began_s: when it started, seconds since the epoch.
        revision: of the settings that it goes by.
    """

    release: str = ""
    rollout: str = ""
    began_s: float = 0.0
    is_starting: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class MemberReport:
    """One member's report: a gateway, or a worker of a pool.

    Attributes:
        state: its device and the variants loaded there; None for a gateway without a device.
        failed_loads: why variants could not be loaded, by variant id.
        interval_s: seconds since its last report.
        arrivals, unmet: queries by scope since its last report.
        outcomes: finished queries by outcome since its last report.
        served: answered queries by variant since its last report.
        kinds: as in ``DispatchCounters``, since its last report.
        held: as ``kinds``, of the queries that wait for a load now.
        open_queries: queries waiting or running now, by scope.
        queued: queries waiting now; at a worker of a pool, whether a batch waits.
        tasks: the tasks of its event loop, which must not pile up.
        host: the machine's name: devices of one host slow each other down.
        coverage: how its cost model's predictions fared lately, by device class.
        drifts: placements whose latency moved away from what was measured.
        trials: what was counted of versions on trial since its last report.
        pool: the pool that its device belongs to.
        changes: loads and unloads that ended since its last report.
        meters: what became of queries and batches since its last report.
        quarantined: why it gives workers no batches for now, by worker id.
        is_urgent: a query waits for a load that no query waited for before.
        replica: its release, and whether it serves yet.
        replies: HTTP replies by status since its last report.
        tenants: what the tenants with limits used since its last report: queries, queries that are
            open now, and US dollars.
        feedback: what clients said of its answers since its last report.
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
    held: Mapping[Kind, Sequence[int]] = field(default_factory=dict)
    open_queries: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0
    resident_bytes: int = 0
    tasks: int = 0
    host: str = ""
    coverage: tuple[Coverage, ...] = ()
    drifts: tuple[Drift, ...] = ()
    trials: tuple[TrialCounts, ...] = ()
    pool: str = ""
    changes: tuple[ResidencyChange, ...] = ()
    meters: Meters = field(default_factory=Meters)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    is_urgent: bool = False
    replica: Replica = field(default_factory=Replica)
    replies: Mapping[int, int] = field(default_factory=dict)
    tenants: Mapping[str, tuple[float, int, float]] = field(default_factory=dict)
    feedback: tuple[FeedbackCounts, ...] = ()

    @property
    def ready_bytes(self) -> dict[str, int]:
        """The memory of each variant that is loaded; one that still loads has no size yet."""
        instances = self.state.instances if self.state is not None else ()
        return {each.variant_id: each.memory_bytes for each in instances if each.memory_bytes}

    @property
    def worker_report(self) -> WorkerReport | None:
        """The report for gateways, which send it batches; None for a gateway, or with no device."""
        if self.is_gateway or self.state is None:
            return None
        return WorkerReport(self.member_id, self.state.device_class, tuple(self.ready_bytes))

    @property
    def unmet_accuracy_percent(self) -> dict[str, float]:
        """The strictest minimum accuracy of the queries that found nothing ready, by scope."""
        strictest: dict[str, float] = {}
        for scope, _, min_accuracy_percent in self.kinds:
            if self.unmet.get(scope):
                strictest[scope] = max(strictest.get(scope, 0.0), min_accuracy_percent)
        return strictest


class MemberReported(NamedTuple):
    """A member reported."""

    report: MemberReport


class MemberLeft(NamedTuple):
    """A member said goodbye, or the driver noticed that it is gone.

    Attributes:
        report: its last one, of what it counted since the one before.
    """

    report: MemberReport


class FactsChanged(NamedTuple):
    """Variants or device classes were read from the store.

    Attributes:
        variants: every version of each variant that is served.
        slowdowns: how much placements on one host slow each other down.
        stated_low_percent: by variant id, the lower end of the interval of its stated accuracy,
            where feedback can be compared with that.
        feedback: what an earlier control machine knew from feedback, by variant id.
    """

    variants: tuple[VariantFacts, ...]
    device_classes: Mapping[str, DeviceClass]
    slowdowns: Slowdowns = Slowdowns()
    stated_low_percent: Mapping[str, float] = MappingProxyType({})
    feedback: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class VersionsChanged(NamedTuple):
    """The versions in service were read, or changed: by a command, or by the end of a trial.

    Attributes:
        evidence: what is kept of each trial's evidence, by the trial's number.
        epoch_s: the time of this event, seconds since the epoch.
    """

    service: Service
    evidence: Mapping[int, Mapping[str, Any]]
    epoch_s: float


class PinsChanged(NamedTuple):
    """Operators pinned scopes, or unpinned some; these are all that are pinned now."""

    scopes: tuple[str, ...]


class PoliciesChanged(NamedTuple):
    """Operators changed some of the planner's policies; those that are None stay.

    Attributes:
        advisory: of scaling, see ``Planner``.
    """

    scaling: ScalingPolicy | None = None
    placement: PlacementPolicy | None = None
    eviction: EvictionPolicy | None = None
    forecast: Forecaster | None = None
    advisory: Advisory[ScalingPolicy] | None = None


class Tick(NamedTuple):
    """The time for a decision has come; see ``WakeAt``."""


ControlEvent = (
    MemberReported
    | MemberLeft
    | FactsChanged
    | VersionsChanged
    | PinsChanged
    | PoliciesChanged
    | Tick
)

# Effects that the planner returns: what is loaded where, and how many workers there are.


class ScalePool(NamedTuple):
    """Bring the pool of this device class to ``workers`` workers."""

    device_class: str
    workers: int
    reason: Reason


class Advise(NamedTuple):
    """Tell every gateway which share of a scope's queries each placement is to serve."""

    shares: tuple[tuple[str, tuple[tuple[Placement, float], ...]], ...]


class Planned(NamedTuple):
    """Note how good the scaling policy's new plan is known to be; there is nothing to carry out."""

    reason: Reason
    quality: PlanQuality


PlanEffect = Order | ScalePool | Advise | Planned

# Effects that the machine adds.


class WakeAt(NamedTuple):
    """Send ``Tick`` at this time, which may have come already. An earlier one replaces it."""

    at_s: float


class CallMember(NamedTuple):
    """Have the member report now: there is news for it."""

    member_id: str


class ForgetMember(NamedTuple):
    """Drop what is kept for the member: it was silent for too long."""

    member_id: str


class EntryKind(StrEnum):
    """The subject of an entry; the simulator's control log uses the same words."""

    LOAD = "load"
    LOADED = "loaded"
    LOAD_FAILED = "load-failed"
    UNLOAD = "unload"
    UNLOADED = "unloaded"
    SCALE = "scale"
    RESIZE = "resize"
    RESIZED = "resized"
    RESIZE_FAILED = "resize-failed"
    PLAN = "plan"
    CONTROL_UP = "control-up"
    UPGRADE = "upgrade"
    WORKER_UP = "worker-up"
    WORKER_GONE = "worker-gone"
    ACCURACY_DEMOTED = "accuracy-demoted"
    ACCURACY_RESTORED = "accuracy-restored"
    QUARANTINED = "quarantined"
    QUARANTINE_ENDED = "quarantine-ended"
    POLICY_PROBLEM = "policy-problem"
    ADVICE = "advice"
    ENTRIES_LOST = "entries-lost"


class Entry(NamedTuple):
    """A decision, or the outcome of one, for the history.

    Attributes:
        subject: the variant, the device class or the worker.
        reason: why it was decided; for an outcome, what happened.
        details: plain data for JSON; times in seconds, sizes in bytes.
    """

    kind: str
    subject: str
    reason: str
    details: Mapping[str, Any]


class NoteHistory(NamedTuple):
    """Write the entries into the history."""

    entries: tuple[Entry, ...]


class ReviseAccuracies(NamedTuple):
    """Tell every gateway which variants count for another accuracy than the stated one.

    Attributes:
        percent: all of them, by id.
    """

    percent: Mapping[str, float]


class PromoteVersion(NamedTuple):
    """End the trial and make its version the current one.

    Attributes:
        figures: the evidence behind it, as plain JSON.
    """

    trial: Trial
    reason: str
    figures: Mapping[str, Any]


class RollBackVersion(NamedTuple):
    """End the trial; the current version stays. The attributes are those of ``PromoteVersion``."""

    trial: Trial
    reason: str
    figures: Mapping[str, Any]


class KeepEvidence(NamedTuple):
    """Keep what is known of the trial, for a control loop that starts anew.

    Attributes:
        evidence: as plain JSON; ``VersionsChanged.evidence`` hands it back.
    """

    trial: Trial
    evidence: Mapping[str, Any]


VersionEffect = PromoteVersion | RollBackVersion | KeepEvidence
ControlEffect = (
    PlanEffect | WakeAt | CallMember | ForgetMember | NoteHistory | ReviseAccuracies | VersionEffect
)
