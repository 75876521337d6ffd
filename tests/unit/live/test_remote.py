"""Workers in other processes: the price of the way there is learned for each pool by itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from modelless.controller.live.frontend import RunBatch
from modelless.controller.live.remote import FIRST_HOP_S, RemoteWorkers, WorkerGoneError

WAIT_S = 10.0


class Site:
    """A pool some way off: the clock goes on by the way there and back and by the work."""

    def __init__(self, clock: list[float], hop_s: float) -> None:
        self.clock, self.hop_s = clock, hop_s
        self.run_batch = SimpleNamespace(remote=self._run)
        self.workers: list[str] = []

    async def _run(self, variant_id: str, inputs: Any, *, worker_id: str) -> Any:
        self.workers.append(worker_id)
        self.clock[0] += self.hop_s + 0.010
        return 0.010, ["answer"]


def test_each_sites_hop_is_its_own() -> None:
    clock = [0.0]
    sites = {"edge": Site(clock, 0.001), "core": Site(clock, 0.040)}
    asked: list[str] = []

    def handle_of(device_class: str) -> Any:
        asked.append(device_class)
        return sites[device_class]

    async def serve() -> RemoteWorkers:
        remote = RemoteWorkers(handle_of, lambda: clock[0])
        for site in sites:
            remote.know(f"{site}-worker", site)
            assert remote.hop_s(f"{site}-worker") == FIRST_HOP_S
        for number in range(6):
            site = "edge" if number % 2 else "core"
            answered = asyncio.get_running_loop().create_future()
            batch = RunBatch(number, f"{site}-worker", "t/m/v@1", [{}])
            remote.run(batch, lambda *said, to=answered: to.set_result(said))
            assert await asyncio.wait_for(answered, WAIT_S) == (number, 0.010, ["answer"], False)
        return remote

    remote = asyncio.run(serve())
    assert remote.hop_s("edge-worker") == pytest.approx(0.001)
    assert remote.hop_s("core-worker") == pytest.approx(0.040)
    assert sites["edge"].workers == ["edge-worker"] * 3
    assert sorted(asked) == ["core", "edge"], "a handle is made once"


def test_a_worker_that_is_gone_is_told_apart_from_a_batch_that_failed() -> None:
    async def serve(error: Exception) -> Any:
        async def fail(*args: Any, **more: Any) -> Any:
            raise error

        handle = SimpleNamespace(run_batch=SimpleNamespace(remote=fail))
        remote = RemoteWorkers(lambda device_class: handle)
        remote.know("w", "cpu-2")
        answered = asyncio.get_running_loop().create_future()
        batch = RunBatch(1, "w", "t/m/v@1", [{}])
        remote.run(batch, lambda *said: answered.set_result(said))
        return await asyncio.wait_for(answered, WAIT_S)

    gone, failed = WorkerGoneError("gone"), ValueError("bad")
    assert asyncio.run(serve(gone)) == (1, 0.0, gone, True)
    assert asyncio.run(serve(failed)) == (1, 0.0, failed, False)
