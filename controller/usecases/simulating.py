"""Simulating a world, and replaying a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.replay import replay as replaying
from modelless.controller.replay.as_world import write_world
from modelless.controller.sim.log import log_kind
from modelless.controller.sim.run import simulate as run
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.world import WorldFile, load_world, parse_world
from modelless.controller.usecases.home import AnyPath, Home, home_folder, path_or_none
from modelless.controller.usecases.progress import Note, Progress, Step, ignore

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
        home: of the store, for worlds with tasks from there; see ``home_folder``.
        on_progress: receives the progress.

    Raises:
        InvalidInputError: the world does not fit; names the place.
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
    counted = Summary(file.world.seed if seed is None else seed, file.world.name)

    def show(now_s: float, queries: int) -> None:
        passed = math.floor(now_s)
        total = math.ceil(file.world.duration_s or passed + 1)
        step = Step("simulating, seconds", min(passed, total), total, f"{queries} queries")
        on_progress(step)

    try:
        run(file, seed=seed, log=log, home=home_folder(home), progress=show, summary=counted)
    except BaseException as error:
        if counted.total.queries:
            is_kept = log is not None and not isinstance(error, EnvironmentUnfitError)
            kept = f"; {log} holds them" if is_kept else ""
            on_progress(Note(f"stopped after {counted.total.queries} queries{kept}"))
        raise
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
    """Write the arrivals, devices and profiles of a recording as a world, and count them."""
    return write_world(folder, output)
