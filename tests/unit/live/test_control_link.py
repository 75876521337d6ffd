"""Goodbye is said, and costs whoever says it nothing when nobody hears it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from modelless.controller.control.messages import MemberReport
from modelless.controller.live.cluster.release import PROTOCOL
from modelless.controller.live.control import control_link
from modelless.controller.live.control.control_link import ControlLink
from modelless.controller.live.orders import Orders


class _Actor:
    """As a Ray handle: ``answer.remote(...)`` can be awaited."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = self
        self.remote = answer


def say_goodbye(answer: Callable[..., Any]) -> None:
    link = ControlLink()
    link._handle = _Actor(answer)
    asyncio.run(link.say_goodbye(MemberReport("g", True, None, outcomes={"completed": 3})))


def test_the_last_report_says_that_it_is_the_last() -> None:
    heard: list[Any] = []

    async def answer(*arguments: Any) -> Orders:
        heard.append(arguments)
        return Orders((), (), {}, {})

    say_goodbye(answer)
    ((protocol, method, report, feedback),) = heard
    assert (protocol, method, feedback) == (PROTOCOL, "leave", ())
    assert report.outcomes == {"completed": 3}


def test_nobody_needs_to_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dead(*_: Any) -> Orders:
        raise RuntimeError("the actor is dead")

    async def silent(*_: Any) -> Orders:
        return await asyncio.Future()

    say_goodbye(dead)
    monkeypatch.setattr(control_link, "GOODBYE_S", 0.0)
    say_goodbye(silent)
