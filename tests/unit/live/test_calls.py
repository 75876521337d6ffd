"""A query that waits for a load, and orders that wait for a member, do not wait for a second."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from modelless.controller.config import Settings, parse_settings
from modelless.controller.effects import LoadInstance
from modelless.controller.live import pace
from modelless.controller.live.control import control_loop as calls
from modelless.controller.live.control import control_loop as control
from modelless.controller.live.control.control_loop import Calls, ControlLoop
from modelless.controller.live.control.pools import GATEWAYS
from modelless.controller.live.control.rates import Recent
from modelless.controller.live.messages import Orders, Report
from modelless.controller.live.pace import Pace
from modelless.policies.views import Instance, WorkerState
from tests.unit.cli.tiny import add_measurements, add_variants

LARGE = "pixels/mean/large@1"
KIND = ("pixels/mean/large", 10.0, 0.0)
MOST_S = 30.0
IDLE = Report("g", True, WorkerState("g", "cpu-1", 1 << 30, ()), pool=GATEWAYS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control, "log_to", lambda home, name: None)
    monkeypatch.setattr(control, "LEAST_PAUSE_S", 0.0)
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return tmp_path


def settings(**more: object) -> Settings:
    return parse_settings(
        {"policies": {"scaling": {"policy": "on-demand", "preload": False}}, **more}
    )


POOLED = {"gateways": {"count": 1, "device_class": None}, "pools": [{"device_class": "cpu-1"}]}


def waiting(*, is_urgent: bool = True, device: bool = True) -> Report:
    """A gateway's report: one query has begun to wait for a load 50 ms after the last report."""
    return Report(
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


def worker(*held: str) -> Report:
    instances = tuple(Instance("w", name, 1 << 20, 0.1, 0.0, 0) for name in held)
    return Report("w", False, WorkerState("w", "cpu-1", 1 << 30, instances), pool="cpu-1")


def loads(orders: Orders) -> list[str]:
    return [each.variant_id for each in orders.effects if isinstance(each, LoadInstance)]


@pytest.mark.parametrize(("is_urgent", "ordered"), [(True, [LARGE]), (False, [])])
def test_what_a_query_waits_for_is_ordered_with_the_urgent_report(
    home: Path, is_urgent: bool, ordered: list[str]
) -> None:
    async def talk() -> Orders:
        loop = ControlLoop(home, settings(), None)
        await loop.exchange(
            Report("g", True, WorkerState("g", "cpu-1", 1 << 30, ()), pool=GATEWAYS)
        )
        return await loop.exchange(waiting(is_urgent=is_urgent))

    assert loads(asyncio.run(talk())) == ordered


def test_urgent_reports_in_a_crowd_are_not_each_decided_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LEAST_PAUSE_S", 3600.0)

    async def talk() -> list[list[str]]:
        loop = ControlLoop(home, settings(), None)
        await loop.exchange(IDLE)
        return [loads(await loop.exchange(waiting())) for _ in range(3)]

    assert asyncio.run(talk()) == [[], [], []]


def test_an_urgent_report_right_after_a_tick_is_decided_on_a_moment_later(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LEAST_PAUSE_S", 0.2)

    async def talk() -> Orders:
        loop = ControlLoop(home, settings(), None)
        await loop.exchange(IDLE)
        orders = await loop.exchange(waiting())
        if not loads(orders):  # else this machine is so slow that the moment has passed
            assert await asyncio.wait_for(loop.called("g"), MOST_S)
            orders = await loop.exchange(waiting(is_urgent=False))
        return orders

    assert loads(asyncio.run(talk())) == [LARGE]


def test_a_worker_is_called_for_its_orders_and_the_gateway_for_what_is_loaded(home: Path) -> None:
    async def talk() -> Orders:
        loop = ControlLoop(home, settings(**POOLED), None)
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


def test_nobody_is_called_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WATCH_S", 0.01)

    async def wait() -> list[bool]:
        some = Calls()
        some.call("other")
        some.call("came already")
        some.came("came already")
        found = [await some.wait("nobody"), await some.wait("came already")]
        return [*found, await some.wait("other"), await some.wait("other")]

    assert asyncio.run(wait()) == [False, False, True, False]


def test_who_hurries_does_not_pause_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LEAST_PAUSE_S", 0.0)

    async def hurry() -> tuple[bool, bool]:
        mine = Pace()
        mine.hurry()
        await asyncio.wait_for(mine.pause(1e6), MOST_S)
        asyncio.get_running_loop().call_soon(lambda: mine.hurry(urgent=True))
        await asyncio.wait_for(mine.pause(1e6), MOST_S)
        await mine.pause(0.002)  # in its own time
        return mine.take_urgency(), mine.take_urgency()

    assert asyncio.run(hurry()) == (True, False)


def test_one_query_in_a_moment_is_no_high_rate() -> None:
    recent = Recent()
    regular = Report(
        "g", True, None, interval_s=1.0, arrivals={"a": 10}, kinds={("a", 1.0, 0.0): [10, 20]}
    )
    assert recent.take(regular) is regular
    early = Report(
        "g",
        True,
        None,
        interval_s=0.05,
        arrivals={"a": 1},
        unmet={"a": 1},
        outcomes={"refused": 1},
        kinds={("a", 1.0, 0.0): [1, 1]},
        served={"v": 1},
    )
    told = recent.take(early)
    assert told.interval_s == pytest.approx(1.05)
    assert (told.arrivals, told.unmet, told.outcomes) == ({"a": 11}, {"a": 1}, {"refused": 1})
    assert told.kinds == {("a", 1.0, 0.0): (11, 21)}
    assert told.served == {"v": 1}
    assert recent.take(regular).interval_s == pytest.approx(1.05), "the early one counts a second"
    assert recent.take(regular) is regular, "enough by itself"
    for _ in range(1000):
        told = recent.take(early)
    assert told.interval_s == pytest.approx(0.95, abs=0.051)


@pytest.mark.parametrize(
    ("intervals_s", "place"),
    [
        ((1.0, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.5, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.05, 1.0, 1.0), 2),
        ((1.0, 0.05, 0.3, 0.05, 1.0, 1.0), 1),
        ((1.0, 0.05, 0.86, 1.0, 1.0), 2),
        ((1.0, 0.05, 1.0, 1.0), 2),
        ((1.0, 0.5, 0.5, 1.0, 1.0, 1.0), 2),
    ],
)
def test_a_query_weighs_as_much_as_any_whenever_its_report_was_made(
    intervals_s: tuple[float, ...], place: int
) -> None:
    recent = Recent()
    queries = 0.0
    for number, interval_s in enumerate(intervals_s):
        came = {"a": 1} if number == place else {}
        told = recent.take(Report("g", True, None, interval_s=interval_s, arrivals=came))
        queries += told.arrivals.get("a", 0) / told.interval_s * interval_s
    assert queries == pytest.approx(1.0, abs=0.1)
    assert "a" not in told.arrivals


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_query_weighs_half_as_much_again_at_most_whatever_comes_early(
    place: int,
) -> None:
    for early_s in product((0.05, 0.3, 0.5, 0.86, 1.0), repeat=4):
        recent = Recent()
        queries = 0.0
        for number, interval_s in enumerate((1.0, *early_s, 1.0, 1.0, 1.0)):
            came = {"a": 1} if number == place else {}
            told = recent.take(Report("g", True, None, interval_s=interval_s, arrivals=came))
            queries += told.arrivals.get("a", 0) / told.interval_s * interval_s
        assert 0.9 <= queries < 1.55


def test_the_first_report_of_all_is_no_high_rate() -> None:
    told = Recent().take(Report("g", True, None, interval_s=0.05, arrivals={"a": 1}))
    assert told.arrivals["a"] / told.interval_s == pytest.approx(1 / 0.9)
