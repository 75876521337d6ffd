"""How calls find the worker that they name, in Serve's own router: dead, busy, or not there yet."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Ray itself uses is deprecated
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
    from ray.serve.request_router import PendingRequest, ReplicaID

    from modelless.controller.live.worker.pool import FIND_WORKER_S, LOOK_S, PinnedRouter

from modelless.controller.live.front.remote_workers import ROUTABLE, WorkerGoneError

T = TypeVar("T")
APP = "test-pinned-router"
DEPLOYMENT = DeploymentID("PoolReplica", APP)


class Time:
    """A clock that goes on when somebody waits for it, and what happens then."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.due: dict[float, Callable[[], None]] = {}

    async def pause(self, for_s: float) -> None:
        self.now_s += for_s
        for at_s in [at_s for at_s in self.due if at_s <= self.now_s]:
            self.due.pop(at_s)()


class Replica:
    """What Ray's router knows of a replica."""

    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


def replicas(*names: str) -> list[Any]:
    return [Replica(name) for name in names]


def call(worker_id: str, at_s: float = 1000.0) -> Any:
    metadata = RequestMetadata(request_id="r", internal_request_id="i")
    return PendingRequest([], {"worker_id": worker_id}, metadata, at_s)


def router(time: Time, *names: str) -> Any:
    made = PinnedRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA)
    made._clock, made._pause = lambda: time.now_s, time.pause
    made.update_replicas(replicas(*names))
    return made


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def test_each_call_finds_the_worker_that_it_names() -> None:
    async def find() -> list[str]:
        made = router(Time(), "a", "b")
        found = [await made._choose_replica_for_request(call(name)) for name in "ba"]
        return [each.replica_id.unique_id for each in found]

    assert run(find()) == ["b", "a"]


def test_one_that_comes_a_moment_later_is_waited_for() -> None:
    async def find() -> str:
        time = Time()
        made = router(time, "a")
        time.due[1001.0] = lambda: made.update_replicas(replicas("a", "b"))
        return str((await made._choose_replica_for_request(call("b"))).replica_id.unique_id)

    assert run(find()) == "b"


def test_one_that_never_comes_is_given_up() -> None:
    async def find() -> float:
        time = Time()
        with pytest.raises(WorkerGoneError, match="'b'"):
            await router(time, "a")._choose_replica_for_request(call("b"))
        return time.now_s - 1000.0

    assert run(find()) == pytest.approx(FIND_WORKER_S, abs=LOOK_S)


@pytest.mark.parametrize("found_by", ["a call", "Serve"])
def test_one_that_is_gone_is_not_waited_for(found_by: str) -> None:
    async def find() -> float:
        time = Time()
        made = router(time, "a", "b")
        if found_by == "Serve":
            made.update_replicas(replicas("b"))
        else:
            made.on_replica_actor_died(ReplicaID("a", DEPLOYMENT))
        assert ROUTABLE.app_of("a") is None
        assert ROUTABLE.app_of("b") == APP
        with pytest.raises(WorkerGoneError, match="'a'"):
            await made._choose_replica_for_request(call("a"))
        made.update_replicas(replicas("a", "b"))  # Serve does not know yet
        assert ROUTABLE.app_of("a") is None
        with pytest.raises(WorkerGoneError, match="'a'"):
            await made._choose_replica_for_request(call("a"))
        return time.now_s

    assert run(find()) == 1000.0


def test_one_that_takes_nothing_is_tried_with_pauses_and_not_for_ever() -> None:
    async def try_on() -> int:
        made, tries = router(Time(), "a"), 0
        while True:
            try:
                await made._choose_replica_for_request(call("a"), is_retry=tries > 0)
            except WorkerGoneError:
                return tries
            tries += 1

    assert run(try_on()) == pytest.approx(FIND_WORKER_S / LOOK_S, abs=2)
