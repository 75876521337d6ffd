"""Priorities hold in random worlds.

The promise is about one decision, because a policy does not know what will come. A worker is given
a batch while a query of a higher rank than some member waits, which could be in time there: alone,
with a variant that is loaded, at p95. Then that query is answered in time, or it is not for the
lower ranks in the batch that it is lost. These are not to blame

* if the query could also run after the batch on the same worker, at p95: what comes later, such as
  more of its own rank, may then be why it is lost;
* or if the batch's members of its rank and above take too long for that by themselves.

A query with a cost limit is left out: a worker is not told what variants cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from modelless.controller.sim.compare.compare import with_policies
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.random_worlds import draw_world
from modelless.controller.sim.worlds.world import WorldFile
from modelless.policies.priorities import rank, urgency
from modelless.policies.scopes import in_scope
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.views import QueryView, QueueView, Run, Wait, WorkerView

from .books import read

P95 = 1.645 / 2.326  # on the way from the logarithm of p50 to that of p99
WORLDS = [325, 342, 364, 371, 411]
"""Small worlds to develop on that have several priorities."""


def alone_s(worker: WorkerView, query: QueryView) -> float:
    """The least p95 of the query alone on the worker; inf if it cannot run there."""
    if query.max_cost_usd < math.inf or query.items > worker.max_batch:
        return math.inf
    return min(
        (
            view.p50_s[query.items] * (view.p99_s[query.items] / view.p50_s[query.items]) ** P95
            for name, view in worker.residents.items()
            if in_scope(name, query.scope) and view.accuracy_percent >= query.min_accuracy_percent
        ),
        default=math.inf,
    )


def displaced(
    worker: WorkerView, queues: Sequence[QueueView], run: Run, now_s: float
) -> Iterator[int]:
    """The ids of the queries that lower ranks in this batch keep from being in time on the worker.

    A batch is taken to last its p50.
    """
    p50_s = worker.residents[run.variant_id].p50_s
    members = {query.query_id for query in run.queries}
    lowest = max(map(rank, run.queries))
    items = sum(query.items for query in run.queries)
    for query in [query for queue in queues for query in queue.queries if rank(query) < lowest]:
        can_wait_s = query.deadline_s - now_s - alone_s(worker, query)
        before = sum(other.items for other in run.queries if rank(other) <= rank(query))
        if query.query_id not in members and p50_s[before] <= can_wait_s < p50_s[items]:
            yield query.query_id


class Watched(BestValue):
    """``best-value``; its class notes what batches displace."""

    displaced: ClassVar[set[int]] = set()

    def on_idle(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        decision = self.decide(worker, queues, now_s, rng)
        if isinstance(decision, Run):
            Watched.displaced.update(displaced(worker, queues, decision, now_s))
        return decision

    def decide(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        return super().on_idle(worker, queues, now_s, rng)


class RanksIgnored(Watched):
    """Decides as if all queries had the same rank."""

    def decide(
        self,
        worker: WorkerView,
        queues: Sequence[QueueView],
        now_s: float,
        rng: np.random.Generator,
    ) -> Run | Wait:
        waiting = {query.query_id: query for queue in queues for query in queue.queries}
        equal = []
        for queue in queues:
            queries = [query._replace(priority=0, demoted=False) for query in queue.queries]
            names = queue.scope, queue.variant_id, queue.batch_key
            equal.append(QueueView(*names, tuple(sorted(queries, key=urgency))))
        decision = super().decide(worker, equal, now_s, rng)
        dropped = tuple([waiting[query.query_id] for query in decision.dropped])
        if isinstance(decision, Wait):
            return decision._replace(dropped=dropped)
        queries = [waiting[query.query_id] for query in decision.queries]
        return decision._replace(dropped=dropped, queries=tuple(queries))


def lost(policy: type[Watched], number: int, folder: Path) -> list[int]:
    """The ids of the queries that lower ranks displaced, and that were not answered in time."""
    Watched.displaced.clear()
    world = draw_world(1, number, "develop", queries=400).world
    suite = {"selection": f"{__name__}:{policy.__name__}", "scaling": "fixed"}
    log = folder / "queries.csv"
    simulate(with_policies(WorldFile(world, Path()), suite), seed=world.seed, log=log)
    in_time = {row["query_id"] for row in read(log) if row["outcome"] == "served"}
    return sorted(Watched.displaced - in_time)


@pytest.mark.parametrize("number", WORLDS)
def test_no_query_is_lost_because_lower_ranks_are_served(number: int, tmp_path: Path) -> None:
    assert lost(Watched, number, tmp_path) == []


@pytest.mark.parametrize("number", WORLDS)
def test_queries_are_lost_if_ranks_are_ignored(number: int, tmp_path: Path) -> None:
    assert lost(RanksIgnored, number, tmp_path)
