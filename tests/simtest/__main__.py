"""Run seeds: ``python -m tests.simtest --seeds 300``; see ``docs/simtest.md``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from typing import NamedTuple

from tests.simtest.cluster import Cluster
from tests.simtest.schedule import Schedule, draw
from tests.simtest.shrink import shrink
from tests.simtest.world import Violation


class Outcome(NamedTuple):
    """A run's result; ``name`` of the invariant is empty if all hold."""

    seed: int
    name: str
    message: str
    trace: str
    virtual_s: float
    took_s: float
    injected: Counter[str]
    effects: Counter[str]
    lines: tuple[str, ...] = ()


def run(schedule: Schedule, keep: int = 0, *, hashes: bool = False) -> Outcome:
    """Run a schedule. An exception in a machine or a driver is a violation, too."""
    began_s = time.process_time()
    name = message = ""
    cluster = Cluster(schedule, keep, hashes=hashes)
    try:
        cluster.run()
    except Violation as violation:
        name, message = violation.name, str(violation)
    except Exception as error:  # noqa: BLE001  (whatever is raised is what is looked for)
        where = traceback.extract_tb(error.__traceback__)[-1]
        name = f"{type(error).__name__} in {where.name}"
        message = "".join(traceback.format_exception(error)[-6:])
    world, took_s = cluster.world, time.process_time() - began_s
    return Outcome(schedule.seed, name, message, world.trace, world.now_s, took_s,
                   world.injected, world.effects, tuple(world.lines))  # fmt: skip


def run_seed(seed: int) -> Outcome:
    """Run the schedule of a seed."""
    return run(draw(seed))


def run_one(seed: int, keep: int) -> bool:
    """Run a seed and print all about it; returns whether an invariant does not hold."""
    outcome = run(draw(seed), keep, hashes=True)
    print(*outcome.lines, draw(seed).words(), sep="\n")
    print(outcome.message or f"all invariants hold; trace {outcome.trace}")
    return bool(outcome.name)


def run_many(seeds: range, jobs: int) -> bool:
    """Run seeds and print what was found; returns whether an invariant does not hold."""
    began_s = time.monotonic()
    outcomes: list[Outcome] = []
    with multiprocessing.Pool(jobs) as pool:
        for outcome in pool.imap_unordered(run_seed, seeds):
            outcomes.append(outcome)
            if outcome.name:
                print(f"\nseed {outcome.seed}: {outcome.message}", flush=True)
            if len(outcomes) % 50 == 0:
                print(f"{len(outcomes)} of {len(seeds)} seeds", file=sys.stderr)
    failed = sorted(outcome for outcome in outcomes if outcome.name)
    for name in sorted({outcome.name for outcome in failed}):
        print(f"{name}: seeds {[each.seed for each in failed if each.name == name]}")
    for outcome in failed[:3]:
        small = shrink(draw(outcome.seed), lambda tried, name=outcome.name: run(tried).name == name)
        print(f"\n{outcome.name}, shrunken:\n{small.words()}")
    hours = sum(outcome.virtual_s for outcome in outcomes) / 3600.0
    each_s = sum(outcome.took_s for outcome in outcomes) / max(len(outcomes), 1)
    print(
        f"{len(outcomes)} seeds, {len(failed)} failed, {hours:.2f} virtual hours, "
        f"{each_s:.2f} CPU seconds a seed, {time.monotonic() - began_s:.0f} s"
    )
    for title in ("injected", "effects"):
        counts = sum((getattr(outcome, title) for outcome in outcomes), Counter())
        print(f"{title}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items())))
    return bool(failed)


def main() -> int:
    """Run what the command line says; returns 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simtest", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--verbose", action="store_true", help="print the end of its trace")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    if given.seed is not None:
        return run_one(given.seed, keep=400 * given.verbose)
    return run_many(range(given.first, given.first + given.seeds), given.jobs)


if __name__ == "__main__":
    sys.exit(main())
