"""Quarantine: workers that hang or became slow get no new batches until they prove sound again.

A worker shows one of two signs, which troubles that all workers share do not cause:

- *hanging*: a batch runs far beyond its p99, at two looks in a row, so that a standstill of this
  process itself is no sign. Where gateways share a worker, a batch may not wait so long behind
  other gateways' batches that it looks like this (``WorkerTable.patience``). The batch's queries go
  elsewhere while there is time: a hedged request (Dean and Barroso, "The Tail at Scale", CACM
  2013), sent once. The quarantine ends when the batch returns, however late. If it never returns, a
  trial ends it.
- *slow*: several batches in a row took several times as long as the errors of the same cost model
  on the other workers of the device class explain. Contention that slows all of them makes none of
  them slow relative to the others.

As in Envoy's outlier detection, each further quarantine of a worker lasts longer, only a share of a
device class may be in quarantine for slowness, and one batch is a trial after it. A worker stays
in service if no other sound worker serves its tasks: a slow answer is better than none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from modelless.controller.dispatch.messages import WorkerReport
from modelless.controller.dispatch.queues import Batch, Worker
from modelless.controller.dispatch.ready_instances import ReadyInstances


class TypicalErrors:
    """The typical prediction error of each sound worker, sorted by device class.

    The median is asked for once a batch, so it must not cost a look at each of a thousand workers.
    To put or drop an error costs a search and a shift within a list of floats.
    """

    def __init__(self) -> None:
        self._sorted: dict[str, list[float]] = {}
        self._of: dict[str, tuple[str, float]] = {}

    def put(self, worker_id: str, device_class: str, error: float) -> None:
        self.drop(worker_id)
        self._of[worker_id] = device_class, error
        insort(self._sorted.setdefault(device_class, []), error)

    def drop(self, worker_id: str) -> None:
        known = self._of.pop(worker_id, None)
        if known is not None:
            device_class, error = known
            errors = self._sorted[device_class]
            del errors[bisect_left(errors, error)]

    def median(self, device_class: str) -> float | None:
        """Return the median of the device class's errors; None if there are none."""
        errors = self._sorted.get(device_class)
        if not errors:
            return None
        middle = len(errors) // 2
        if len(errors) % 2:
            return errors[middle]
        return (errors[middle - 1] + errors[middle]) / 2.0


class Sign(StrEnum):
    """The reason why a worker is in quarantine."""

    HANGING = "hanging"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """The bounds of quarantines; times are in seconds.

    Attributes:
        look_s: the least time between the two looks that find a batch hanging.
        slow_factor: a batch is slow if it takes this many times as long as other workers' errors
            explain,
        slow_s: and also this much longer: scheduling costs milliseconds.
        slow_batches: so many slow batches in a row begin a quarantine.
        most_share: the largest share of a device class's workers in quarantine at once, when one
            begins for slowness.
        first_s: length of the first quarantine for slowness; each further one is twice as long,
        longest_s: and at most this long.
        hanging_s: length of the first quarantine for a batch that never returns.
        forgiven_s: after so long without quarantine, the next one counts as the first.
        learnt: weight of a batch in its worker's typical error. It is large enough for a trouble
            that all workers share to show in the others before one is slow too often in a row.
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
class _Record:
    """The state of one worker.

    Attributes:
        error: typical logarithm of the time that a batch took over the time that was expected.
        batches: the number of batches in ``error``.
        slow_streak: the number of slow batches in a row.
        sign: the sign that it is in quarantine for; None if it is not.
        awaited: the hanging batch whose return ends the quarantine; None if there is none.
        until_s: when the quarantine ends by itself, with a trial.
        times: the number of quarantines that count.
        on_trial: whether its next batch is a trial: one slow batch begins a quarantine.
        seen_hanging: batch and time of the first look that found it hanging.
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
    """Decides which workers are in quarantine.

    The dispatcher passes every report through ``filter_report``, which hides the variants of a
    worker in quarantine. So no query reaches the worker.

    Args:
        instances: tells which other workers serve a task.
    """

    def __init__(self, instances: ReadyInstances, limits: QuarantineLimits | None = None) -> None:
        self._instances = instances
        self._limits = limits or QuarantineLimits()
        self._records: dict[str, _Record] = {}
        self._typical = TypicalErrors()  # of sound workers with enough batches
        self._awaited: dict[int, str] = {}

    @property
    def signs(self) -> Mapping[str, Sign]:
        """The sign of each worker in quarantine, by the worker's id."""
        return {
            name: record.sign for name, record in self._records.items() if record.sign is not None
        }

    def filter_report(self, report: WorkerReport) -> WorkerReport:
        """Keep a worker's report; return it, without variants if the worker is in quarantine."""
        record = self._records.get(report.worker_id)
        if record is None:
            record = self._records[report.worker_id] = _Record(report)
        record.report = report
        self._recount(record)
        return report if record.sign is None else report._replace(variant_ids=())

    def report_of(self, worker_id: str) -> WorkerReport:
        """Return a known worker's latest report, unfiltered."""
        return self._records[worker_id].report

    def forget_worker(self, worker_id: str) -> None:
        record = self._records.pop(worker_id, None)
        self._typical.drop(worker_id)
        if record is not None and record.awaited is not None:
            self._awaited.pop(record.awaited, None)

    def check_hanging(self, worker: Worker, now_s: float) -> bool:
        """Return whether the worker's batch hangs, which begins a quarantine until it returns."""
        batch, record = worker.running, self._records[worker.worker_id]
        if batch is None or now_s <= worker.suspect_at_s:
            return False
        if record.seen_hanging is None or record.seen_hanging[0] != batch.batch_id:
            record.seen_hanging = batch.batch_id, now_s
        if now_s - record.seen_hanging[1] < self._limits.look_s or not self._is_dispensable(record):
            return False
        self._begin(record, Sign.HANGING, now_s)
        record.awaited = batch.batch_id
        self._awaited[batch.batch_id] = worker.worker_id
        return True

    def end_on_return(self, batch_id: int, now_s: float) -> str | None:
        """End the quarantine that waits for this batch; return the worker, or None."""
        worker_id = self._awaited.pop(batch_id, None)
        if worker_id is not None:
            self._end(self._records[worker_id], now_s, on_trial=False)
        return worker_id

    def check_slow(self, worker: Worker, batch: Batch, now_s: float) -> bool:
        """Count a batch that is done; return whether its slowness begins a quarantine."""
        record, limits = self._records[worker.worker_id], self._limits
        took_s = now_s - batch.started_s
        if not 0.0 < batch.expected_s < math.inf or took_s <= 0.0:
            return False
        self._typical.drop(worker.worker_id)  # a worker is compared with the others of its class
        typical_error = self._typical.median(record.report.device_class)
        is_slow = False
        if typical_error is not None:
            typical_s = batch.expected_s * math.exp(typical_error)
            is_slow = took_s > limits.slow_factor * typical_s and took_s > typical_s + limits.slow_s
        error = math.log(took_s / batch.expected_s)
        record.batches += 1
        record.error += max(limits.learnt, 1.0 / record.batches) * (error - record.error)
        record.slow_streak = record.slow_streak + 1 if is_slow else 0
        self._recount(record)
        on_trial, record.on_trial = record.on_trial, False
        if not is_slow or record.slow_streak < (1 if on_trial else limits.slow_batches):
            return False
        if not self._is_dispensable(record) or not self._has_room(record):
            return False
        self._begin(record, Sign.SLOW, now_s)
        return True

    def release_due(self, now_s: float) -> list[str]:
        """End the quarantines whose time is over; return the workers, each with a trial ahead."""
        ended = [
            (name, record)
            for name, record in self._records.items()
            if record.sign is not None and now_s >= record.until_s
        ]
        for _, record in ended:
            if record.awaited is not None:
                del self._awaited[record.awaited]
            self._end(record, now_s, on_trial=True)
        return [name for name, _ in ended]

    def _begin(self, record: _Record, sign: Sign, now_s: float) -> None:
        limits = self._limits
        if now_s - record.sound_since_s > limits.forgiven_s:
            record.times = 0
        first_s = limits.hanging_s if sign is Sign.HANGING else limits.first_s
        record.sign, record.slow_streak, record.on_trial = sign, 0, False
        record.until_s = now_s + min(first_s * 2.0**record.times, limits.longest_s)
        record.times += 1
        self._recount(record)

    def _end(self, record: _Record, now_s: float, *, on_trial: bool) -> None:
        record.sign, record.awaited, record.until_s = None, None, math.inf
        record.seen_hanging = None
        record.on_trial, record.sound_since_s = on_trial, now_s
        self._recount(record)

    def _is_dispensable(self, record: _Record) -> bool:
        """Whether other workers serve every task that this one serves."""
        instances, worker_id = self._instances, record.report.worker_id
        tasks = {name.partition("/")[0] for name in record.report.variant_ids}
        return all(instances.is_served_elsewhere(worker_id, task) for task in tasks)

    def _recount(self, record: _Record) -> None:
        """Keep the worker's error among the typical ones if it is sound and has enough batches."""
        report = record.report
        if record.sign is None and record.batches >= self._limits.slow_batches:
            self._typical.put(report.worker_id, report.device_class, record.error)
        else:
            self._typical.drop(report.worker_id)

    def _has_room(self, record: _Record) -> bool:
        """Whether one more worker of the class may be in quarantine for slowness."""
        of_class = [
            other
            for other in self._records.values()
            if other.report.device_class == record.report.device_class
        ]
        inside = sum(other.sign is not None for other in of_class)
        return inside + 1 <= self._limits.most_share * len(of_class)
