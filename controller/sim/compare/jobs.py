"""Runs of a comparison, one after the other or in processes of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import FOREIGN_ERRORS, ModellessError
from modelless.controller.sim.run import simulate
from modelless.controller.sim.series import Series
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.world import WorldFile

Figures = Mapping[str, Any]

BOUND: Final = "clairvoyant bound"
"""Stands where a contender's name stands in the jobs that reckon the bound."""

TABLED: Final = (
    "value_per_query", "attainment", "violated", "queries", "mean_accuracy", "cost_usd", "rent_usd",
    "cold_start_s", "policy_problems", "plans", "why",
)  # fmt: skip
"""The figures of a run or a bound that a comparison's table reads."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be made.

    Attributes:
        contender: who decides in it; ``BOUND`` for what nobody can beat.
    """

    scenario: str
    contender: str
    file: WorldFile
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was done: its figures, or why there are none."""

    scenario: str
    contender: str
    seed: int
    figures: Figures | None
    error: str = ""


def run_one(job: Job, home: Path | None) -> Run:
    """Do a job; what goes wrong with it is told, not raised."""
    figures, error = None, ""
    try:
        figures = (_bound if job.contender == BOUND else _figures)(job, home)
    except ModellessError as known:
        error = str(known)
    except FOREIGN_ERRORS as unknown:  # a policy may raise anything; the others go on
        error = f"{type(unknown).__name__}: {unknown}"
    return Run(job.scenario, job.contender, job.seed, figures, error)


def run_all(
    jobs: Sequence[Job], processes: int, home: Path | None, finish: Callable[[Job, Run], None]
) -> None:
    """Do all jobs, ``processes`` at once, and call ``finish`` with each that is done.

    Whatever ``finish`` raises, or Ctrl-C, ends the processes at once, and a note on it says which
    jobs were under way.
    """
    if processes == 1:
        for job in jobs:
            try:
                run = run_one(job, home)
            except BaseException as stopped:
                stopped.add_note(_under_way([job]))
                raise
            finish(job, run)
        return
    for job in _in_processes(jobs, processes, home, finish):
        # A process died and took the pool with it. Alone, the job that did it cannot harm others.
        for again in _in_processes([job], 1, home, finish):
            error = "its process died, for want of memory perhaps"
            finish(again, Run(again.scenario, again.contender, again.seed, None, error))


def _in_processes(
    jobs: Iterable[Job], processes: int, home: Path | None, finish: Callable[[Job, Run], None]
) -> list[Job]:
    """Do jobs in processes; returns those that were lost because one of the processes died."""
    lost: list[Job] = []
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin)
    waiting: dict[Future[Run], Job] = {}
    try:
        for job in jobs:
            waiting[pool.submit(run_one, job, home)] = job
        for future in as_completed(waiting):
            job = waiting[future]
            try:
                run = future.result()
            except BrokenProcessPool:
                lost.append(job)
            else:
                finish(job, run)
    except BaseException as stopped:
        begun = [job for future, job in waiting.items() if future.running()]
        if begun:  # those in the pool's call queue, max_workers + 1, are said to run as well
            stopped.add_note(_under_way(begun[:processes]))
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(active_children()) - others:
            child.terminate()
        raise
    pool.shutdown()
    return lost


def _under_way(jobs: Sequence[Job]) -> str:
    """The jobs that had begun, for people: one of them may hang."""
    return ", ".join(f"{job.contender} in {job.scenario}, seed {job.seed}" for job in jobs)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process decides
    sys.stdout = sys.stderr  # what a policy prints is no part of the answer


def _figures(job: Job, home: Path | None) -> Figures:
    series = Series()
    summary = Summary(job.seed, job.file.world.name, series=series)
    simulate(job.file, seed=job.seed, home=home, summary=summary)
    return {**summary.figures(), "series": series.figures()}


def _bound(job: Job, home: Path | None) -> Figures:
    from modelless.controller.sim.bound.clairvoyant import clairvoyant_bound

    bound = clairvoyant_bound(job.file, seed=job.seed, home=home)
    return {
        "value_per_query": bound.value_per_query,
        "attainment": bound.attainment,
        "why": bound.why,
    }
