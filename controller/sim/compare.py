"""The same world under several policies, paired by seed; runs in processes of their own, resumes.

Pairing by seed means that all policies meet the very same queries, faults and device noise, so that
differences are far better known than either figure (common random numbers).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from modelless.controller.config import PolicySettings
from modelless.controller.sim.run import simulate
from modelless.controller.sim.section import explain
from modelless.controller.sim.world import WorldFile
from modelless.variants.errors import InvalidInputError, ModellessError

Figures = Mapping[str, Any]

COMPARED = ("value_per_query", "attainment", "mean_accuracy", "cost_usd", "cold_start_s")
"""The figures of a summary that are compared."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13)
_T95_MANY = 1.96


@dataclass(frozen=True, slots=True)
class Contender:
    """A set of policies under a name.

    Attributes:
        name: for the table.
        policies: what the world's ``policies`` are overridden with; what is not named stays.
    """

    name: str
    policies: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One contender on one seed: its figures, or why there are none."""

    contender: str
    seed: int
    figures: Figures | None
    error: str = ""


def contenders_of(names: Sequence[str]) -> list[Contender]:
    """Selection policies by name, each a contender; the world's other policies stay."""
    return [Contender(name, {"selection": name}) for name in names]


def compare(
    file: WorldFile,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    *,
    folder: Path | None = None,
    processes: int = 1,
    home: Path | None = None,
    progress: Callable[[int, int, Run], None] | None = None,
) -> list[Run]:
    """Run every contender on every seed.

    Args:
        file: the world.
        contenders: what is compared.
        seeds: of the runs.
        folder: where finished runs are kept, one JSON file each; runs found there of the same
            world, policies and seed are not run again. None: nowhere.
        processes: at once; 1 is this one.
        home: of the store, for worlds with tasks from there.
        progress: called after each run with done, total and the run.

    Returns:
        In the order of contenders, then seeds; a run that failed carries its error.
    """
    jobs = [(each, seed) for each in contenders for seed in seeds]
    worlds = {each.name: with_policies(file, each.policies) for each in contenders}
    done: dict[tuple[str, int], Run] = {}
    left = []
    for each, seed in jobs:
        kept = _read(folder, each, worlds[each.name], seed)
        if kept is None:
            left.append((each, seed))
        else:
            done[each.name, seed] = kept

    def finish(each: Contender, run: Run) -> None:
        done[each.name, run.seed] = run
        if folder is not None and run.figures is not None:
            path = _place(folder, each, worlds[each.name], run.seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(run.figures), encoding="utf-8")
        if progress is not None:
            progress(len(done), len(jobs), run)

    if processes == 1:
        for each, seed in left:
            finish(each, run_one(worlds[each.name], each.name, seed, home))
    elif left:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waiting = {
                pool.submit(run_one, worlds[each.name], each.name, seed, home): each
                for each, seed in left
            }
            for future in as_completed(waiting):
                finish(waiting[future], future.result())
    return [done[each.name, seed] for each, seed in jobs]


def run_one(file: WorldFile, name: str, seed: int, home: Path | None) -> Run:
    """One run; what goes wrong with it is told, not raised."""
    try:
        return Run(name, seed, simulate(file, seed=seed, home=home).figures())
    except ModellessError as error:
        return Run(name, seed, None, str(error))


def with_policies(file: WorldFile, policies: Mapping[str, Any]) -> WorldFile:
    """The world under other policies.

    Raises:
        InvalidInputError: no such kind of policy.
    """
    from pydantic import ValidationError

    try:
        merged = PolicySettings.model_validate({**file.world.policies.model_dump(), **policies})
    except ValidationError as error:
        raise explain(error, "policies") from None
    return WorldFile(file.world.model_copy(update={"policies": merged}), file.folder)


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row a contender: each figure's mean and 95 % interval, and its paired difference to the
    first contender's.

    Raises:
        InvalidInputError: no runs.
    """
    if not runs:
        raise InvalidInputError.of("runs", runs, "at least one")
    by_name: dict[str, dict[int, Figures]] = {}
    for run in runs:
        mine = by_name.setdefault(run.contender, {})
        if run.figures is not None:
            mine[run.seed] = run.figures
    first = by_name[runs[0].contender]
    rows = []
    for name, mine in by_name.items():
        row: dict[str, Any] = {"contender": name, "runs": len(mine)}
        for figure in COMPARED:
            known = [told[figure] for told in mine.values() if told[figure] is not None]
            row[figure] = interval(known)
            paired = [
                told[figure] - first[seed][figure]
                for seed, told in mine.items()
                if seed in first and None not in (told[figure], first[seed][figure])
            ]
            row[f"{figure}_difference"] = interval(paired)
        rows.append(row)
    return rows


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and 95 % interval by Student's t; no interval from fewer than two values."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    freedom = len(values) - 1
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom)
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    half = t * spread / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def _place(folder: Path, each: Contender, file: WorldFile, seed: int) -> Path:
    said = yaml.safe_dump(file.world.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    plain = "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in each.name)
    return folder / "runs" / f"{plain}-{digest}-{seed}.json"


def _read(folder: Path | None, each: Contender, file: WorldFile, seed: int) -> Run | None:
    if folder is None:
        return None
    try:
        told = json.loads(_place(folder, each, file, seed).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Run(each.name, seed, told) if isinstance(told, dict) else None
