"""What each term of the selection policy ``best-value`` brings, over random worlds.

Each variant of the policy lacks one term of its formula; all meet the same worlds and queries, with
the scaling policy ``fixed``:

    python benchmarks/ablation.py [--worlds 20] [--first 0] [--seed 1] [--set develop]
        [--queries 2000] [--most-worker-seconds 1500] [--processes 2]

It prints the mean value per query, the difference to the whole policy with its standard error, and
in how many worlds leaving the term out is better or worse by more than half a point.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.sim.compare.compare import with_policies
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.random_worlds import draw_world
from modelless.controller.sim.worlds.world import WorldFile
from modelless.policies.selection.best_value import best_value
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.views import QueueView

WHOLE = "all"


class _PolicyWithoutPrice(BestValue):
    def _find_price(self, *args: Any) -> None:
        super()._find_price(*args)
        args[1].price = 0.0


class _PolicyWithoutBacklog(BestValue):
    def _find_price(
        self, worker: Any, pool: Any, queues: Sequence[QueueView], now_s: float
    ) -> None:
        for queue in queues:
            pool.menu(worker, queue.scope)
        super()._find_price(worker, pool, (), now_s)


class _PolicyWithoutLater(BestValue):
    def _points_later(self, *args: Any) -> Any:
        return np.zeros(len(args[1]))


class _PolicyWithoutFilling(BestValue):
    def _fill(self, *args: Any) -> Any:
        return args[3]


class _PolicyThatKeepsAll(BestValue):
    def _left_until_s(self, *args: Any) -> float:
        return float(args[3])


class _PolicyWithoutHigher(BestValue):
    def _higher(self, *args: Any) -> Any:
        return type(super()._higher(*args))()


class _PolicyThatChargesInFull(BestValue):
    def _best_of(self, *args: Any) -> Any:
        return super()._best_of(*args[:4], 1.0, *args[5:])


class _PolicyThatGathersFullBatches(BestValue):
    def _find_price(self, *args: Any) -> None:
        usual = best_value.price_of_time

        def with_full_batches(demands: Any, *rest: Any) -> float:
            return usual([(rate, offer, 1_000_000) for rate, offer, _ in demands], *rest)

        best_value.price_of_time = with_full_batches
        try:
            super()._find_price(*args)
        finally:
            best_value.price_of_time = usual


VARIANTS: dict[str, type[BestValue]] = {
    WHOLE: BestValue,
    "no price": _PolicyWithoutPrice,
    "no backlog in the demand": _PolicyWithoutBacklog,
    "full batches in the price": _PolicyThatGathersFullBatches,
    "no value later": _PolicyWithoutLater,
    "the whole batch's time charged": _PolicyThatChargesInFull,
    "no filling with lower ranks": _PolicyWithoutFilling,
    "no higher priorities to come": _PolicyWithoutHigher,
    "nothing left to other pools": _PolicyThatKeepsAll,
}


def run(job: tuple[str, int, int, str, int]) -> tuple[int, str, float]:
    """Returns the mean value of a query in a world, with a variant of the policy."""
    world_set, seed, number, name, queries = job
    world = draw_world(seed, number, world_set, queries=queries).world  # type: ignore[arg-type]
    suite = {"selection": f"{__name__}:{VARIANTS[name].__name__}", "scaling": "fixed"}
    file = with_policies(WorldFile(world, Path()), suite)
    return number, name, simulate(file, seed=world.seed).figures()["value_per_query"] or 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", default="develop", choices=("develop", "judge"))
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--most-worker-seconds", type=float, default=1500.0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()

    def is_quick(number: int) -> bool:
        features = draw_world(args.seed, number, args.set, queries=args.queries).features
        return features["duration, s"] * max(features["workers"], 5.0) < args.most_worker_seconds

    numbers = list(islice(filter(is_quick, count(args.first)), args.worlds))
    jobs = [(args.set, args.seed, n, name, args.queries) for n in numbers for name in VARIANTS]
    values: dict[str, dict[int, float]] = {name: {} for name in VARIANTS}
    with ProcessPoolExecutor(args.processes) as pool:
        for done, (number, name, value) in enumerate(pool.map(run, jobs), 1):
            values[name][number] = value
            print(f"\r{done} of {len(jobs)} runs", end="", file=sys.stderr)
    print(file=sys.stderr)
    show(values, numbers, print)
    return 0


def show(
    values: dict[str, dict[int, float]], numbers: Sequence[int], say: Callable[[str], None]
) -> None:
    """Print the table."""
    say(f"{len(numbers)} worlds: {', '.join(map(str, numbers))}")
    say(f"{'without':>32}  value   points   error  worse better")
    for name, found in values.items():
        less = [100.0 * (found[n] - values[WHOLE][n]) for n in numbers]
        error = statistics.stdev(less) / math.sqrt(len(less)) if len(less) > 1 else math.nan
        worse, better = sum(x < -0.5 for x in less), sum(x > 0.5 for x in less)
        mean = statistics.fmean(found.values())
        row = f"{name:>32}  {mean:.4f}  {statistics.fmean(less):+6.2f}  {error:6.2f}"
        say(f"{row}  {worse:5} {better:6}")


if __name__ == "__main__":
    # Policies are found by module and name, also in the processes that run.
    from ablation import main as named_main  # type: ignore[import-not-found]

    sys.exit(named_main())
