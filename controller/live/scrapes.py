"""Scrapes of a gateway: it answers with what the control loop knows of the whole cluster."""

from __future__ import annotations

import asyncio

from modelless.controller.api.v2_reply import render_error, render_text
from modelless.controller.live.control_link import ControlLink
from modelless.controller.live.frontend import Respond
from modelless.variants.errors import UnavailableError


class Scrapes:
    """Fetches the metrics off the way of queries.

    Args:
        control: knows them.
    """

    def __init__(self, control: ControlLink) -> None:
        self._control = control
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, respond: Respond) -> None:
        """Answer one scrape, as soon as the control loop has."""
        task = asyncio.get_running_loop().create_task(self._answer(respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, respond: Respond) -> None:
        try:
            reply = render_text(await self._control.metrics())
        except Exception as error:  # noqa: BLE001  (a scrape that fails says it by its status)
            problem = UnavailableError(f"the control loop does not answer: {error}", 1.0)
            reply = render_error(problem)
        respond(reply)
