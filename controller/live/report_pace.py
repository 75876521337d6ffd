"""When a member reports: once a second, and sooner if something waits for it.

A query that waits for a load, and orders that wait for a member, should not have to wait for the
next regular report. A member may hurry at any time; reports are still some time apart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

EXCHANGE_S = 1.0
"""Between two reports of a member that nothing waits for."""

LEAST_PAUSE_S = 0.05
"""Between two reports, however much the member hurries."""

_AGAIN_S = 0.5


class Pace:
    """The pauses between a member's reports."""

    def __init__(self) -> None:
        self._hurried = asyncio.Event()
        self._is_urgent = False

    def hurry(self, *, urgent: bool = False) -> None:
        """Report as soon as may be; ``urgent``: the control loop is to decide on it at once."""
        self._is_urgent = self._is_urgent or urgent
        self._hurried.set()

    def take_urgency(self) -> bool:
        """Whether the report that is made now is urgent; the next one is not."""
        is_urgent, self._is_urgent = self._is_urgent, False
        return is_urgent

    async def pause(self, most_s: float) -> None:
        """Wait until the next report is due: at most so long, at least ``LEAST_PAUSE_S``."""
        await asyncio.sleep(min(LEAST_PAUSE_S, most_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), max(most_s - LEAST_PAUSE_S, 0.0))
        self._hurried.clear()

    async def heed_forever(self, called: Callable[[], Awaitable[bool]]) -> None:
        """Hurry whenever ``called`` says so, see ``ControlLoop.called``; ends when cancelled."""
        while True:
            try:
                if await called():
                    self.hurry()
            except Exception:  # noqa: BLE001  (it reports in its own time without a control loop)
                await asyncio.sleep(_AGAIN_S)
