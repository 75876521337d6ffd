"""A query that waits for a load, and orders that wait for a member, do not wait for a second."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.machine import ControlTimes
from modelless.controller.control.messages import MemberReport
from modelless.controller.control.pools import GATEWAYS
from modelless.controller.device.messages import LoadInstance
from modelless.controller.live import report_pace
from modelless.controller.live.cluster.release import PROTOCOL
from modelless.controller.live.control import control_loop as control
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.orders import Orders
from modelless.controller.live.report_pace import Pace
from modelless.controller.live.store_lease import hold_store
from modelless.policies.views import Instance, WorkerState

LARGE = "pixels/mean/large@1"
KIND = ("pixels/mean/large", 10.0, 0.0)
MOST_S = 30.0
IDLE = MemberReport("g", True, WorkerState("g", "cpu-1", 1 << 30, ()), pool=GATEWAYS)


def settings(**more: object) -> Settings:
    return parse_settings(
        {"policies": {"scaling": {"policy": "on-demand", "preload": False}}, **more}
    )


POOLED = {"gateways": {"count": 1, "device_class": None}, "pools": [{"device_class": "cpu-1"}]}


def waiting(*, is_urgent: bool = True, device: bool = True) -> MemberReport:
    """A gateway's report: one query has begun to wait for a load 50 ms after the last report."""
    return MemberReport(
        "g",
        True,
        WorkerState("g", "cpu-1", 1 << 30, ()) if device else None,
        interval_s=0.05,
        arrivals={KIND[0]: 1},
        unmet={KIND[0]: 1},
        kinds={KIND: (1, 1)},
        queued=1,
        pool=GATEWAYS,
        is_urgent=is_urgent,
    )


def worker(*held: str) -> MemberReport:
    instances = tuple(Instance("w", name, 1 << 20, 0.1, 0.0, 0) for name in held)
    return MemberReport("w", False, WorkerState("w", "cpu-1", 1 << 30, instances), pool="cpu-1")


def loads(orders: Orders) -> list[str]:
    return [each.variant_id for each in orders.effects if isinstance(each, LoadInstance)]


def test_an_urgent_report_right_after_a_tick_is_decided_on_a_moment_later(home: Path) -> None:
    times = ControlTimes(early_tick_s=0.2)

    async def talk() -> Orders:
        loop = ControlLoop(home, settings(), None, times=times)
        await loop.exchange(IDLE)
        orders = await loop.exchange(waiting())
        if not loads(orders):  # else this machine is so slow that the moment has passed
            assert await asyncio.wait_for(loop.called("g"), MOST_S)
            orders = await loop.exchange(waiting(is_urgent=False))
        return orders

    assert loads(asyncio.run(talk())) == [LARGE]


def test_a_worker_is_called_for_its_orders_and_the_gateway_for_what_is_loaded(home: Path) -> None:
    async def talk() -> Orders:
        at_once = ControlTimes(early_tick_s=0.0)
        loop = ControlLoop(home, settings(**POOLED), None, times=at_once)
        await loop.exchange(waiting(is_urgent=False, device=False))
        await loop.exchange(worker())
        called = asyncio.create_task(loop.called("w"))
        await loop.exchange(waiting(device=False))
        assert await asyncio.wait_for(called, MOST_S)
        assert loads(await loop.exchange(worker())) == [LARGE]
        called = asyncio.create_task(loop.called("g"))
        await loop.exchange(worker(LARGE))
        assert await asyncio.wait_for(called, MOST_S)
        return await loop.exchange(waiting(is_urgent=False, device=False))

    (told,) = asyncio.run(talk()).directory
    assert told.variant_ids == (LARGE,)


def test_a_member_is_called_once_and_only_if_there_is_need(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "WATCH_S", 0.01)

    async def talk() -> list[bool]:
        loop = ControlLoop(home, settings(**POOLED), None, times=ControlTimes(early_tick_s=0.0))
        await loop.exchange(worker())
        found = [await loop.called("nobody"), await loop.called("w")]
        await loop.exchange(waiting(device=False))
        return [*found, await loop.called("w"), await loop.called("w")]

    assert asyncio.run(talk()) == [False, False, True, False]


def test_a_member_in_a_hurry_does_not_pause_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_pace, "LEAST_PAUSE_S", 0.0)

    async def hurry() -> tuple[bool, bool]:
        mine = Pace()
        mine.hurry()
        await asyncio.wait_for(mine.pause(1e6), MOST_S)
        asyncio.get_running_loop().call_soon(lambda: mine.hurry(urgent=True))
        await asyncio.wait_for(mine.pause(1e6), MOST_S)
        await mine.pause(0.002)  # in its own time
        return mine.take_urgency(), mine.take_urgency()

    assert asyncio.run(hurry()) == (True, False)


def test_pins_are_loaded_kept_in_the_home_and_noted(home: Path) -> None:
    async def pin() -> tuple[list[str], list[str]]:
        loop = ControlLoop(home, settings(), None, times=ControlTimes(early_tick_s=0.0))
        await loop.exchange(IDLE)
        assert await loop.answer(PROTOCOL, "pin", LARGE, True, "key 1") is None
        assert await asyncio.wait_for(loop.called("g"), MOST_S)
        orders = await loop.exchange(IDLE)
        await loop.pin("pixels", True, "key 1")
        await loop.pin("pixels", False, "key 1")
        return loads(orders), list(loop.status()["pins"])

    assert asyncio.run(pin()) == ([LARGE], [LARGE])
    acts = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [(act["act"], act["scope"], act["user"]) for act in acts] == [
        ("pin", LARGE, "key 1"), ("pin", "pixels", "key 1"), ("unpin", "pixels", "key 1")
    ]  # fmt: skip

    async def again() -> list[str]:
        loop = ControlLoop(home, settings(), None, times=ControlTimes(early_tick_s=0.0))
        await loop.exchange(IDLE)
        return list(loop.status()["pins"])

    assert asyncio.run(again()) == [LARGE]
    (home / "pins.json").write_text("{")
    assert asyncio.run(again()) == []


def test_of_two_pins_at_a_time_none_is_lost(home: Path) -> None:
    async def pin() -> list[str]:
        loop = ControlLoop(home, settings(), None, times=ControlTimes(early_tick_s=0.0))
        await loop.exchange(IDLE)
        await asyncio.gather(loop.pin(LARGE, True, "key 1"), loop.pin("pixels", True, "key 2"))
        await asyncio.gather(
            loop.pin(LARGE, False, "key 1"), loop.pin("pixels/mean", True, "key 2")
        )
        return list(loop.status()["pins"])

    assert asyncio.run(pin()) == ["pixels", "pixels/mean"]
    assert json.loads((home / "pins.json").read_text()) == ["pixels", "pixels/mean"]


def test_a_store_has_one_control_plane_at_a_time(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELLESS_STORE_URL", f"sqlite:///{home}/store.db")
    other = tmp_path / "other"

    async def talk() -> None:
        first, second = loops = [ControlLoop(each, settings(), None) for each in (home, other)]
        for loop in loops:
            loop._exported_s = math.inf  # it renews its lease only as told here
        await first.exchange(IDLE)
        with pytest.raises(EnvironmentUnfitError, match=f"already: home {home}, user .* since 20"):
            await second.exchange(IDLE)
        hold_store(home)  # as the home's next one does
        await first.close()
        await second.exchange(IDLE)
        await first._note()  # it finds that it has the store no more, and acts no longer
        with pytest.raises(EnvironmentUnfitError, match=f"already: home {other}"):
            await first.exchange(IDLE)
        await second.close()
        await first._note()
        await first.exchange(IDLE)

    asyncio.run(talk())
