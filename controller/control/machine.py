"""The control machine: decides what is loaded where, how many workers there are, and what serves.

Members report to it, and at each tick it asks the planner. Killed and started anew, it knows all
members again within seconds, and until then it decides nothing that it might regret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from modelless.controller.control.advice import AdviceTotals
from modelless.controller.control.canaries import Canaries, version_effects
from modelless.controller.control.decision_log import DecisionLog
from modelless.controller.control.feedback import DEFAULT_RULES, FeedbackAccuracies, FeedbackRules
from modelless.controller.control.messages import (
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
    PlanEffect,
    PoliciesChanged,
    ReviseAccuracies,
    ScalePool,
    Tick,
    VersionsChanged,
    WakeAt,
)
from modelless.controller.control.neighbours import NeighbourSlowdowns, busy_neighbours
from modelless.controller.control.planned_memory import expected_bytes
from modelless.controller.control.planner import Planner
from modelless.controller.control.pools import PoolTracker
from modelless.controller.control.rates import RateWindow
from modelless.controller.control.served_versions import Service
from modelless.controller.control.succession import (
    RolloutWatch,
    lacking,
    predecessors,
    successor_loads,
)
from modelless.controller.device.messages import (
    LoadInstance,
    ResidencyChange,
    ResizeWorker,
    UnloadInstance,
)
from modelless.controller.dispatch.counters import demands_of, missed
from modelless.controller.dispatch.messages import WorkerReport
from modelless.policies.scopes import in_scope
from modelless.policies.views import ClusterView, Demand, Instance, Pool, VariantFacts
from modelless.profiler.cost_model.slowdowns import Slowdowns
from modelless.variants.vocabulary import DeviceClass


class ControlTimes(NamedTuple):
    """Times that the control machine keeps to, seconds.

    Attributes:
        tick_s: between two ticks, and between two reports of a member that nothing is urgent for.
        early_tick_s: least time between two ticks when a query waits for a load.
        forget_s: a member that is silent for longer is gone.
        grace_s: members may report for so long after no member was heard at all.
        settle_s: every member has reported so long after the machine began; until then it decides
            nothing that it might regret.
    """

    tick_s: float = 1.0
    early_tick_s: float = 0.05
    forget_s: float = 5.0
    grace_s: float = 2.0
    settle_s: float = 5.0
    cooldown_s: float = 15.0
    keep_evidence_s: float = 5.0


DEFAULT_TIMES = ControlTimes()


@dataclass(slots=True)
class _Member:
    report: MemberReport
    heard_s: float
    rates: RateWindow


class Control:
    """The decisions of one cluster's control plane. Begins with ``FactsChanged``.

    Args:
        planner: decides on loads and on the number of workers.
        workers: at the beginning, by name, of the pools that may be scaled.
        began_s: the time now, seconds.
        feedback: when it demotes a variant.

    Attributes:
        advice: what the policies beside those in charge would have done.
    """

    def __init__(
        self,
        planner: Planner,
        pools: Iterable[Pool],
        workers: Mapping[str, int],
        began_s: float,
        times: ControlTimes = DEFAULT_TIMES,
        start_weight: float = 0.5,
        feedback: FeedbackRules = DEFAULT_RULES,
    ) -> None:
        self._planner = planner
        self.advice = AdviceTotals()
        self._times = times
        self._began_s = began_s
        self._ticked_s = -inf
        self._members: dict[str, _Member] = {}
        self._stated: dict[str, VariantFacts] = {}
        self._facts: dict[str, VariantFacts] = {}  # with the accuracies that the demoted count for
        self._device_classes: Mapping[str, DeviceClass] = {}
        self._current: tuple[VariantFacts, ...] = ()
        self._service = Service()
        self._pins: tuple[str, ...] = ()
        self._epoch_offset_s = 0.0
        self._slowdowns = NeighbourSlowdowns(Slowdowns(), ())
        self._pools = PoolTracker(pools, workers, times.cooldown_s, start_weight)
        self._canaries = Canaries(times.tick_s, times.keep_evidence_s)
        self._feedback = FeedbackAccuracies(feedback)
        self._revised: Mapping[str, float] = {}
        self._rollout = RolloutWatch()
        self._log = DecisionLog()
        self._changes: list[ResidencyChange] = []
        self._handlers: dict[type, Callable[[Any, float], list[ControlEffect]]] = {
            MemberReported: self._on_report,
            MemberLeft: self._on_goodbye,
            FactsChanged: self._on_facts,
            VersionsChanged: self._on_versions,
            PinsChanged: self._on_pins,
            PoliciesChanged: self._on_policies,
            Tick: self._on_tick,
        }

    def handle(self, event: ControlEvent, now_s: float) -> list[ControlEffect]:
        """Take the event in, and return what is to be done, in order.

        Args:
            now_s: seconds; never less than with the event before.
        """
        return self._handlers[type(event)](event, now_s)

    # -- what it knows ------------------------------------------------------------------------

    @property
    def reports(self) -> list[MemberReport]:
        """The latest report of each member, with the counts of its ``RateWindow``."""
        return [member.report for member in self._members.values()]

    @property
    def directory(self) -> tuple[WorkerReport, ...]:
        """The workers of pools that gateways may send batches to."""
        told = (report.worker_report for report in self.reports)
        return tuple(each for each in told if each is not None)

    @property
    def problems(self) -> Sequence[str]:
        """The mistakes of policies at the last tick."""
        return self._planner.problems

    @property
    def declined(self) -> Sequence[str]:
        """The variants that the last tick found not worth what they would displace."""
        return self._planner.declined

    @property
    def starting_s(self) -> dict[str, float]:
        """How soon a worker can be there, by device class, where scaling starts workers."""
        return self._pools.starting_s(self._planner.scaled)

    @property
    def is_at_rest(self) -> bool:
        """Whether no worker of any pool is wanted now, but scaling would start one on demand."""
        return self._pools.is_at_rest(self._planner.scaled)

    def is_settled(self, now_s: float) -> bool:
        """Whether every member had the time to report since the machine began."""
        return now_s - self._began_s >= self._times.settle_s

    def succession(self, member_id: str) -> tuple[str, tuple[str, ...]]:
        """The member that this one succeeds, and the variants that it lacks for that.

        The name is empty if it succeeds none, as it serves already or is none's successor.
        """
        report, reports = self._members[member_id].report, self.reports
        predecessor = predecessors(reports).get(member_id)
        if predecessor is None:
            return "", ()
        return predecessor.member_id, lacking(report, predecessor, reports)

    def busy_neighbours(self, member_id: str) -> float:
        """The mean number of the other devices of the member's host that were busy lately."""
        return busy_neighbours(self._members[member_id].report, self.reports)

    def pools_status(self) -> list[dict[str, object]]:
        return self._pools.status()

    def trials_status(self, now_s: float) -> list[dict[str, Any]]:
        return self._canaries.status(now_s + self._epoch_offset_s)

    @property
    def feedback(self) -> FeedbackAccuracies:
        """What feedback says of the variants."""
        return self._feedback

    # -- events -------------------------------------------------------------------------------

    def _on_report(self, event: MemberReported, now_s: float) -> list[ControlEffect]:
        report = event.report
        effects: list[ControlEffect] = []
        member = self._members.get(report.member_id)
        is_new = member is None
        if member is None:
            member = _Member(report, now_s, RateWindow(0.9 * self._times.tick_s))
            self._members[report.member_id] = member
            self._pools.note_worker(report.pool, now_s)
        ready_before = member.report.ready_bytes.keys()
        member.report, member.heard_s = member.rates.add(report), now_s
        self._count(report, now_s)
        if not report.is_gateway and report.ready_bytes.keys() != ready_before:
            waiting = (each for each in self.reports if each.is_gateway and each.queued)
            effects += [CallMember(each.member_id) for each in waiting]
        if is_new or now_s - self._ticked_s >= self._times.tick_s:
            effects.append(WakeAt(now_s))
        elif report.is_urgent:
            effects.append(WakeAt(max(now_s, self._ticked_s + self._times.early_tick_s)))
        return effects

    def _on_goodbye(self, event: MemberLeft, now_s: float) -> list[ControlEffect]:
        self._members.pop(event.report.member_id, None)
        self._log.note_goodbye(event.report.member_id)
        self._count(event.report, now_s)
        return []

    def _count(self, report: MemberReport, now_s: float) -> None:
        self._canaries.add(report)
        self._feedback.add(report.feedback, now_s + self._epoch_offset_s)
        self._changes += report.changes
        self.advice.add("selection", report.meters.advised)

    def _on_facts(self, event: FactsChanged, now_s: float) -> list[ControlEffect]:
        del now_s
        self._stated = {each.variant_id: each for each in event.variants}
        self._device_classes = event.device_classes
        self._slowdowns = NeighbourSlowdowns(event.slowdowns, tuple(self._stated))
        self._feedback.follow(event.stated_low_percent, event.feedback)
        return self._revise()

    def _revise(self) -> list[ControlEffect]:
        """Give the demoted variants the accuracies that they count for, and tell the gateways."""
        before, self._revised = self._revised, self._feedback.demoted
        self._facts = {
            name: replace(facts, accuracy_percent=self._revised[name])
            if name in self._revised
            else facts
            for name, facts in self._stated.items()
        }
        self._current = self._service.current_of(self._facts)
        return [] if self._revised == before else [ReviseAccuracies(self._revised)]

    def _judge_accuracies(self, now_s: float) -> list[ControlEffect]:
        on_trial = {trial.variant_id for trial in self._service.trials}
        entries = self._feedback.judge(on_trial, now_s + self._epoch_offset_s)
        effects = self._revise() if self._feedback.demoted != self._revised else []
        return [*effects, NoteHistory(tuple(entries))] if entries else effects

    def _on_versions(self, event: VersionsChanged, now_s: float) -> list[ControlEffect]:
        self._service = event.service
        self._epoch_offset_s = event.epoch_s - now_s
        self._canaries.follow(event)
        self._current = self._service.current_of(self._facts)
        return []

    def _on_pins(self, event: PinsChanged, now_s: float) -> list[ControlEffect]:
        self._pins = event.scopes
        early_s = max(now_s, self._ticked_s + self._times.early_tick_s)
        return [WakeAt(early_s)] if self._members else []

    def _on_policies(self, event: PoliciesChanged, now_s: float) -> list[ControlEffect]:
        del now_s
        self._planner.change(event)
        return []

    def _on_tick(self, event: Tick, now_s: float) -> list[ControlEffect]:
        del event
        effects: list[ControlEffect] = [*self._forget_silent(now_s)]
        self._ticked_s = now_s
        effects += self._judge_accuracies(now_s)
        view = self._view(now_s)
        plan = [self._with_sizes(each) for each in self._planner.tick(view)]
        placing = (LoadInstance, UnloadInstance)
        busy = {effect.worker_id for effect in plan if isinstance(effect, placing)}
        plan += version_effects(self._service, view.workers, self._facts, busy)
        reports = self.reports
        plan += successor_loads(reports, self._facts)
        present = Counter(report.pool for report in reports)
        is_settled = self.is_settled(now_s)
        if is_settled:
            self._pools.note_plan(plan, present)
        if not is_settled or self._rollout.is_under_way(reports, now_s):
            plan = _without_regrets(plan)
        if self._planner.advisory is not None:
            self.advice.add("scaling", self._planner.advisory.take())
        entries = self._log.entries(view, plan, self._changes, self._planner.problems)
        entries += self._log.quarantine_entries(
            {
                (worker_id, report.member_id): sign
                for report in self.reports
                for worker_id, sign in report.quarantined.items()
            }
        )
        entries += self.advice.entries(now_s)
        self._changes = []
        effects += [
            each
            for each in plan
            if not isinstance(each, ScalePool)
            or self._pools.request(each, present[each.device_class], now_s)
        ]
        if entries:
            effects.append(NoteHistory(tuple(entries)))
        effects += self._canaries.judge(now_s, now_s + self._epoch_offset_s)
        return effects

    def _with_sizes(self, effect: PlanEffect) -> PlanEffect:
        """Return an effect; a resize also gets the sizes of versions no longer planned for."""
        if not isinstance(effect, ResizeWorker):
            return effect
        to = effect.device_class
        known = {name: expected_bytes(facts, to) for name, facts in self._facts.items()}
        return effect._replace(memory_bytes={**known, **effect.memory_bytes})

    def _forget_silent(self, now_s: float) -> list[ForgetMember]:
        """Part with the members that were silent for too long.

        If no member at all was heard, the driver may have been deaf, as its processor was taken or
        the network was slow: every member is given the time to be heard again.
        """
        was_deaf = now_s - self._ticked_s > 2.0 * self._times.tick_s
        silent = []
        for name, member in self._members.items():
            if was_deaf:
                heard_s = now_s + self._times.grace_s - self._times.forget_s
                member.heard_s = max(member.heard_s, heard_s)
            if now_s - member.heard_s > self._times.forget_s:
                silent.append(ForgetMember(name))
        for each in silent:
            del self._members[each.member_id]
        return silent

    def _with_waits(self, report: MemberReport) -> MemberReport:
        """Count the queries that wait for a load that nobody has begun as if they came just now.

        They were counted as they came; but that report may be lost, its reader may have died, and a
        load that was decided on may not have been begun, or only on another gateway's device.
        """
        if not report.held:
            return report
        near = [each.state for each in self.reports
                if not each.is_gateway or each.member_id == report.member_id]  # fmt: skip
        present = {each.variant_id for state in near if state for each in state.instances}
        able = [facts for name, facts in self._facts.items() if name in present]
        kinds = dict(report.kinds)
        waits: Counter[str] = Counter()
        for kind, counts in report.held.items():
            scope, _, accuracy = kind
            if not any(
                in_scope(each.variant_id, scope) and each.accuracy_percent >= accuracy
                for each in able
            ):
                kinds[kind] = max(kinds.get(kind, (0, 0)), counts, key=lambda each: each[0])
                waits[scope] += counts[0]
        unmet = {**report.unmet, **{s: max(report.unmet.get(s, 0), n) for s, n in waits.items()}}
        return replace(report, kinds=kinds, unmet=unmet)

    def _with_pin(self, instance: Instance) -> Instance:
        is_pinned = any(in_scope(instance.variant_id, scope) for scope in self._pins)
        return replace(instance, pinned=True) if is_pinned else instance

    def _view(self, now_s: float) -> ClusterView:
        arrivals: dict[str, float] = {}
        unmet: dict[str, float] = {}
        demands: list[Demand] = []
        open_queries: Counter[str] = Counter()
        missed_per_s = 0.0
        workers = []
        reports = [self._with_waits(each) for each in self.reports]
        for came, report in zip(self.reports, reports, strict=True):
            if report.state is not None:
                state = replace(
                    report.state,
                    slowdowns=self._slowdowns.slowdowns(report, reports),
                    pool=report.pool,
                    unmet=report.unmet_accuracy_percent,
                    instances=tuple(map(self._with_pin, report.state.instances)),
                )
                workers.append(self._service.pin_versions(state))
            demands += demands_of(report.kinds, report.interval_s, came.kinds)
            open_queries.update(report.open_queries)
            missed_per_s += missed(report.outcomes) / report.interval_s
            for rates, counts in ((arrivals, report.arrivals), (unmet, report.unmet)):
                for scope, count in counts.items():
                    rates[scope] = rates.get(scope, 0.0) + count / report.interval_s
        return ClusterView(
            now_s,
            self._device_classes,
            tuple(workers),
            self._current,
            arrivals,
            unmet,
            tuple(demands),
            open_queries,
            self._pools.pools,
            missed_per_s,
            self._pins,
        )


def _without_regrets(effects: Sequence[PlanEffect]) -> list[PlanEffect]:
    """The effects that cannot be regretted: without unloads, what needs their room, and scaling.

    A machine that has just begun does not know every member yet. A member that has not reported is
    not gone: it may want what seems unwanted, and hold what seems missing.
    """
    kept: list[PlanEffect] = []
    without_room: set[tuple[str, str]] = set()
    for effect in effects:
        if isinstance(effect, UnloadInstance):
            without_room.add((effect.worker_id, effect.for_variant_id))
        elif isinstance(effect, (ScalePool, ResizeWorker)):
            continue
        elif not isinstance(effect, LoadInstance) or (
            (effect.worker_id, effect.variant_id) not in without_room
        ):
            kept.append(effect)
    return kept
