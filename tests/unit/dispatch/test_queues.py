"""Queues: their order, what has expired, what policies are shown; and who is asked next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.queues import Batch, Queue, WaitingQueries, Worker
from modelless.controller.dispatch.worker_groups import GroupsByScope, WorkerGroup
from modelless.controller.dispatch.workers import IdleWorkers
from modelless.policies.priorities import urgency
from modelless.policies.views import QueryView

from .world import make_query


def random_queries(count: int) -> list[QueryView]:
    """Of several priorities; some with equal deadlines, some with none."""
    rng = np.random.default_rng(3)
    limits = [None, 10.0, 20.0, 30.0, 40.0]
    return [
        make_query(
            number,
            100.0,
            latency_ms=limits[int(rng.integers(len(limits)))],
            priority=int(rng.integers(3)),
        )
        for number in range(count)
    ]


def fill(queries: Sequence[QueryView]) -> Queue:
    """A queue of these."""
    queue = Queue(("imagenet", None, None), {})
    for query in queries:
        queue.add(query)
    return queue


@pytest.mark.parametrize("count", [3, 300])  # copied for policies, and too long for that
def test_a_queue_is_sorted_and_shown_as_it_is(count: int) -> None:
    queries = random_queries(count)
    queue = fill(queries)
    for query in queries[::3]:
        queue.remove(query)
    left = sorted((q for q in queries if q not in queries[::3]), key=urgency)
    shown = queue.view.queries
    assert list(queue) == list(shown) == left
    assert len(queue) == len(shown) == len(left)
    assert shown[0] == left[0]
    assert shown[-1] == left[-1]
    assert shown[1:4] == tuple(left[1:4])
    with pytest.raises(IndexError):
        shown[len(left)]
    with pytest.raises(TypeError):
        shown[0] = left[1]  # type: ignore[index]


@pytest.mark.parametrize("now_s", [99.0, 100.01, 100.02, 100.025, 101.0, math.inf])
def test_what_expired_is_found_among_all_priorities(now_s: float) -> None:
    queries = random_queries(200)
    waiting = WaitingQueries(Tenants(1000))
    worker = Worker("w0", "cpu-1")
    for query in queries:
        if query.query_id % 2:
            waiting.defer_query(query)
        else:
            waiting.bind_query(query, worker, "imagenet/lite0/int8@1", 0.01)
    late = [query for query in queries if query.deadline_s <= now_s]
    assert waiting.find_expired(now_s) == sorted(late, key=urgency)


def test_idle_workers_are_asked_once_and_only_while_something_waits() -> None:
    waiting = WaitingQueries(Tenants(1000))
    groups = [
        WorkerGroup("cpu-1", (f"{name}/lite0/int8@1",), 0.0) for name in ("imagenet", "fashion")
    ]
    idle = IdleWorkers(waiting, GroupsByScope(lambda scope: {groups[0]}, most=8))
    workers = [Worker(f"w{number}", "cpu-1", number, groups[0]) for number in range(3)]
    idle.add(Worker("w3", "cpu-1", 3, groups[1]))  # serves something else
    for worker in (workers[1], workers[0], workers[2]):
        idle.add(worker)
    query = make_query(1, 100.0)
    news = [("imagenet", None, None)]
    idle.notify_groups(news)
    assert idle.next_to_ask() is None  # nothing waits
    assert waiting.defer_query(query) in news
    assert idle.next_to_ask() is None  # nobody was told
    idle.notify_groups(news)
    assert [idle.next_to_ask() for _ in range(4)] == [*workers[::-1], None]
    idle.notify_groups(news)
    assert idle.next_to_ask() is workers[2]
    workers[1].running = Batch(
        1, "imagenet/lite0/int8@1", "cpu-1", (), 0, 100.0, 0.01, math.inf, math.inf
    )
    idle.remove(workers[1])
    assert idle.next_to_ask() is workers[0]  # the other one is not idle any more
    idle.notify_groups(news)
    idle.next_to_ask()
    waiting.remove_query(query.query_id)
    assert idle.next_to_ask() is None
