"""One run of a world, from its file to its summary."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelless.controller.sim.arrivals import arrivals_by_scope, queries
from modelless.controller.sim.engine import Engine, Progress
from modelless.controller.sim.hanging import ended_if_hanging
from modelless.controller.sim.log import Log, control_path
from modelless.controller.sim.profiles import build_fleet
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.sources import data_files
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.world import WorldFile
from modelless.variants.errors import InvalidInputError


def simulate(
    file: WorldFile,
    *,
    seed: int | None = None,
    log: Path | None = None,
    home: Path | None = None,
    progress: Progress | None = None,
    summary: Summary | None = None,
) -> Summary:
    """Run a world.

    Args:
        file: the world; see ``load_world``.
        seed: instead of the world's.
        log: of the queries; see ``log.Log``. Whole up to where the run came, however it ends.
        home: of the store, for worlds with tasks from there.
        progress: called about once a simulated second.
        summary: to count in, for who wants to look while it runs or after it failed.

    Raises:
        InvalidInputError: the world, a table or a trace of it does not fit; or a policy hangs.
        NotFoundError: no such policy.
        EnvironmentUnfitError: the log cannot be written.
    """
    world = file.world
    seed = world.seed if seed is None else seed
    fleet = build_fleet(file, home)
    counted = summary if summary is not None else Summary(seed, world.name)

    if log is not None:
        _spare_inputs(file, log)

    def run(books: Log | None) -> None:
        recorder = Recorder(counted, books, dict(fleet.variants), dict(fleet.device_classes))
        engine = Engine(world, fleet, queries(file, seed), seed, recorder)
        if engine.clairvoyants:
            arrivals_s = arrivals_by_scope(queries(file, seed))
            for policy in engine.clairvoyants:
                policy.reveal(arrivals_s)
        with _few_collections(), ended_if_hanging(engine.moves, world.limits.policy_s):
            engine.run(progress)

    if log is None:
        run(None)
    else:
        with Log(log) as books:
            run(books)
    return counted


def _spare_inputs(file: WorldFile, log: Path) -> None:
    """Refuse to write the log over a trace or table that the world reads."""
    read = {path.resolve() for path in data_files(file.world.model_dump(), file.folder)}
    for path in (log, control_path(log)):
        if path.resolve() in read:
            raise InvalidInputError.of("log", str(path), "a file that the world does not read")


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for cyclic garbage seldom: a run makes hardly any, and its many queries are all alive.

    A sixth of the time of a run went into looking through them.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
