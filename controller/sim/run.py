"""One run of a world, from its file to its summary."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from modelless.common.errors import InvalidInputError
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.sim.compare.sources import data_files
from modelless.controller.sim.engine import Engine, Progress
from modelless.controller.sim.log import Log, control_path
from modelless.controller.sim.recorder import Recorder
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.query_streams import arrivals_by_scope, queries
from modelless.controller.sim.worlds.world import WorldFile

# A policy that does not return: its run ends with an error that names it, instead of never.

_CONTROLLER = "modelless.controller."
_ASKING = tuple(f"{_CONTROLLER}{folder}." for folder in ("dispatch", "control", "device", "sim"))
_DEBUGGERS = ("bdb", "pdb")


class _HangsError(BaseException):
    """Raised in the midst of what hangs: no policy's ``except Exception`` is to catch it."""


@contextmanager
def ended_if_hanging(moves: Callable[[], object], limit_s: float) -> Iterator[None]:
    """End the block if nothing moves for ``limit_s`` to twice as long, in a policy's code.

    Watches by an alarm signal, which costs nothing in between; so only in a main thread, and only
    where the system has such signals. What never comes back from C code cannot be ended.

    Raises:
        InvalidInputError: names what hung.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return
    seen = moves()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        now = moves()
        culprit = _culprit(frame) if now == seen else ""
        if culprit:
            raise _HangsError(f"{culprit}, which did not return within {limit_s:g} s")
        seen = now

    began_s = time.monotonic()
    handler = signal.signal(signal.SIGALRM, look)
    rest_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    except _HangsError as hangs:
        allowed = "those that answer within limits.policy_s; raise it if this one only needs longer"
        raise InvalidInputError.of("policies", str(hangs), allowed) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if rest_s:  # somebody else's alarm was set: as it would be now
            rest_s = max(rest_s - (time.monotonic() - began_s), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest_s, every_s)


def _culprit(frame: FrameType | None) -> str:
    """The call from a core or the simulator to other code that has not come back, and where it is
    now; empty if there is none, as when the log's disk stalls, or if somebody debugs it."""
    where, called = "", None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name in _DEBUGGERS:
            return ""
        where = where or f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        is_ours = name.startswith(_CONTROLLER)
        if called is not None and name.startswith(_ASKING):
            return f"{called.f_code.co_qualname} ({where})"
        called, frame = None if is_ours else frame, frame.f_back
    return ""


def simulate(
    file: WorldFile,
    *,
    seed: int | None = None,
    log: Path | None = None,
    home: Path | None = None,
    progress: Progress | None = None,
    summary: Summary | None = None,
    receipts: list[Receipt] | None = None,
    true_ratios: Mapping[tuple[str, str], float] | None = None,
) -> Summary:
    """Run a world.

    Args:
        log: of the queries; see ``log.Log``. Whole up to where the run came, however it ends.
        home: of the store, for worlds with tasks from there.
        progress: called about once a simulated second.
        summary: to count in, for who wants to look while it runs or after it failed.
        receipts: takes the receipt of each query that came to the gateway, as it is answered.
        true_ratios: what batches really take over what they take in the world, by variant id
            and device class; the world's own ``true_ratios`` count, too.

    Raises:
        InvalidInputError: the world, a table or a trace of it does not fit; or a policy hangs.
        NotFoundError: no such policy.
        EnvironmentUnfitError: the log cannot be written.
    """
    world = file.world
    seed = world.seed if seed is None else seed
    fleet = build_fleet(file, home)
    if true_ratios:
        known = fleet.true_ratios
        changed = {key: known.get(key, 1.0) * ratio for key, ratio in true_ratios.items()}
        fleet = replace(fleet, true_ratios={**known, **changed})
    counted = summary if summary is not None else Summary(seed, world.name)

    if log is not None:
        _spare_inputs(file, log)
    with nullcontext() if log is None else Log(log) as books:
        facts = dict(fleet.variants), dict(fleet.device_classes)
        recorder = Recorder(counted, books, *facts, receipts)
        engine = Engine(world, fleet, queries(file, seed), seed, recorder)
        if engine.clairvoyants:
            arrivals_s = arrivals_by_scope(queries(file, seed))
            for policy in engine.clairvoyants:
                policy.reveal(arrivals_s)
        with _few_collections(), ended_if_hanging(engine.moves, world.limits.policy_s):
            engine.run(progress)
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
