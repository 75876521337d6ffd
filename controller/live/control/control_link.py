"""Calls to the control loop from any process of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import ray

from modelless.controller.api.feedback import Feedback
from modelless.controller.control.messages import MemberReport
from modelless.controller.control.served_versions import Service
from modelless.controller.live.cluster.release import PROTOCOL
from modelless.controller.live.orders import Orders

NAMESPACE = "modelless"
CONTROL_NAME = "modelless-control"
PATIENCE_S = 5.0

GOODBYE_S = 1.0
"""Patience with a goodbye: without one the control loop notices the silence, some seconds later."""


class ControlLink:
    """Calls the control loop, and finds it anew after it was restarted under another handle."""

    def __init__(self) -> None:
        self._handle: Any = None

    async def exchange(self, report: MemberReport, feedback: Sequence[Feedback] = ()) -> Orders:
        orders: Orders = await self._call("exchange", report, tuple(feedback))
        return orders

    async def say_goodbye(self, report: MemberReport, feedback: Sequence[Feedback] = ()) -> None:
        """Send the last report. The member ends, whether it arrives or not."""
        with contextlib.suppress(Exception):
            goodbye = self._call("leave", report, tuple(feedback))
            await asyncio.wait_for(goodbye, GOODBYE_S)

    async def versions(self, token: str) -> Service:
        service: Service = await self._call("versions", token)
        return service

    async def called(self, member_id: str) -> bool:
        is_called: bool = await self._call("called", member_id)
        return is_called

    async def pin(self, scope: str, is_pinned: bool, by: str) -> None:
        """See ``ControlLoop.pin``."""
        await self._call("pin", scope, is_pinned, by)

    async def batch(self, act: str, *arguments: object) -> dict[str, Any]:
        """See ``ControlLoop.batch``."""
        state: dict[str, Any] = await self._call("batch", act, *arguments)
        return state

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        found: tuple[bytes, str] = await self._call("metrics", accept)
        return found

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._handle is None:
            self._handle = await asyncio.to_thread(  # it waits for Ray's head, which may be busy
                ray.get_actor, CONTROL_NAME, namespace=NAMESPACE
            )
        try:
            call = self._handle.answer.remote(PROTOCOL, method, *arguments)
            return await asyncio.wait_for(call, PATIENCE_S)
        except Exception:
            self._handle = None
            raise
