"""What each term of the selection policy ``best-value`` brings, over random worlds.

Each variant of the policy lacks one term; all meet the same worlds and queries, with the scaling
policy ``fixed``:

    python benchmarks/simulation/ablation.py [--worlds 20] [--first 0] [--seed 1] [--set develop]
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
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from modelless.controller.sim.compare.compare import with_policies
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.random_worlds import draw_world
from modelless.controller.sim.worlds.world import WorldFile
from modelless.policies.selection.best_value import batches, best_value
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.best_value.menu import Suited
from modelless.policies.selection.best_value.pools import Pool, Pools, ToCome

WHOLE = "all"

_NONE_TO_COME = ToCome(np.zeros(0), np.zeros(0), math.inf)

_find_price, _best_batch = Pool.find_price, batches.best_batch


def _find_no_price(pool: Pool, worker: Any, queues: Any, *rest: Any) -> None:
    _find_price(pool, worker, queues, *rest)
    pool.price = 0.0


def _find_price_of_arrivals(pool: Pool, worker: Any, queues: Any, *rest: Any) -> None:
    for queue in queues:
        pool.menu(worker, queue.scope, queue.queries[0].size)
    _find_price(pool, worker, (), *rest)


def _best_batch_for_all_of_its_time(menu: Any, line: Any, terms: Any) -> Any:
    return _best_batch(menu, line, terms._replace(wanted=1.0))


VARIANTS: dict[str, tuple[object, str, object] | None] = {
    WHOLE: None,
    "no price": (Pool, "find_price", _find_no_price),
    "no backlog in the demand": (Pool, "find_price", _find_price_of_arrivals),
    "demand not shared out": (Pools, "share_out", lambda *_: None),
    "no value later": (Suited, "later", lambda *_: ([], [0.0])),
    "no filling with lower ranks": (BestValue, "_fill", lambda *args: args[3]),
    "no queries to come": (Pool, "to_come", lambda *_: _NONE_TO_COME),
    "no gamble": (best_value, "_alone", lambda *_: None),
    "the most urgent queue only": (best_value, "_QUEUES_LOOKED_AT", 1),
    "no start behind the hurried": (best_value, "bisect_left", lambda *_, **__: 0),
    "all of a batch's time charged": (best_value, "best_batch", _best_batch_for_all_of_its_time),
}
"""By name of the variant: what it replaces (an owner and an attribute), and with what."""


def run(job: tuple[str, int, int, str, int]) -> tuple[int, str, float]:
    """Returns the mean value of a query in a world, with a variant of the policy."""
    world_set, seed, number, name, queries = job
    world = draw_world(seed, number, world_set, queries=queries).world  # type: ignore[arg-type]
    suite = {"selection": "best-value", "scaling": "fixed"}
    file = with_policies(WorldFile(world, Path()), suite)
    replaced = VARIANTS[name]
    with patch.object(*replaced) if replaced is not None else nullcontext():
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
    sys.exit(main())
