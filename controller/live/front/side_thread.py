"""One thread for what would hold the event loop: large JSON, in and out, and large bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from modelless.common.errors import OverloadedError, UnavailableError

_T = TypeVar("_T")

MOST_WAITING: Final = 64
"""Pieces of work that may wait for the thread; one more is refused."""


class Aside:
    """Does pieces of work in a thread of its own, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side")
        self._open: dict[int, Future[Any]] = {}
        self._last = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many pieces of work wait or go on."""
        return len(self._open)

    def begin(self, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> int:
        """Begin to do ``work``; returns a number, below 0, for ``cancel``.

        Args:
            work: what to do; it runs in the thread.
            done: takes its result or its error, on the event loop.

        Raises:
            OverloadedError: too much waits already.
            UnavailableError: the gateway is about to end.
        """
        if self._is_closed:
            raise _about_to_end()
        if len(self._open) >= MOST_WAITING:
            raise OverloadedError(
                f"{MOST_WAITING} requests or replies with large JSON or compressed bodies wait; "
                "try again, or send and ask for tensors as plain binary data"
            )
        self._last -= 1
        number = self._last
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work)
        self._open[number] = future

        def tell(ended: Future[_T]) -> None:  # does not hold the future, which holds it
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, number, ended, done)

        future.add_done_callback(tell)
        return number

    def _end(self, number: int, future: Future[_T], done: Callable[[_T | Exception], None]) -> None:
        self._open.pop(number, None)
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
