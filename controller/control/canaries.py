"""Versions beside the plan: loads and unloads that versions need, and the verdicts on trials."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from modelless.controller.control.canary_verdict import (
    Decision,
    TrialEvidence,
    Verdict,
    figures_of,
    judge,
    status_of,
)
from modelless.controller.control.messages import (
    KeepEvidence,
    MemberReport,
    PromoteVersion,
    RollBackVersion,
    VersionEffect,
    VersionsChanged,
)
from modelless.controller.control.planned_memory import expected_bytes
from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, VariantFacts, WorkerState
from modelless.variants.registry.versions import name_of


class Canaries:
    """The trials that are on: their evidence and the verdicts on them.

    Args:
        judge_s: least time between two verdicts on a trial, seconds.
        keep_s: least time between two ``KeepEvidence`` of a trial, seconds: a control loop that is
            killed loses no more.
    """

    def __init__(self, judge_s: float, keep_s: float) -> None:
        self._judge_s = judge_s
        self._keep_s = keep_s
        self._service = Service()
        self._evidence: dict[int, TrialEvidence] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._failed_loads: dict[str, str] = {}
        self._judged_s = self._kept_s = -float("inf")

    def follow(self, event: VersionsChanged) -> None:
        """Go on with the trials that are on now; those that ended are forgotten."""
        self._service = event.service
        numbers = [trial.number for trial in event.service.trials]
        self._evidence = {
            number: self._evidence.get(number) or TrialEvidence.kept(event.evidence.get(number))
            for number in numbers
        }
        self._verdicts = {n: each for n, each in self._verdicts.items() if n in numbers}
        self._failed_loads.clear()

    def add(self, report: MemberReport) -> None:
        """Add what a member counted of trials, and could not load."""
        for each in report.trials:
            evidence = self._evidence.get(each.number)
            if evidence is not None:
                evidence.add(each)
        self._failed_loads.update(report.failed_loads)

    def judge(self, now_s: float, epoch_s: float) -> list[VersionEffect]:
        """Return the ends of trials that are decided, and evidence to keep, if it is time.

        A decision is repeated until ``follow`` says that the trial is over.

        Args:
            epoch_s: the same time, seconds since the epoch.
        """
        effects: list[VersionEffect] = []
        if now_s - self._judged_s >= self._judge_s:
            self._judged_s = now_s
            for trial in self._service.trials:
                evidence = self._evidence[trial.number]
                verdict = judge(trial, evidence, epoch_s)
                failure = self._failed_loads.get(trial.variant_id)
                if failure is not None:
                    reason = f"it could not be loaded: {failure}"
                    verdict = Verdict(Decision.ROLL_BACK, reason, verdict.guards)
                self._verdicts[trial.number] = verdict
                if verdict.decision is not Decision.GO_ON:
                    is_won = verdict.decision is Decision.PROMOTE
                    end = PromoteVersion if is_won else RollBackVersion
                    figures = figures_of(trial, evidence, verdict)
                    effects.append(end(trial, verdict.reason, figures))
        if now_s - self._kept_s >= self._keep_s:
            self._kept_s = now_s
            effects += [
                KeepEvidence(trial, self._evidence[trial.number].document())
                for trial in self._service.trials
            ]
        return effects

    def status(self, epoch_s: float) -> list[dict[str, Any]]:
        return [
            status_of(trial, self._evidence[number], epoch_s, self._verdicts.get(number))
            for trial in self._service.trials
            for number in [trial.number]
        ]


def version_effects(
    service: Service,
    workers: Iterable[WorkerState],
    facts: Mapping[str, VariantFacts],
    busy: Collection[str],
) -> list[LoadInstance | UnloadInstance]:
    """Return the loads and unloads that versions need beside the plan, whatever the policies are.

    A version on trial is loaded wherever its variant is, room allowing. A version that was rolled
    back, replaced twice or retired is unloaded. The predecessor stays until its room is needed, so
    that a rollback is quick.

    Args:
        busy: workers that the plan has orders for now; their turn comes at a later tick.
    """
    effects: list[LoadInstance | UnloadInstance] = []
    if not service.lines:
        return effects
    for worker in workers:
        if worker.worker_id in busy:
            continue
        held = {each.variant_id: each for each in worker.instances}
        names = {name_of(each) for each in held}
        free_bytes = worker.free_bytes
        for trial in service.trials:
            needed = expected_bytes(facts.get(trial.variant_id), worker.device_class)
            if trial.name in names and trial.variant_id not in held and needed <= free_bytes:
                free_bytes -= int(needed)
                on_trial = (worker.worker_id, trial.variant_id, Reason.ON_TRIAL)
                effects.append(LoadInstance(*on_trial, int(needed), worker.device_class))
        effects += [
            UnloadInstance(worker.worker_id, variant_id, Reason.WITHDRAWN)
            for variant_id in _outdated(service, held)
            if not held[variant_id].in_use
        ]
    return effects


def _outdated(service: Service, held: Mapping[str, Instance]) -> list[str]:
    kept = set(service.serving(tuple(held)))
    for line in service.lines.values():
        kept.update(line.in_service)
        if not line.retired:
            kept.update(f"{line.name}@{each}" for each in line.earlier[-1:])
    return [each for each in held if name_of(each) in service.lines and each not in kept]
