"""Batches go to workers that routers know, and come back at once where they know none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from modelless.controller.live.front.interfaces import RunBatch
from modelless.controller.live.front.remote_workers import (
    FIRST_HOP_S,
    RemoteWorkers,
    RoutableWorkers,
    WorkerGoneError,
)
from modelless.controller.live.worker.batch_replies import Ran, TurnedBack


class Handle:
    """A Serve handle, as far as it is used here; it answers after ``delay_s`` of its own."""

    app_name = "pool-app"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_open = False

    def options(self) -> Handle:
        self.is_open = True
        return self

    @property
    def run_batch(self) -> Handle:
        return self

    async def remote(
        self, variant_id: str, inputs: Any, expected_s: float, patience_s: float, *, worker_id: str
    ) -> Any:
        self.asked.append(worker_id)
        return Ran(0.0, 0.0, [{} for _ in inputs], 0.0)


def run(
    remote: RemoteWorkers, worker_id: str, expected_s: float = 0.020, patience_s: float = 0.5
) -> asyncio.Future[Any]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    batch = RunBatch(1, worker_id, "t/m/v@1", [{}])
    remote.run(batch, expected_s, patience_s, lambda *told: answer.set_result(told))
    return answer


def test_only_workers_that_a_router_knows_can_be_reached() -> None:
    async def serve() -> None:
        routable, handle = RoutableWorkers(), Handle()
        remote = RemoteWorkers({"cpu-1": handle}, routable)
        changed = asyncio.Event()
        remote.start(changed.set)
        assert handle.is_open, "or Serve would not tell it of workers"
        assert not remote.reaches("w")
        routable.put("pool-app", ["w"])
        await asyncio.wait_for(changed.wait(), 10.0)
        assert remote.reaches("w")
        assert remote.hop_s("w") == FIRST_HOP_S
        batch_id, result, lost = await run(remote, "w")
        assert (batch_id, result.outputs, lost) == (1, [{}], False)
        routable.put("pool-app", [])
        assert not remote.reaches("w")
        _, error, lost = await run(remote, "w")
        assert isinstance(error, WorkerGoneError)
        assert lost, "its queries are tried elsewhere"
        assert handle.asked == ["w"]

    asyncio.run(serve())


def test_a_worker_of_another_application_is_not_for_us() -> None:
    async def serve() -> None:
        routable = RoutableWorkers()
        remote = RemoteWorkers({"cpu-1": Handle()}, routable)
        remote.start(lambda: None)
        routable.put("another", ["w"])
        assert not remote.reaches("w")

    asyncio.run(serve())


class Site(Handle):
    """A pool some way off: the clock goes on by the way there and back and by the work.

    A batch waits 5 ms for another gateway's, and another 3 ms are to follow.
    """

    def __init__(self, name: str, clock: list[float], hop_s: float) -> None:
        super().__init__()
        self.app_name = name
        self.clock, self.hop_s = clock, hop_s

    async def remote(
        self, variant_id: str, inputs: Any, expected_s: float, patience_s: float, *, worker_id: str
    ) -> Any:
        self.asked.append(worker_id)
        self.clock[0] += self.hop_s + 0.015
        return Ran(0.010, 0.005, ["answer"], 0.003)


def test_each_sites_hop_is_its_own() -> None:
    clock = [0.0]
    sites = {"edge": Site("edge", clock, 0.001), "core": Site("core", clock, 0.040)}
    routable = RoutableWorkers()
    for site in sites:
        routable.put(site, [f"{site}-worker"])

    async def serve() -> RemoteWorkers:
        remote = RemoteWorkers(sites, routable, lambda: clock[0])
        for number in range(6):
            site = "edge" if number % 2 else "core"
            _, ran, lost = await asyncio.wait_for(run(remote, f"{site}-worker"), 10.0)
            assert (ran.busy_s, ran.outputs, lost) == (0.010, ["answer"], False)
        return remote

    remote = asyncio.run(serve())
    assert remote.hop_s("edge-worker") == pytest.approx(0.001)
    assert remote.hop_s("core-worker") == pytest.approx(0.040)
    assert sites["edge"].asked == ["edge-worker"] * 3


class Taken(Handle):
    """A worker that others' batches keep for 50 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed: list[tuple[float, float]] = []

    async def remote(
        self, variant_id: str, inputs: Any, expected_s: float, patience_s: float, *, worker_id: str
    ) -> Any:
        self.allowed.append((expected_s, patience_s))
        return TurnedBack(0.050)


def test_what_a_worker_turns_back_is_told_less_the_way_to_it() -> None:
    async def serve() -> None:
        routable, handle = RoutableWorkers(), Taken()
        routable.put("pool-app", ["w"])
        remote = RemoteWorkers({"cpu-1": handle}, routable)
        _, result, lost = await asyncio.wait_for(run(remote, "w", 0.020, 0.5), 10.0)
        assert result == TurnedBack(pytest.approx(0.050 - FIRST_HOP_S))
        assert not lost
        assert handle.allowed == [(pytest.approx(max(0.020 - FIRST_HOP_S, 0.0)), 0.5)]

    asyncio.run(serve())
