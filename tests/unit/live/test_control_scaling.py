"""The control loop carries out what the planner decides about workers, and knows who has left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.machine import ControlTimes
from modelless.controller.control.messages import MemberReport, ScalePool
from modelless.controller.device.messages import LoadInstance, ResizeWorker
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.orders import Orders
from modelless.policies.views import WorkerState

SETTLED = ControlTimes(settle_s=0.0)


def settings(wanted: dict[str, int], **pool: Any) -> Settings:
    return parse_settings(
        {
            "gateways": {"count": 1, "device_class": None},
            "pools": [{"device_class": "cpu-1", "max_workers": 8, **pool}],
            "policies": {"scaling": {"policy": "fixed", "workers": wanted}},
        }
    )


def worker(name: str, **more: Any) -> MemberReport:
    return MemberReport(name, False, WorkerState(name, "cpu-1", 1 << 30, ()), pool="cpu-1", **more)


def talk(
    home: Path, told: Settings, *reports: MemberReport
) -> tuple[list[Orders], list[ScalePool], Any]:
    """What each report was answered, what was asked of Serve, and the status at the end."""
    asked: list[ScalePool] = []

    async def exchange() -> tuple[list[Orders], Any]:
        loop = ControlLoop(home, told, asked.append, times=SETTLED)
        return [await loop.exchange(report) for report in reports], loop.status()

    answers, status = asyncio.run(exchange())
    return answers, asked, status


def test_a_worker_is_ordered_to_become_another_size(home: Path) -> None:
    told = settings({"cpu-1": 0, "cpu-2": 1}, sizes=["cpu-2"])
    (orders,), asked, status = talk(home, told, worker("w"))
    resizes = [effect for effect in orders.effects if isinstance(effect, ResizeWorker)]
    assert [(effect.worker_id, effect.device_class) for effect in resizes] == [("w", "cpu-2")]
    assert asked == []
    (pool,) = status["pools"]
    assert pool["sizes"] == ["cpu-1", "cpu-2"]


def test_serve_is_asked_for_workers_once(home: Path) -> None:
    answers, asked, status = talk(home, settings({"cpu-1": 2}), worker("w"), worker("w"))
    assert [(effect.device_class, effect.workers) for effect in asked] == [("cpu-1", 2)]
    assert status["pools"][0]["asked"] == 2
    assert any(isinstance(effect, LoadInstance) for effect in answers[0].effects)
    assert "cpu-1" in answers[0].starting_s
    assert not answers[0].is_at_rest


def test_nobody_is_asked_for_a_class_without_a_pool(home: Path) -> None:
    _, asked, _ = talk(home, settings({"cpu-2": 3}), worker("w"))
    assert asked == []


def test_what_a_gateway_counted_last_is_not_lost_when_it_leaves(home: Path) -> None:
    def gateway(answered: int) -> MemberReport:
        return MemberReport("g", True, None, outcomes={"completed": answered})

    async def talk() -> Any:
        loop = ControlLoop(home, settings({"cpu-1": 0}), None, times=SETTLED)
        await loop.exchange(gateway(5))
        await loop.leave(gateway(2))
        await loop.leave(worker("never heard of"))
        return loop.status()

    status = asyncio.run(talk())
    assert status["members"] == []
    assert status["outcomes"] == {"completed": 7}


@pytest.mark.parametrize(
    "pool", [{"device_class": "cpu-99"}, {"device_class": "cpu-1", "sizes": ["cpu-99"]}]
)
def test_sizes_must_be_device_classes_that_there_are(home: Path, pool: dict[str, Any]) -> None:
    told = parse_settings({"gateways": {"device_class": None}, "pools": [pool]})
    with pytest.raises(InvalidInputError, match=r"cpu-99.*allowed"):
        talk(home, told, worker("w"))
