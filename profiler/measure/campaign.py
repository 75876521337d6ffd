"""Campaigns: measure many placements, in some order and time, and resume after an interruption.

Each point is stored as soon as it is measured, so an interruption loses at most one point. Points
that are stored for this machine, and trusted, are not measured again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.jobs import MeasurementJob, MeasuringEnvironment
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.noise import (
    MOST_SPREAD,
    PROBE_ATTEMPTS,
    PROBE_RUNS,
    Noise,
    await_quiet,
)
from modelless.profiler.measure.records import Records
from modelless.profiler.measure.timing import (
    FEWEST_REPEATS,
    MeasurementEffort,
    Timing,
    measure_point,
)
from modelless.variants.vocabulary import Placement


class EventKind(StrEnum):
    """The kind of a progress event."""

    PLANNED = "planned"
    NOISY = "noisy"
    STARTED = "started"
    MEASURED = "measured"
    SKIPPED = "skipped"
    FAILED = "failed"


class SkipReason(StrEnum):
    """The reason for which a point was not measured."""

    ALREADY_MEASURED = "already-measured"
    LATENCY_CAP = "latency-cap"
    BUDGET_SPENT = "budget-spent"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a campaign.

    Attributes:
        kind: PLANNED comes first, once, and NOISY may follow. Each point ends as MEASURED or
            SKIPPED; a placement that FAILED has no later points.
        done, total: number of ended points and of all points.
        eta_s: expected time for the rest, seconds; None while it is unknown.
        placement, batch: the point; None for PLANNED and NOISY.
        measurement: the result, for MEASURED.
        reason: the reason, for SKIPPED.
        message: the error, for FAILED; what disturbs, for NOISY.
    """

    kind: EventKind
    done: int
    total: int
    eta_s: float | None
    placement: Placement | None = None
    batch: int | None = None
    measurement: Measurement | None = None
    reason: SkipReason | None = None
    message: str = ""


Progress = Callable[[ProgressEvent], None]
"""Receives each event as it happens; an exception from it ends the campaign."""


def silent(_event: ProgressEvent) -> None:
    """A ``Progress`` that shows nothing."""


def point_weight(batch: int) -> float:
    """Returns the weight of a point's share of the time, relative to its placement's other points.

    A run takes longer in proportion to the batch size, but a single query is the common case and
    must be known best. The square root lies between equal time and equal repeats.
    """
    return math.sqrt(batch)


class TimeLeft:
    """Estimates the time left from the time taken so far, by the weights of points.

    Args:
        weight: sum of the weights of all points that may be measured.
        budget_s: time limit of the campaign, seconds; None for none.
    """

    def __init__(self, weight: float, budget_s: float | None) -> None:
        self._weight = weight
        self._measured_weight = 0.0
        self._budget_s = budget_s

    def end_point(self, batch: int, *, measured: bool) -> None:
        """Note that a point has ended; one that was not measured took no time."""
        weight = point_weight(batch)
        self._weight -= weight
        if measured:
            self._measured_weight += weight

    def eta_s(self, elapsed_s: float) -> float | None:
        """Returns the expected seconds for the rest after ``elapsed_s``; None while unknown."""
        left_s = None if self._budget_s is None else max(0.0, self._budget_s - elapsed_s)
        if self._weight <= 1e-9:
            return 0.0
        if self._measured_weight <= 0.0:
            return left_s
        eta_s = elapsed_s * self._weight / self._measured_weight
        return eta_s if left_s is None else min(eta_s, left_s)


BATCHES = (1, 2, 4, 8)
_PROBE_RUNS_PER_PLACEMENT = 20  # about 50 ms before each placement


class PointsToMeasure(NamedTuple):
    """A placement and the batch sizes, ascending, to measure next."""

    placement: Placement
    batches: tuple[int, ...]


class MeasurementStrategy(Protocol):
    """Chooses the points that are worth measuring."""

    def choose(
        self, left: Mapping[Placement, Sequence[int]], known: Sequence[Measurement]
    ) -> PointsToMeasure | None:
        """Returns what to measure next; None if enough is known.

        Args:
            left: unmeasured batch sizes by placement.
            known: measurements, of this campaign and from before.
        """
        ...


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """Settings of a campaign.

    Attributes:
        batches: batch sizes to measure, ascending.
        effort: effort for each point; under a budget the time limit is at most the point's share.
        latency_cap_s: a placement whose median exceeds this is not measured at larger batch sizes,
            which the cost model extrapolates.
        budget_s: time for the whole campaign. Without a strategy it is split equally over the
            placements with something left to measure; what one does not use goes to the next ones,
            and each is measured at its smallest batch size even beyond its share. With a strategy,
            the points that it chooses first get the time until none is left.
        accept_noise: whether to begin at once, without waiting a moment for a quiet machine.
            Measurements on a noisy one show its wider latencies, and are marked as not trusted.
        widest: relative width of the median's interval beyond which a measurement is not trusted.
        again: measure also what is known.
    """

    batches: tuple[int, ...] = BATCHES
    effort: MeasurementEffort = field(default_factory=MeasurementEffort)
    latency_cap_s: float = 1.0
    budget_s: float | None = None
    accept_noise: bool = False
    widest: float = 0.25
    again: bool = False

    def __post_init__(self) -> None:
        if (
            not self.batches
            or self.batches[0] < 1
            or list(self.batches) != sorted(set(self.batches))
        ):
            raise InvalidInputError.of("batches", self.batches, "ascending whole numbers from 1")
        if self.budget_s is not None and not self.budget_s > 0.0:
            raise InvalidInputError.of("budget_s", self.budget_s, "more than 0, or none")
        if not self.latency_cap_s > 0.0:
            raise InvalidInputError.of("latency_cap_s", self.latency_cap_s, "more than 0")


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """The result of a campaign.

    Attributes:
        measured: measurements in the order of measuring.
        skipped: for each point that was not measured, the reason.
        failed: for each placement that failed, the error.
        elapsed_s: time of the whole campaign.
    """

    measured: tuple[Measurement, ...]
    skipped: Mapping[tuple[Placement, int], SkipReason]
    failed: Mapping[Placement, str]
    elapsed_s: float

    @property
    def untrusted(self) -> tuple[Measurement, ...]:
        """The measurements that are not trusted; a later campaign repeats them."""
        return tuple(row for row in self.measured if not row.trusted)


def run_campaign(
    jobs: Sequence[MeasurementJob],
    records: Records,
    facts: DeviceFacts,
    settings: CampaignSettings | None = None,
    progress: Progress = silent,
    environment: MeasuringEnvironment | None = None,
    strategy: MeasurementStrategy | None = None,
) -> CampaignResult:
    """Measure every placement of ``jobs`` at every batch size that is missing.

    Args:
        jobs: placements in the order of measuring, none twice.
        records: store of measurements; points that it has are skipped, new ones are added at once.
        facts: facts of this host.
        settings: settings of the campaign.
        progress: receives every step.
        environment: clocks, engines and noise; the real ones if None.
        strategy: chooses what to measure next and when to stop; without one everything is measured,
            in the order of ``jobs``.

    Raises:
        InvalidInputError: a placement occurs twice, or the strategy chose a point that is not left.
        StoreError: a measurement cannot be written.
    """
    counted = Counter(job.placement for job in jobs)
    for placement, count in counted.items():
        if count > 1:
            raise InvalidInputError.of("jobs", placement, "each placement once")
    campaign = _Campaign(
        jobs,
        records,
        facts,
        settings or CampaignSettings(),
        progress,
        environment or MeasuringEnvironment(),
    )
    return campaign.run(strategy)


class _Campaign:
    """One run of ``run_campaign`` and its results so far."""

    def __init__(
        self,
        jobs: Sequence[MeasurementJob],
        records: Records,
        facts: DeviceFacts,
        settings: CampaignSettings,
        progress: Progress,
        environment: MeasuringEnvironment,
    ) -> None:
        self._jobs, self._records, self._facts = jobs, records, facts
        self._settings, self._progress, self._environment = settings, progress, environment
        self._measured: list[Measurement] = []
        self._skipped: dict[tuple[Placement, int], SkipReason] = {}
        self._failed: dict[Placement, str] = {}
        self._done = 0
        self._total = len(jobs) * len(settings.batches)
        weight = sum(point_weight(batch) for batch in settings.batches) * len(jobs)
        self._time_left = TimeLeft(weight, settings.budget_s)
        self._started_s = environment.clock()

    def run(self, strategy: MeasurementStrategy | None) -> CampaignResult:
        self._tell(EventKind.PLANNED)
        waiting = [(job, missing) for job in self._jobs if (missing := self._missing(job))]
        gauge = self._environment.gauge
        if waiting and not self._settings.accept_noise:
            threads = max(job.device.threads for job, _ in waiting)
            noise = await_quiet(lambda: gauge.probe(threads, PROBE_RUNS))
            if noise.level > 1.0:
                self._tell(EventKind.NOISY, message=noise.explain())
        if strategy is None:
            self._measure_all(waiting)
        else:
            self._follow(strategy, waiting)
        return CampaignResult(tuple(self._measured), self._skipped, self._failed, self._elapsed_s())

    def _measure_all(self, waiting: Sequence[tuple[MeasurementJob, list[int]]]) -> None:
        for position, (job, missing) in enumerate(waiting):
            share_s = self._left_s() / (len(waiting) - position)
            self._measure(job, missing, self._environment.clock() + share_s)

    def _follow(
        self, strategy: MeasurementStrategy, waiting: Sequence[tuple[MeasurementJob, list[int]]]
    ) -> None:
        open_jobs = {job.placement: (job, missing) for job, missing in waiting}
        known = [row for by_batch in self._known.values() for row in by_batch.values()]
        reason = SkipReason.PREDICTED
        while open_jobs:
            if self._left_s() <= 0.0:
                reason = SkipReason.BUDGET_SPENT
                break
            choices = {placement: tuple(left) for placement, (_, left) in open_jobs.items()}
            chosen = strategy.choose(choices, (*known, *self._measured))
            if chosen is None:
                break
            _check_chosen(chosen, choices)
            job, left = open_jobs[chosen.placement]
            self._measure(job, list(chosen.batches), self._environment.clock() + self._left_s())
            left[:] = [batch for batch in left if batch not in chosen.batches]
            if job.placement in self._failed:
                while left:
                    self._end(left.pop(), measured=False)
            elif self._measured[-1].p50_s > self._settings.latency_cap_s:
                while left and left[-1] > self._measured[-1].batch:
                    self._skip(job, left.pop(), SkipReason.LATENCY_CAP)
            if not left:
                del open_jobs[job.placement]
        for job, left in open_jobs.values():
            for batch in left:
                self._skip(job, batch, reason)

    def _left_s(self) -> float:
        budget_s = self._settings.budget_s
        return math.inf if budget_s is None else max(0.0, budget_s - self._elapsed_s())

    @cached_property
    def _known(self) -> Mapping[Placement, Mapping[int, Measurement]]:
        """The stored measurements of this machine that are trusted, of the jobs' sizes."""
        known: dict[Placement, dict[int, Measurement]] = {}
        if self._settings.again:
            return known
        is_typical = all(job.is_typical for job in self._jobs)
        read = self._records.current if is_typical else self._records.every_size
        shapes = {job.placement: job.shape for job in self._jobs}
        for kind in sorted({job.device.kind for job in self._jobs}):
            for row in read(self._facts, kind):
                if row.trusted and shapes.get(row.placement, row.shape) == row.shape:
                    known.setdefault(row.placement, {})[row.batch] = row
        return known

    def _missing(self, job: MeasurementJob) -> list[int]:
        """Returns the batch sizes left to measure, and reports the others as skipped."""
        known = self._known.get(job.placement, {})
        missing: list[int] = []
        capped = False
        for batch in self._settings.batches:
            if batch in known:
                self._skip(job, batch, SkipReason.ALREADY_MEASURED)
                capped = capped or known[batch].p50_s > self._settings.latency_cap_s
            elif capped:
                self._skip(job, batch, SkipReason.LATENCY_CAP)
            else:
                missing.append(batch)
        return missing

    def _measure(self, job: MeasurementJob, missing: list[int], end_s: float) -> None:
        """Load a placement's variant and measure it at the ``missing`` batch sizes.

        It begins no batch size that would not end by ``end_s``.
        """
        environment = self._environment
        spread = self._spread(job.device.threads)
        try:
            loaded = environment.load(job)
        except Exception as error:  # noqa: BLE001 - an engine may raise anything; the others go on
            self._fail(job, missing, error)
            return
        try:
            base_bytes = max(loaded.memory_bytes, job.variant.artifact_bytes)
            loaded_bytes = environment.used_bytes(job.device.kind)
            while missing:
                batch, begun_s = missing[0], environment.clock()
                self._tell(EventKind.STARTED, job, batch)
                try:
                    effort = self._effort(missing, end_s - begun_s)
                    timing = measure_point(loaded, job.inputs(batch), effort, environment.clock)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(job, missing, error)
                    return
                noise = environment.gauge.since(begun_s, job.device.threads, spread)
                grown_bytes = max(0, environment.used_bytes(job.device.kind) - loaded_bytes)
                self._record(job, batch, timing, noise, base_bytes + grown_bytes, loaded.load_s)
                del missing[0]
                enough = self._enough(timing, batch, missing, end_s)
                while missing and enough is not None:
                    self._skip(job, missing.pop(0), enough)
        finally:
            loaded.unload()

    def _spread(self, threads: int) -> float:
        """Returns how much a fixed computation varies now, at best of several probes."""
        spread = math.inf
        for _ in range(PROBE_ATTEMPTS):
            probe = self._environment.gauge.probe(threads, _PROBE_RUNS_PER_PLACEMENT)
            spread = min(spread, probe.spread)
            if spread <= MOST_SPREAD:
                break
        return spread

    def _effort(self, missing: Sequence[int], left_s: float) -> MeasurementEffort:
        """Returns the effort for the first of ``missing``, given the seconds left for all."""
        effort = self._settings.effort
        share = point_weight(missing[0]) / sum(point_weight(batch) for batch in missing)
        limit_s = min(effort.max_time_s, max(1e-3, left_s * share))
        return replace(effort, max_time_s=limit_s, min_time_s=min(effort.min_time_s, limit_s))

    def _enough(
        self, timing: Timing, batch: int, missing: Sequence[int], end_s: float
    ) -> SkipReason | None:
        """Returns why larger batch sizes are not worth measuring; None if they are."""
        if not missing:
            return None
        if timing.p50_s > self._settings.latency_cap_s:
            return SkipReason.LATENCY_CAP
        needed_s = (FEWEST_REPEATS + 1) * timing.p50_s * missing[0] / batch
        return SkipReason.BUDGET_SPENT if self._environment.clock() + needed_s > end_s else None

    def _record(
        self,
        job: MeasurementJob,
        batch: int,
        timing: Timing,
        noise: Noise,
        memory_bytes: int,
        load_s: float,
    ) -> None:
        kind = job.device.kind
        measurement = Measurement(
            variant_id=job.variant.id,
            device_class=job.device.name,
            batch=batch,
            threads=job.device.threads,
            engine=self._facts.engine_name(job.variant.engine.value),
            device_name=self._facts.device_name(kind),
            repeats=timing.repeats,
            p50_s=timing.p50_s,
            p90_s=timing.p90_s,
            p99_s=timing.p99_s,
            mean_s=timing.mean_s,
            throughput_per_s=batch / timing.mean_s,
            memory_bytes=memory_bytes,
            load_s=load_s,
            trusted=noise.level <= 1.0 and timing.relative_width <= self._settings.widest,
            noise=noise.level,
            measured_at=self._environment.now(),
            fingerprint=self._facts.fingerprint_of(kind),
            shape=job.shape,
            is_typical=job.is_typical,
        )
        self._records.add(measurement)
        self._measured.append(measurement)
        self._end(batch, measured=True)
        self._tell(EventKind.MEASURED, job, batch, measurement=measurement)

    def _skip(self, job: MeasurementJob, batch: int, reason: SkipReason) -> None:
        self._skipped[job.placement, batch] = reason
        self._end(batch, measured=False)
        self._tell(EventKind.SKIPPED, job, batch, reason=reason)

    def _fail(self, job: MeasurementJob, batches: Sequence[int], error: Exception) -> None:
        message = str(error) if isinstance(error, ModellessError) else repr(error)
        self._failed[job.placement] = message
        for batch in batches:
            self._end(batch, measured=False)
        self._tell(EventKind.FAILED, job, batches[0], message=message)

    def _end(self, batch: int, *, measured: bool) -> None:
        self._done += 1
        self._time_left.end_point(batch, measured=measured)

    def _elapsed_s(self) -> float:
        return self._environment.clock() - self._started_s

    def _tell(
        self,
        kind: EventKind,
        job: MeasurementJob | None = None,
        batch: int | None = None,
        **result: Any,
    ) -> None:
        eta_s = self._time_left.eta_s(self._elapsed_s())
        placement = job.placement if job else None
        self._progress(
            ProgressEvent(kind, self._done, self._total, eta_s, placement, batch, **result)
        )


def _check_chosen(chosen: PointsToMeasure, left: Mapping[Placement, Sequence[int]]) -> None:
    """Raise InvalidInputError if a strategy chose no point, one that is not left, or no order."""
    batches, possible = list(chosen.batches), left.get(chosen.placement, ())
    if not batches or batches != sorted({*batches}.intersection(possible)):
        allowed = f"some of {list(possible)}, ascending" if possible else "a placement that is left"
        raise InvalidInputError.of("strategy.choose", chosen, allowed)
