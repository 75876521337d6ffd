"""Workers that hang or have become slow: they get no new batches until they have shown better.

Two signs, each told from what befalls everybody:

- *hanging*: a batch runs far beyond its p99, at two looks in a row, so that a standstill of this
  process itself is no sign. Where gateways share the worker, a batch may not wait so long behind
  others' that it would look like this (``Crew.patience``). Its queries go elsewhere while there is
  time: a hedged request (Dean and Barroso, "The Tail at Scale", CACM 2013), sent once. The batch's
  return, however late, ends the quarantine; if it never comes, a trial does.
- *slow*: several batches in a row took several times as long as the same cost model's errors on the
  other workers of the device class explain. Contention that slows all of them slows none of them
  relative to the others.

As in Envoy's outlier detection, a quarantine lasts longer each time, only a share of a class may be
in quarantine for slowness, and after it one batch is a trial. Nobody is put into quarantine whose
tasks no other sound worker serves: a slow answer is better than none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from modelless.controller.dispatch.instances import Roster
from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.queues import Batch, Worker

# What error of the predictions is usual among workers of a class: the median, always at hand.
#
# Asked once a batch, so that it must not cost a look at every worker: with a thousand of them that
# was more than all else that a batch takes.


class UsualErrors:
    """One error for each of some workers, in order, by device class.

    To put and to drop one take a search and a shift within a list of floats.
    """

    def __init__(self) -> None:
        self._sorted: dict[str, list[float]] = {}
        self._of: dict[str, tuple[str, float]] = {}

    def put(self, worker_id: str, device_class: str, error: float) -> None:
        """Count the worker's error, in place of its earlier one."""
        self.drop(worker_id)
        self._of[worker_id] = device_class, error
        insort(self._sorted.setdefault(device_class, []), error)

    def drop(self, worker_id: str) -> None:
        """Do not count the worker any more, if it was counted."""
        known = self._of.pop(worker_id, None)
        if known is not None:
            device_class, error = known
            errors = self._sorted[device_class]
            del errors[bisect_left(errors, error)]

    def median(self, device_class: str) -> float | None:
        """The median of the class's errors; None if there are none."""
        errors = self._sorted.get(device_class)
        if not errors:
            return None
        middle = len(errors) // 2
        if len(errors) % 2:
            return errors[middle]
        return (errors[middle - 1] + errors[middle]) / 2.0


class Sign(StrEnum):
    """Why a worker is in quarantine."""

    HANGING = "hanging"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """When a worker is put into quarantine, and for how long.

    Attributes:
        look_s: at least this long between the two looks that find a batch hanging.
        slow_factor: times as long as other workers' errors explain is slow,
        slow_s: if it is also this much longer, seconds: scheduling costs milliseconds.
        slow_batches: in a row.
        most_share: of a device class's workers in quarantine for slowness.
        first_s: the first quarantine's length for slowness; each further one is twice as long,
        longest_s: at most.
        hanging_s: the first one's where a batch never returned.
        forgiven_s: sound for this long, and the next is a first one again.
        learnt: how fast a worker's typical error follows its batches: fast enough for what befalls
            all to be seen in the others before one of them has been slow too often in a row.
    """

    look_s: float = 0.01
    slow_factor: float = 3.0
    slow_s: float = 0.02
    slow_batches: int = 5
    most_share: float = 0.5
    first_s: float = 1.0
    longest_s: float = 60.0
    hanging_s: float = 5.0
    forgiven_s: float = 60.0
    learnt: float = 0.3


@dataclass(slots=True)
class _Case:
    """What is known of one worker.

    Attributes:
        report: its latest, as it was given.
        error: typical log of the time a batch took over the time that was expected.
        batches: seen.
        slow_streak: slow batches in a row.
        sign: None unless it is in quarantine.
        awaited: the batch that hangs, None if it is to be tried.
        until_s: when it is tried.
        times: quarantines without being forgiven.
        sound_since_s: when the last one ended.
        on_trial: its next batch decides.
        seen_hanging: batch and time of the first look.
    """

    report: WorkerReport
    error: float = 0.0
    batches: int = 0
    slow_streak: int = 0
    sign: Sign | None = None
    awaited: int | None = None
    until_s: float = math.inf
    times: int = 0
    sound_since_s: float = -math.inf
    on_trial: bool = False
    seen_hanging: tuple[int, float] | None = None


class Quarantine:
    """Who is in quarantine, and why.

    The dispatcher passes every report through ``seen_as``: a worker in quarantine seems to hold
    nothing, which is what keeps queries away from it.

    Args:
        roster: who serves what.
        limits: see there.
    """

    def __init__(self, roster: Roster, limits: QuarantineLimits | None = None) -> None:
        self._roster = roster
        self._limits = limits or QuarantineLimits()
        self._cases: dict[str, _Case] = {}
        self._usual = UsualErrors()  # of the sound workers that have shown what is usual
        self._awaited: dict[int, str] = {}

    @property
    def signs(self) -> Mapping[str, Sign]:
        """The workers in quarantine, by id, and why."""
        return {name: case.sign for name, case in self._cases.items() if case.sign is not None}

    def seen_as(self, report: WorkerReport) -> WorkerReport:
        """Take in a worker's report; what the roster is to be told."""
        case = self._cases.get(report.worker_id)
        if case is None:
            case = self._cases[report.worker_id] = _Case(report)
        case.report = report
        self._recount(case)
        return report if case.sign is None else report._replace(variant_ids=())

    def report_of(self, worker_id: str) -> WorkerReport:
        """A known worker's latest report, as it was given."""
        return self._cases[worker_id].report

    def forget(self, worker_id: str) -> None:
        """The worker is gone."""
        case = self._cases.pop(worker_id, None)
        self._usual.drop(worker_id)
        if case is not None and case.awaited is not None:
            self._awaited.pop(case.awaited, None)

    def hangs(self, worker: Worker, now_s: float) -> bool:
        """Whether its batch hangs; then it is in quarantine, and the batch's return is awaited."""
        batch, case = worker.running, self._cases[worker.worker_id]
        if batch is None or now_s <= worker.suspect_at_s:
            return False
        if case.seen_hanging is None or case.seen_hanging[0] != batch.batch_id:
            case.seen_hanging = batch.batch_id, now_s
        if now_s - case.seen_hanging[1] < self._limits.look_s or not self._is_spare(case):
            return False
        self._put_in(case, Sign.HANGING, now_s)
        case.awaited = batch.batch_id
        self._awaited[batch.batch_id] = worker.worker_id
        return True

    def returned(self, batch_id: int, now_s: float) -> str | None:
        """A batch that was given up is back, done or failed; the worker it sets free, if any."""
        worker_id = self._awaited.pop(batch_id, None)
        if worker_id is not None:
            self._let_out(self._cases[worker_id], now_s, on_trial=False)
        return worker_id

    def is_slow(self, worker: Worker, batch: Batch, now_s: float) -> bool:
        """Take in how long a batch took; whether its worker is in quarantine for it from now on."""
        case, limits = self._cases[worker.worker_id], self._limits
        took_s = now_s - batch.started_s
        if not 0.0 < batch.expected_s < math.inf or took_s <= 0.0:
            return False
        self._usual.drop(worker.worker_id)  # it is told from the others of its class
        usual_error = self._usual.median(case.report.device_class)
        is_slow = False
        if usual_error is not None:
            usual_s = batch.expected_s * math.exp(usual_error)
            is_slow = took_s > limits.slow_factor * usual_s and took_s > usual_s + limits.slow_s
        error = math.log(took_s / batch.expected_s)
        case.batches += 1
        case.error += max(limits.learnt, 1.0 / case.batches) * (error - case.error)
        case.slow_streak = case.slow_streak + 1 if is_slow else 0
        self._recount(case)
        on_trial, case.on_trial = case.on_trial, False
        if not is_slow or case.slow_streak < (1 if on_trial else limits.slow_batches):
            return False
        if not self._is_spare(case) or not self._may_one_more(case):
            return False
        self._put_in(case, Sign.SLOW, now_s)
        return True

    def due(self, now_s: float) -> list[str]:
        """The workers whose quarantine is over: the next batch of each is its trial."""
        ended = [
            (name, case)
            for name, case in self._cases.items()
            if case.sign is not None and now_s >= case.until_s
        ]
        for _, case in ended:
            if case.awaited is not None:
                del self._awaited[case.awaited]
            self._let_out(case, now_s, on_trial=True)
        return [name for name, _ in ended]

    def _put_in(self, case: _Case, sign: Sign, now_s: float) -> None:
        limits = self._limits
        if now_s - case.sound_since_s > limits.forgiven_s:
            case.times = 0
        first_s = limits.hanging_s if sign is Sign.HANGING else limits.first_s
        case.sign, case.slow_streak, case.on_trial = sign, 0, False
        case.until_s = now_s + min(first_s * 2.0**case.times, limits.longest_s)
        case.times += 1
        self._recount(case)

    def _let_out(self, case: _Case, now_s: float, *, on_trial: bool) -> None:
        case.sign, case.awaited, case.until_s = None, None, math.inf
        case.seen_hanging = None
        case.on_trial, case.sound_since_s = on_trial, now_s
        self._recount(case)

    def _is_spare(self, case: _Case) -> bool:
        """Whether others serve every task that it serves."""
        roster, worker_id = self._roster, case.report.worker_id
        tasks = {name.partition("/")[0] for name in case.report.variant_ids}
        return all(roster.is_served_beside(worker_id, task) for task in tasks)

    def _recount(self, case: _Case) -> None:
        """Count the worker among those that show what is usual, if it is sound and has shown it."""
        report = case.report
        if case.sign is None and case.batches >= self._limits.slow_batches:
            self._usual.put(report.worker_id, report.device_class, case.error)
        else:
            self._usual.drop(report.worker_id)

    def _may_one_more(self, case: _Case) -> bool:
        of_class = [
            other
            for other in self._cases.values()
            if other.report.device_class == case.report.device_class
        ]
        inside = sum(other.sign is not None for other in of_class)
        return inside + 1 <= self._limits.most_share * len(of_class)
