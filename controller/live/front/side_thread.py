"""One thread for what would hold the event loop: large JSON, in and out, and large bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from modelless.common.errors import OverloadedError, UnavailableError

_T = TypeVar("_T")

MOST_WAITING: Final = 64
"""Pieces of work that may wait for the thread; one more is refused."""
_OWN_SHARE: Final = 2
"""Half of them may be of one tenant."""


class Aside:
    """Does pieces of work in a thread of its own, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side")
        self._open: dict[int, Future[Any]] = {}
        self._owned: Counter[str] = Counter()
        self._last = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many pieces of work wait or go on."""
        return len(self._open)

    def begin(
        self, work: Callable[[], _T], done: Callable[[_T | Exception], None], owner: str = ""
    ) -> int:
        """Begin to do ``work``; returns a number, below 0, for ``cancel``.

        Args:
            work: what to do; it runs in the thread.
            done: takes its result or its error, on the event loop.
            owner: the tenant that it is for; empty where there are no keys.

        Raises:
            OverloadedError: too much waits already, of all or of the owner's.
            UnavailableError: the gateway is about to end.
        """
        if self._is_closed:
            raise _about_to_end()
        whose, most = "", MOST_WAITING
        if owner and self._owned[owner] >= max(MOST_WAITING // _OWN_SHARE, 1):
            whose, most = f" of tenant {owner!r}", self._owned[owner]
        if whose or len(self._open) >= MOST_WAITING:
            raise OverloadedError(
                f"{most} requests or replies{whose} with large JSON or compressed bodies wait; "
                "try again, or send and ask for tensors as plain binary data"
            )
        self._last -= 1
        number = self._last
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work)
        self._open[number] = future
        if owner:
            self._owned[owner] += 1

        def tell(ended: Future[_T]) -> None:  # does not hold the future, which holds it
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, number, ended, done, owner)

        future.add_done_callback(tell)
        return number

    def _end(
        self,
        number: int,
        future: Future[_T],
        done: Callable[[_T | Exception], None],
        owner: str,
    ) -> None:
        self._open.pop(number, None)
        if owner:
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]
        if future.cancelled():
            done(_about_to_end())
            return
        error = future.exception()
        if error is None:
            done(future.result())
        else:
            done(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def cancel(self, number: int) -> None:
        """Do not begin a piece of work; one that has begun goes on."""
        future = self._open.get(number)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Begin nothing more; what waits gets an UnavailableError."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def _about_to_end() -> UnavailableError:
    return UnavailableError("this gateway is about to end; try again", 1.0)
