"""Queues: their order, what has expired, what policies are shown; and who is asked next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from modelless.controller.dispatch.idle_workers import IdleWorkers
from modelless.controller.dispatch.queues import Batch, Queue, WaitingRoom, Worker
from modelless.controller.dispatch.servers import Servers
from modelless.controller.dispatch.tenants import Tenants
from modelless.controller.dispatch.worker_groups import Outfit
from modelless.policies.batching.urgency import urgency
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
    room = WaitingRoom(Tenants(1000))
    worker = Worker("w0", "cpu-1")
    for query in queries:
        if query.query_id % 2:
            room.defer(query)
        else:
            room.bind(query, worker, "imagenet/lite0/int8@1", 0.01)
    late = [query for query in queries if query.deadline_s <= now_s]
    assert room.expired(now_s) == sorted(late, key=urgency)


def test_idle_workers_are_asked_once_and_only_while_something_waits() -> None:
    room = WaitingRoom(Tenants(1000))
    outfits = [Outfit("cpu-1", (f"{name}/lite0/int8@1",), 0.0) for name in ("imagenet", "fashion")]
    idle = IdleWorkers(room, Servers(lambda scope: {outfits[0]: 0}, most=8))
    workers = [Worker(f"w{number}", "cpu-1", number, outfits[0]) for number in range(3)]
    idle.add(Worker("w3", "cpu-1", 3, outfits[1]))  # serves something else
    for worker in (workers[1], workers[0], workers[2]):
        idle.add(worker)
    query = make_query(1, 100.0)
    news = [("imagenet", None, None)]
    idle.tell_servers(news)
    assert idle.next_hungry(100.0) is None  # nothing waits
    assert room.defer(query).key in news
    assert idle.next_hungry(100.0) is None  # nobody was told
    idle.tell_servers(news)
    assert [idle.next_hungry(100.0) for _ in range(4)] == [*workers[::-1], None]
    idle.tell_servers(news)
    assert idle.next_hungry(100.0) is workers[2]
    workers[1].running = Batch(
        1, "imagenet/lite0/int8@1", "cpu-1", (), 0, 100.0, 0.01, math.inf, math.inf
    )
    idle.remove(workers[1])
    assert idle.next_hungry(100.0) is workers[0]  # the other one is not idle any more
    idle.tell_servers(news)
    idle.next_hungry(100.0)
    room.take(query.query_id)
    assert idle.next_hungry(100.0) is None


def settled() -> tuple[WaitingRoom, Servers, IdleWorkers, Worker]:
    """An idle worker that has answered for all alike, until 100.5, about the one queue there is."""
    outfit = Outfit("cpu-1", ("imagenet/lite0/int8@1",), 0.0)
    room, servers = WaitingRoom(Tenants(1000)), Servers(lambda scope: {outfit: 0}, most=8)
    idle, worker = IdleWorkers(room, servers), Worker("w0", "cpu-1", 0, outfit)
    idle.add(worker)
    key = room.defer(make_query(1, 100.0, latency_ms=1000.0)).key
    idle.tell_servers([key])
    assert idle.next_hungry(100.0) is worker
    idle.settle(worker, 100.5)
    idle.tell_servers([key])
    idle.tell(worker)
    assert idle.next_hungry(100.499) is None
    return room, servers, idle, worker


def test_what_is_settled_is_so_until_then() -> None:
    room, _, idle, worker = settled()
    idle.tell_servers(room.deferred)
    assert idle.next_hungry(100.5) is worker


def test_what_is_settled_is_so_until_somebody_comes_first() -> None:
    room, _, idle, worker = settled()
    behind = make_query(2, 100.0, latency_ms=2000.0)
    first = make_query(3, 100.0, latency_ms=900.0)
    idle.tell_joined(room.defer(behind), behind)
    assert idle.next_hungry(100.0) is None
    idle.tell_joined(room.defer(first), first)
    assert idle.next_hungry(100.0) is worker


@pytest.mark.parametrize("forget", [Servers.clear, lambda servers: servers.__delitem__("imagenet")])
def test_what_is_settled_is_so_while_shelves_are_what_they_were(
    forget: Callable[[Servers], None],
) -> None:
    room, servers, idle, worker = settled()
    forget(servers)
    idle.tell_servers(room.deferred)
    assert idle.next_hungry(100.0) is worker


def test_what_is_settled_no_more_is_forgotten() -> None:
    room, _, idle, worker = settled()
    assert idle.unsettle(100.4) == 100.5
    idle.tell_servers(room.deferred)
    assert idle.next_hungry(100.4) is None
    assert idle.unsettle(100.5) == math.inf
    idle.settle(worker, 101.0)
    room.take(1)
    assert idle.unsettle(100.6) == math.inf
