"""Members that are called to report now, because orders or news wait for them."""

from __future__ import annotations

import asyncio
import time

WATCH_S = 2.0
"""A member that is not called asks again after this."""


class Calls:
    """Who is called and has not come yet. Each member has one ``wait`` open at most times."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._news = asyncio.Event()

    def call(self, *member_ids: str) -> None:
        """Have the members report."""
        self._called.update(member_ids)
        self._news.set()
        self._news = asyncio.Event()

    def came(self, member_id: str) -> None:
        """The member reports, or is gone."""
        self._called.discard(member_id)

    async def wait(self, member_id: str) -> bool:
        """Whether the member is called: as soon as it is, or False after a while."""
        end_s = time.monotonic() + WATCH_S
        while member_id not in self._called:
            left_s = end_s - time.monotonic()
            if left_s <= 0.0:
                return False
            try:
                await asyncio.wait_for(self._news.wait(), left_s)
            except TimeoutError:
                return False
        self._called.discard(member_id)
        return True
