"""Runs pairs of placements together to measure how much a busy neighbour slows each down.

As in Bubble-Up (Mars et al., MICRO 2011) a few runs show how sensitive placements are and how much
they disturb; not all pairs run. Two placements represent each device class: the one that streams
the fewest and the one that streams the most bytes a second, so that both cores and memory are
contended for. Each is measured alone and then beside each of the two, which runs without a pause in
a process of its own, as another gateway's device would.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event

from modelless.common.errors import EnvironmentUnfitError
from modelless.profiler.cost_model.slowdowns import Bottleneck, PairRun, streaming_rates
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.jobs import MeasurementJob, MeasuringEnvironment, load_job
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.noise import (
    MOST_STEAL,
    PROBE_ATTEMPTS,
    PROBE_RUNS,
    await_quiet,
)
from modelless.profiler.measure.timing import MeasurementEffort, Timing, measure_point
from modelless.variants.runtimes.runtime import LoadedVariant
from modelless.variants.vocabulary import Placement

PAIR_EFFORT = MeasurementEffort(min_time_s=0.5, max_time_s=2.0)
"""The effort for each of the two measurements of a pair run."""

_LEAST_S = 1e-3
_START_S = 60.0
_STOP_S = 10.0

NeighbourRunner = Callable[[MeasurementJob], AbstractContextManager[None]]
"""Returns a context manager that keeps a job's variant busy while it is open."""


@dataclass(frozen=True, slots=True)
class Representative:
    """A placement that represents those with its bottleneck on its device class."""

    job: MeasurementJob
    kind: Bottleneck


def choose_representatives(
    jobs: Sequence[MeasurementJob], points: Mapping[Placement, Sequence[Measurement]]
) -> list[Representative]:
    """Returns the placements to run in pairs: two of each device class, or one if there is only
    one.

    Placements that take less than a millisecond are chosen only where there are no others: they
    stay in the caches and do not represent larger ones.

    Args:
        jobs: placements to choose from.
        points: measurements by placement, by ascending batch size; unmeasured placements are not
            chosen.
    """
    rates = streaming_rates(points)
    by_class: dict[str, list[MeasurementJob]] = {}
    for job in jobs:
        if job.placement in rates:
            by_class.setdefault(job.device.name, []).append(job)
    representatives = []
    for members in by_class.values():
        lasting = [job for job in members if points[job.placement][0].p50_s >= _LEAST_S]
        ordered = sorted(lasting or members, key=lambda job: (rates[job.placement], job.placement))
        representatives.append(Representative(ordered[0], Bottleneck.COMPUTE_BOUND))
        if len(ordered) > 1:
            representatives.append(Representative(ordered[-1], Bottleneck.MEMORY_BOUND))
    return representatives


def run_pairs(
    representatives: Sequence[Representative],
    facts: DeviceFacts,
    *,
    accept_noise: bool = False,
    environment: MeasuringEnvironment | None = None,
    beside: NeighbourRunner | None = None,
) -> Iterator[PairRun]:
    """Run each representative beside each of its device class, itself included; yield each run.

    Each is measured alone right before, so that a machine that becomes slower slows both
    measurements. The time that the neighbour takes does not count as noise; only what disturbs the
    measurement alone, and the time given to other machines while both run, does.

    Args:
        representatives: see ``choose_representatives``.
        facts: facts of this host.
        accept_noise: whether not to wait a moment for a quiet machine before each run. Those on a
            noisy one are marked as not trusted.
        environment: clocks, engines and noise; the real ones if None.
        beside: keeps the neighbour busy; by default in a process of its own.

    Raises:
        EnvironmentUnfitError: a neighbour could not be started, or ended early.
    """
    environment, beside = environment or MeasuringEnvironment(), beside or neighbour_process
    for own in representatives:
        others = [other for other in representatives if other.job.device == own.job.device]
        threads = own.job.device.threads
        loaded = environment.load(own.job)
        try:
            for other in others:
                spread = 0.0
                if not accept_noise:
                    probe = partial(environment.gauge.probe, threads, PROBE_RUNS)
                    spread = await_quiet(probe).spread
                begun_s = environment.clock()
                alone = measure_point(loaded, own.job.inputs(1), PAIR_EFFORT, environment.clock)
                quiet = environment.gauge.since(begun_s, threads, spread).level <= 1.0
                with beside(other.job):
                    together, given = _measure_beside(loaded, own.job, environment)
                yield PairRun(
                    placement=own.job.placement,
                    kind=own.kind,
                    neighbour=other.job.placement,
                    neighbour_kind=other.kind,
                    alone_s=alone.p50_s,
                    beside_s=together.p50_s,
                    repeats=min(alone.repeats, together.repeats),
                    trusted=quiet and given,
                    measured_at=environment.now(),
                    fingerprint=facts.fingerprint_of(own.job.device.kind),
                )
        finally:
            loaded.unload()


def _measure_beside(
    loaded: LoadedVariant, job: MeasurementJob, environment: MeasuringEnvironment
) -> tuple[Timing, bool]:
    """Returns a timing beside the neighbour, and whether this machine had the time to itself.

    It measures again while other machines take too much of the time.
    """
    for _ in range(PROBE_ATTEMPTS):
        begun_s = environment.clock()
        timing = measure_point(loaded, job.inputs(1), PAIR_EFFORT, environment.clock)
        given = environment.gauge.since(begun_s, job.device.threads, 0.0).steal <= MOST_STEAL
        if given:
            break
    return timing, given


@contextmanager
def neighbour_process(job: MeasurementJob) -> Iterator[None]:
    """Run the job's variant without a pause in a process of its own while the context is open.

    Raises:
        EnvironmentUnfitError: the process did not start to run, or ended before it was told to.
    """
    context = multiprocessing.get_context("spawn")  # engines' threads do not survive a fork
    running, stop = context.Event(), context.Event()
    process = context.Process(
        target=_keep_busy, args=(job, running, stop), name="modelless-neighbour", daemon=True
    )
    process.start()
    try:
        end_s = time.monotonic() + _START_S
        while not running.wait(0.1):
            if not process.is_alive() or time.monotonic() > end_s:
                raise _unfit(job, "did not come to run")
        yield
        if not process.is_alive():
            raise _unfit(job, "ended while it was needed")
    finally:
        stop.set()
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _unfit(job: MeasurementJob, what: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the neighbour {job.placement.variant_id} on {job.placement.device_class} {what}; its "
        "error is above. Usually memory is short: free some and run the command again."
    )


def _keep_busy(job: MeasurementJob, running: Event, stop: Event) -> None:
    """Run the variant in the neighbour's process until it is told to stop or its parent is gone."""
    parent = os.getppid()
    loaded = load_job(job)
    inputs = job.inputs(1)
    loaded.infer(inputs)
    running.set()
    while not stop.is_set() and os.getppid() == parent:
        loaded.infer(inputs)
