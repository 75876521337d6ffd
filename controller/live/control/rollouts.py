"""The control loop's side of an upgrade: who starts in whose place, by the latest reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from modelless.controller.control.succession import (
    Candidate,
    RolloutWatch,
    bequests,
    lacking,
    predecessors,
)
from modelless.controller.effects import LoadInstance
from modelless.controller.live.messages import Report


class Rollouts:
    """See ``control/succession``.

    Args:
        reports: every member's latest.
    """

    def __init__(self, reports: Callable[[], Iterable[Report]]) -> None:
        self._reports = reports
        self._watch = RolloutWatch()

    def place_of(self, report: Report) -> tuple[str, tuple[str, ...]]:
        """Whose place one that starts is to take, and what it lacks for that."""
        if not report.standing.is_starting:
            return "", ()
        candidates = self._candidates()
        predecessor = predecessors(candidates).get(report.member_id)
        if predecessor is None:
            return "", ()
        return predecessor.member_id, lacking(_candidate(report), predecessor, candidates)

    def bequests(self) -> list[LoadInstance]:
        """The loads that those which start need for their places."""
        return bequests(self._candidates())

    def is_under_way(self, now_s: float) -> bool:
        """Whether a rollout is to be waited for before anything is unloaded or scaled."""
        return self._watch.is_under_way(self._candidates(), now_s)

    def _candidates(self) -> list[Candidate]:
        return [_candidate(report) for report in self._reports()]


def _candidate(report: Report) -> Candidate:
    instances = report.state.instances if report.state is not None else ()
    return Candidate(
        report.member_id,
        report.pool,
        report.standing,
        {each.variant_id: each.memory_bytes for each in instances if each.memory_bytes},
        tuple(report.failed_loads),
        report.state.memory_bytes if report.state is not None else 0.0,
    )
