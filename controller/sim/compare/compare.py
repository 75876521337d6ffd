"""The same worlds under several policies, paired by seed; runs in processes of their own, resumes.

Pairing by seed means that all policies meet the very same queries, faults and device noise, so that
differences are far better known than either figure (common random numbers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from modelless.common.errors import InvalidInputError
from modelless.controller.config import PolicySettings
from modelless.controller.sim.compare.contenders import Contender
from modelless.controller.sim.compare.jobs import BOUND, TABLED, Figures, Job, Run, run_all
from modelless.controller.sim.compare.kept_runs import KeptRuns
from modelless.controller.sim.worlds.section import explain
from modelless.controller.sim.worlds.world import WorldFile

Progress = Callable[[int, int, Run | None], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world at a load.

    Attributes:
        load: what the rates of the world's file were multiplied by.
        first_seed: what the first seed stands for, and so on: worlds that have random numbers of
            their own begin with their own seed.
    """

    file: WorldFile
    load: float
    first_seed: int = 1

    @property
    def label(self) -> str:
        """The name that tells it from the others."""
        return f"{self.file.world.name} at load {self.load:g}"


def scenarios_of(
    files: Iterable[WorldFile], loads: Sequence[float] = (1.0,), *, own_seeds: bool = False
) -> list[Scenario]:
    """Every world at every load.

    Raises:
        InvalidInputError: two worlds of the same name, or the same load twice.
    """
    found = []
    for file in files:
        for load in loads:
            world = file.world.model_copy(update={"load": file.world.load * load})
            first = world.seed if own_seeds else 1
            found.append(Scenario(WorldFile(world, file.folder), load, first))
    for label, count in Counter(each.label for each in found).items():
        if count > 1:
            allowed = "each load once, and each world by a name of its own"
            raise InvalidInputError.of("worlds", f"{label}, {count} times", allowed)
    return found


def compare(
    scenarios: Sequence[Scenario],
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    *,
    folder: Path | None = None,
    processes: int = 1,
    bound: bool = True,
    only_table: bool = False,
    home: Path | None = None,
    progress: Progress | None = None,
) -> list[Run]:
    """Run every contender on every scenario and seed.

    Args:
        folder: where finished runs are kept; runs found there are not made again unless their
            world, policies, or the code they ran through has changed. None: nowhere.
        processes: at once; 1 is this one.
        only_table: return only the figures that ``comparison.table`` reads.
        home: of the store, for worlds with tasks from there.
        progress: called at the start, and after each run, with done, total and the run.

    Returns:
        In the order of scenarios, seeds, contenders; the bound (``jobs.BOUND``) before them. A run
        that failed carries its error.

    Raises:
        InvalidInputError: a contender names no such kind of policy.
    """
    jobs = [job for each in scenarios for job in _jobs(each, contenders, seeds, bound)]
    kept = KeptRuns(folder / "runs") if folder is not None else None
    done: dict[tuple[str, str, int], Run] = {}
    left = []

    def note(job: Job, figures: Figures | None, error: str = "") -> None:
        if figures is not None and only_table:
            figures = {name: figures[name] for name in TABLED if name in figures}
        done[_key(job)] = Run(*_key(job), figures, error)

    for job in jobs:
        figures = kept.read(job) if kept is not None else None
        if figures is None:
            left.append(job)
        else:
            note(job, figures)

    def finish(job: Job, run: Run) -> None:
        note(job, run.figures, run.error)
        if kept is not None and run.figures is not None:
            kept.write(job, run.figures)
        if progress is not None:
            progress(len(done), len(jobs), run)

    if progress is not None:
        progress(len(done), len(jobs), None)
    run_all(left, min(processes, max(1, len(left))), home, finish)
    return [done[_key(job)] for job in jobs]


def with_policies(file: WorldFile, policies: Mapping[str, Any]) -> WorldFile:
    """The world under other policies; those not named stay.

    Raises:
        InvalidInputError: no such kind of policy.
    """
    try:
        merged = PolicySettings.model_validate({**file.world.policies.model_dump(), **policies})
    except ValidationError as error:
        raise explain(error, "policies", PolicySettings) from None
    return WorldFile(file.world.model_copy(update={"policies": merged}), file.folder)


def _jobs(
    scenario: Scenario, contenders: Sequence[Contender], seeds: Sequence[int], bound: bool
) -> Iterable[Job]:
    # Seed by seed: what an interrupted comparison leaves can be compared.
    worlds = {each.name: with_policies(scenario.file, each.policies) for each in contenders}
    for seed in (scenario.first_seed + each - 1 for each in seeds):
        if bound:
            yield Job(scenario.label, BOUND, scenario.file, seed)
        for name, file in worlds.items():
            yield Job(scenario.label, name, file, seed)


def _key(job: Job) -> tuple[str, str, int]:
    return job.scenario, job.contender, job.seed
