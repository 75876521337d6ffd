"""A process that takes another's place waits until it may; one of another release is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.messages import MemberReport, Replica
from modelless.controller.live.cluster.release import PROTOCOL, ProtocolError, release_of
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.orders import Orders
from modelless.controller.live.successor import Successor
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, WorkerState


def orders(predecessor_id: str = "", *lacking: str) -> Orders:
    return Orders((), (), {}, {}, predecessor_id=predecessor_id, lacking=lacking)


def start(successor: Successor, most_s: float = 60.0, *, is_ready: bool = True) -> Replica:
    """What it says of itself once its start is over."""

    async def wait() -> Replica:
        await successor.wait(lambda: is_ready, 0.0, most_s)
        return successor.replica

    return asyncio.run(wait())


def test_one_that_takes_nobodys_place_serves_once_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("modelless.controller.live.successor.LOOK_S", 0.0)
    successor = Successor("1", "first")
    assert successor.replica.is_starting
    successor.on_orders(orders())
    answers = [True, False, False]

    async def wait() -> None:
        await successor.wait(answers.pop)

    asyncio.run(wait())
    assert not answers
    assert not successor.replica.is_starting


@pytest.mark.parametrize(("loads", "patience_s"), [(False, 11.0), (True, 31.0)])
def test_patience_with_first_loads_ends(
    loads: bool,
    patience_s: float,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("modelless.controller.live.successor.time.monotonic", lambda: now_s)
    monkeypatch.setattr("modelless.controller.live.successor.LOOK_S", 0.0)
    member = {"id": "w", "loading": ["t/a/x@1"] if loads else []}
    successor = Successor("1", "first")

    def is_ready() -> bool:
        nonlocal now_s
        now_s += 1.0
        successor.on_orders(Orders((), (), {}, {"members": [member]}))
        return False

    async def wait() -> None:
        await successor.wait(is_ready)

    successor.on_orders(orders())
    asyncio.run(wait())
    assert now_s == patience_s
    assert "without what it was to hold: a variant of every task" in caplog.text


def test_one_that_holds_what_the_other_served_serves() -> None:
    successor = Successor("2", "second")
    successor.on_orders(orders("a"))
    assert not start(successor).is_starting


@pytest.mark.parametrize(("lacking", "is_ready"), [(("t/a/x@1",), True), ((), False)])
def test_patience_ends(
    lacking: tuple[str, ...], is_ready: bool, caplog: pytest.LogCaptureFixture
) -> None:
    successor = Successor("2", "second")
    successor.on_orders(orders("a", *lacking))
    assert not start(successor, -1.0, is_ready=is_ready).is_starting
    assert "without what it was to hold" in caplog.text


def test_without_a_control_loop_serving_begins_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not start(Successor("2", "second")).is_starting
    assert "without an answer" in caplog.text


def test_a_failed_call_is_no_refusal() -> None:
    successor = Successor("2", "second")
    successor.on_failure(OSError("away"))
    successor.on_orders(orders())
    assert not start(successor).is_starting


def test_one_of_another_release_does_not_start() -> None:
    successor = Successor("2", "second")
    successor.on_failure(ProtocolError.between(PROTOCOL + 1))
    with pytest.raises(ProtocolError, match="'modelless down' and 'modelless up'"):
        start(successor)


# -- the control loop ---------------------------------------------------------------------------


def worker(name: str, replica: Replica, *variant_ids: str) -> MemberReport:
    instances = tuple(Instance(name, each, 1 << 20, 0.1, 0.0, 0) for each in variant_ids)
    state = WorkerState(name, "cpu-1", 1 << 30, instances)
    return MemberReport(name, False, state, pool="cpu-1", replica=replica)


def exchange(home: Path, *reports: MemberReport) -> list[Orders]:
    settings = parse_settings(
        {"gateways": {"count": 1, "device_class": None}, "pools": [{"device_class": "cpu-1"}]}
    )

    async def talk() -> list[Any]:
        loop = ControlLoop(home, settings, lambda effect: None)
        return [await loop.answer(PROTOCOL, "exchange", report) for report in reports]

    return asyncio.run(talk())


def test_a_successor_is_told_what_to_load_and_then_that_it_may_serve(home: Path) -> None:
    before, after = Replica("1", "first", 1.0), Replica("2", "second", 2.0, is_starting=True)
    held = "tiny/mean/fp32@1"
    _, first, second, last = exchange(
        home,
        worker("a", before, held),
        worker("x", after),
        worker("x", after, held),
        worker("x", after._replace(is_starting=False), held),
    )
    assert (first.predecessor_id, first.lacking) == ("a", (held,))
    reasons = {e.variant_id: e.reason for e in first.effects if hasattr(e, "variant_id")}
    assert held in reasons
    assert (second.predecessor_id, second.lacking) == ("a", ())
    assert (last.predecessor_id, last.lacking) == ("", ())
    assert Reason.SUCCESSION in [getattr(e, "reason", None) for e in first.effects]


@pytest.mark.parametrize(
    ("protocol", "method"), [(PROTOCOL + 1, "exchange"), (0, "versions"), (PROTOCOL, "status")]
)
def test_another_protocol_is_refused_and_nothing_taken_in(
    home: Path, protocol: int, method: str
) -> None:
    async def talk() -> Any:
        loop = ControlLoop(home, Settings(), lambda effect: None)
        with pytest.raises(ProtocolError, match=f"protocol: {protocol} meets {PROTOCOL}"):
            await loop.answer(protocol, method, worker("a", Replica()))
        return loop.status()

    assert asyncio.run(talk())["members"] == []


def test_a_release_is_named_after_code_and_settings() -> None:
    name = release_of(Settings())
    assert name == release_of(Settings())
    assert name.rpartition(".")[0] == release_of(Settings(seed=1)).rpartition(".")[0]
    assert name != release_of(Settings(seed=1))
