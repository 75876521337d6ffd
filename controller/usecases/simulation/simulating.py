"""Simulating a world, comparing policies on simulated worlds, and replaying a recording."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from modelless import __version__
from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.common.files import write_whole
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.history.receipts import receipt_document
from modelless.controller.replay import replay as replaying
from modelless.controller.replay.as_world import write_world
from modelless.controller.sim.compare import compare as comparing
from modelless.controller.sim.compare.comparison import document_of
from modelless.controller.sim.compare.contenders import contenders_of
from modelless.controller.sim.compare.jobs import Run
from modelless.controller.sim.compare.regret import regret_of
from modelless.controller.sim.log import log_kind
from modelless.controller.sim.run import simulate as run
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.arrivals import TraceArrivals
from modelless.controller.sim.worlds.random_worlds import QUERIES, RandomSet, draw_world
from modelless.controller.sim.worlds.world import World as CheckedWorld
from modelless.controller.sim.worlds.world import WorldFile, load_world, parse_world
from modelless.controller.usecases.decisions import check_receipts_file, export_receipts
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    check_writable,
    home_folder,
    path_or_none,
)
from modelless.controller.usecases.progress import Note, Progress, Step, ignore
from modelless.controller.usecases.simulation.comparison_page import render_page, render_regret_page

World = AnyPath | Mapping[str, Any]
"""A world file, or its content."""


def read_world(world: World) -> WorldFile:
    """A world, checked; raises as ``load_world`` does.

    Paths in the content of a world are relative to the current folder.
    """
    if isinstance(world, Mapping):
        return parse_world(dict(world), Path())
    return load_world(Path(world))


def simulate(
    world: World,
    *,
    seed: int | None = None,
    log: AnyPath | None = None,
    receipts: AnyPath | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> dict[str, Any]:
    """Simulate a world on a virtual clock; returns its figures.

    The dispatcher, the planner and the policies are those that serve. Latencies are drawn from
    profiles. The same seed gives the same run.

    Args:
        world: a world file, or its content: devices, tasks, queries, delays, faults and policies.
        seed: of everything random; default: the world's.
        log: one row a query goes to this ``.parquet`` or ``.csv`` file, one row a control decision
            to a second file beside it. The log of an interrupted run keeps what happened.
        receipts: the receipts of all queries go to this ``.parquet`` file at the end, as those of
            ``modelless receipts``; the clock begins with 1970.
        home: of the store, for worlds with tasks from there; see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        InvalidInputError: the world does not fit; names the place. Or ``receipts`` cannot be
            written.
        NotFoundError: an unknown policy.
        EnvironmentUnfitError: the log cannot be written.

    Examples:
        >>> figures = modelless.simulate("benchmarks/worlds/steady.yaml")  # doctest: +SKIP
        >>> figures["attainment"], figures["mean_accuracy"]  # doctest: +SKIP
        (0.998, 76.4)
    """
    file = read_world(world)
    log = path_or_none(log)
    if log is not None:
        log_kind(log)
    receipts = path_or_none(receipts)
    if receipts is not None:
        check_receipts_file(receipts, "--receipts")
    closed: list[Receipt] | None = None if receipts is None else []
    counted = Summary(file.world.seed if seed is None else seed, file.world.name)

    def show(now_s: float, queries: int) -> None:
        passed = math.floor(now_s)
        total = math.ceil(file.world.duration_s or passed + 1)
        step = Step("simulating, seconds", min(passed, total), total, f"{queries} queries")
        on_progress(step)

    try:
        run(
            file, seed=seed, log=log, home=home_folder(home), progress=show, summary=counted,
            receipts=closed,
        )  # fmt: skip
    except BaseException as error:
        if counted.total.queries:
            is_kept = log is not None and not isinstance(error, EnvironmentUnfitError)
            kept = f"; {log} holds them" if is_kept else ""
            on_progress(Note(f"stopped after {counted.total.queries} queries{kept}"))
        raise
    if receipts is not None and closed is not None:
        documents = [receipt_document("simulated", each, 0.0, 0.0) for each in closed]
        export_receipts(documents, receipts)
    return {**counted.figures(), "log": None if log is None else str(log)}


def replay(folder: Path) -> list[replaying.Replayed]:
    """Feed the recorded inputs of a run to the same policies, and compare every effect.

    Returns:
        For each tape the first difference; None if all effects are equal.

    Raises:
        InvalidInputError: there is no recording in the folder.
    """
    return [replaying.replay(tape) for tape in replaying.tapes_in(folder)]


def world_of_recording(folder: Path, output: Path) -> dict[str, Any]:
    """Write the arrivals, devices and profiles of a recording as a world, and count them.

    Raises as ``write_world`` does, and InvalidInputError if the output cannot be written.
    """
    check_writable("--as-world", output)
    return write_world(folder, output)


SHORT_LIST = (
    "modelless",
    "infaas",
    "proteus",
    "ray-serve",
    "cheapest-feasible",
    "most-accurate-feasible",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of contenders on scenarios.

    Attributes:
        document: all of it as plain data; ``report.json`` holds the same.
    """

    document: dict[str, Any]

    @property
    def scenarios(self) -> list[dict[str, Any]]:
        """Each world at each load: its bound, and a row for each contender."""
        found: list[dict[str, Any]] = self.document["scenarios"]
        return found

    @property
    def regret(self) -> dict[str, Any] | None:
        """How much the first contender loses in random worlds, see ``regret_of``; else None."""
        return self.document.get("regret")

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each contender in each scenario: the means, fit for a data frame."""
        return [
            {
                "scenario": scenario["label"],
                **{
                    name: value["mean"] if isinstance(value, dict) and "mean" in value else value
                    for name, value in row.items()
                    if name not in ("policy_problems", "plans")
                },
            }
            for scenario in self.scenarios
            for row in scenario["rows"]
        ]


def compare(
    *worlds: World,
    random: int = 0,
    random_seed: int = 1,
    random_set: RandomSet = "develop",
    queries: int = QUERIES,
    traces: Sequence[AnyPath] = (),
    keep_worlds: AnyPath | None = None,
    policies: Sequence[str] = SHORT_LIST,
    seeds: int | None = None,
    loads: Sequence[float] = (1.0,),
    bound: bool | None = None,
    report: AnyPath | None = None,
    processes: int = 1,
    home: Home = None,
    on_progress: Progress = ignore,
) -> Comparison:
    """Compare systems and policies on simulated worlds, paired by seed.

    All contenders meet the same queries, faults and device noise. A contender that fails has an
    error in its row and does not stop the others.

    Args:
        worlds: world files, or their contents.
        random: draw so many worlds instead, and tell how much the first contender loses in each
            against the best other; see ``random_worlds``.
        random_seed, random_set: of the worlds; the set is ``develop`` or ``judge``.
        queries: of a random world, roughly.
        traces: files of recorded arrivals, of which some random worlds have pieces.
        keep_worlds: write the random worlds to this folder, for ``simulate``.
        policies: the contenders, the reference first: systems such as ``infaas``, selection
            policies, ``NAME=FILE.yaml`` with policies by seam, or ``all`` for every system.
        seeds: run the seeds 1 to this number; default: 5, or 1 with random worlds, each of which
            counts from a seed of its own.
        loads: repeat each world at these multiples of its load.
        bound: reckon what no policy can beat; default: not with random worlds.
        report: write ``report.html`` and ``report.json`` to this folder, keep finished runs there,
            and go on from those that are there.
        processes: runs at once. A script that asks for several needs the usual guard,
            ``if __name__ == "__main__":``, because each process imports the script.
        home: of the store, for worlds with tasks from there; see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        InvalidInputError: a world or a contender does not fit; both worlds and ``random``, or
            neither.
        EnvironmentUnfitError: the report's folder cannot be written.

    Examples:
        >>> comparison = modelless.compare(
        ...     "benchmarks/worlds/steady.yaml", policies=["modelless", "infaas"]
        ... )  # doctest: +SKIP
        >>> [(row["contender"], row["value_per_query"]) for row in comparison.rows()]
        ... # doctest: +SKIP
        [('modelless', 0.771), ('infaas', 0.702)]
    """
    contenders = contenders_of(list(policies))
    if bool(worlds) == bool(random):
        got = f"{len(worlds)} world files and random={random}"
        raise InvalidInputError.of("worlds", got, "either world files or a number of random worlds")
    report = path_or_none(report)
    if report is not None:
        _check_folder(report)
    features = {}
    if random:
        if len(contenders) < 2:
            allowed = "two contenders or more, to see what the first loses against the best other"
            raise InvalidInputError.of("policies", ",".join(policies), allowed)
        recorded = {str(Path(each).resolve()): _times_of(Path(each)) for each in traces}
        files = []
        for number in range(random):
            drawn = draw_world(random_seed, number, random_set, queries=queries, traces=recorded)
            features[drawn.world.name] = drawn.features
            files.append(WorldFile(drawn.world, Path()))
            on_progress(Step("drawing, worlds", number + 1, random, drawn.world.name))
        keep_worlds = path_or_none(keep_worlds)
        if keep_worlds is not None:
            _write_worlds([file.world for file in files], keep_worlds)
    else:
        files = [read_world(world) for world in worlds]
    scenarios = comparing.scenarios_of(files, list(loads), own_seeds=bool(random))
    numbers = range(1, (seeds or (1 if random else 5)) + 1)
    finished = 0

    def show(done: int, total: int, last: Run | None) -> None:
        nonlocal finished
        finished = done
        if last is not None:
            now = f"{last.contender}, {last.scenario}, seed {last.seed}"
            on_progress(Step("comparing, runs", done, total, now))
        elif done:
            on_progress(Note(f"{done} of {total} runs were kept in {report}"))

    try:
        runs = comparing.compare(
            scenarios, contenders, numbers, folder=report, processes=processes,
            bound=not random if bound is None else bound, only_table=bool(random),
            home=home_folder(home), progress=show,
        )  # fmt: skip
    except KeyboardInterrupt as stopped:
        for jobs in getattr(stopped, "__notes__", []):
            on_progress(Note(f"under way were: {jobs}"))
        if report is not None and finished:
            kept = f"{finished} runs are kept in {report}; the same command goes on there"
            on_progress(Note(kept))
        raise
    document = {"modelless": __version__, **document_of(scenarios, contenders, numbers, runs)}
    if random:
        document["regret"] = {
            "set": random_set, "seed": random_seed, **regret_of(document["scenarios"], features)
        }  # fmt: skip
    if report is not None:
        text = json.dumps(document, indent=1, allow_nan=False)
        write_whole(report / "report.json", text.encode(), mode=0o644)
        render = render_regret_page if random else render_page
        write_whole(report / "report.html", render(document).encode(), mode=0o644)
    return Comparison(document)


def _times_of(path: Path) -> NDArray[np.float64]:
    """When the arrivals of a trace come, seconds; InvalidInputError if it names tasks or limits."""
    source = TraceArrivals(kind="trace", path=path.name)
    found = list(source.arrivals(path.parent, 1.0, np.random.default_rng(0), inf))
    if any(named is not None for _, named in found) or found[-1][0] <= 0.0:
        allowed = "arrivals over some time, without a task or limits of their own"
        raise InvalidInputError.of("traces", str(path), allowed)
    return np.array([at_s for at_s, _ in found])


def _write_worlds(worlds: Sequence[CheckedWorld], folder: Path) -> None:
    with _writing("--keep-worlds", folder):
        for world in worlds:
            document = world.model_dump(mode="json", exclude_defaults=True)
            text = yaml.safe_dump(document, sort_keys=False, width=120)
            write_whole(folder / f"{world.name}.yaml", text.encode(), mode=0o644)


def _check_folder(report: Path) -> None:
    """Check, before anything runs, that the report can be drawn and written."""
    from modelless.common.drawing import check_matplotlib

    check_matplotlib()
    with _writing("--report", report), TemporaryFile(dir=report):
        pass


@contextmanager
def _writing(option: str, folder: Path) -> Iterator[None]:
    """Make the folder that an option names; an error says if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        allowed = "a folder that can be written, or a new name"
        why = error.strerror or str(error)
        raise EnvironmentUnfitError(f"{option} {folder}: allowed: {allowed}: {why}") from None
