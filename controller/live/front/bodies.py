"""Request bodies: a bound on all that one gateway holds, and a least rate at which each arrives."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from modelless.common.errors import OverloadedError
from modelless.controller.api.v2_errors import TooSlowError

GRACE_S: Final = 10.0
UNREAD_S: Final = 30.0
"""For how long a client may read nothing of an answer; then, too, it has to at that rate."""
LEAST_BYTES_PER_S: Final = 16_384
"""How fast a body has to come: see ``Pace``."""


def make_room(size_bytes: int) -> memoryview:
    """Return memory for a body, whose last tensor will be aligned: else it would be copied.

    Its end is aligned, and so is each tensor behind which a multiple of its item's size follows.
    Pages that the client never fills are never touched.
    """
    before = -size_bytes % 8  # as the largest item
    return np.empty(before + size_bytes, np.uint8)[before:].data


class Pace:
    """Whether bytes come fast enough, by those of the last seconds: what came early counts no more.

    There are ``grace_s`` seconds, and one more for each ``LEAST_BYTES_PER_S`` bytes that come, but
    never more than ``grace_s`` ahead.

    Args:
        began_s: since when, seconds.
        seen_bytes: that were there by then.
        grace_s: for how long nothing may come.
    """

    def __init__(self, began_s: float, seen_bytes: int = 0, grace_s: float = GRACE_S) -> None:
        self._until_s = began_s + grace_s
        self._seen_bytes = seen_bytes
        self._grace_s = grace_s

    def is_too_slow(self, all_bytes: int, now_s: float) -> bool:
        """Note how many bytes there are by now."""
        new_s = max(all_bytes - self._seen_bytes, 0) / LEAST_BYTES_PER_S
        self._seen_bytes = all_bytes
        self._until_s = min(self._until_s + new_s, now_s + self._grace_s)
        return now_s > self._until_s

    def check(self, all_bytes: int, now_s: float) -> None:
        """Raise TooSlowError if a body, of which so many bytes are there, comes too slowly."""
        if self.is_too_slow(all_bytes, now_s):
            raise TooSlowError(
                f"body: got {all_bytes} bytes, too few of them lately; allowed: "
                f"{LEAST_BYTES_PER_S} bytes a second, and nothing for up to {self._grace_s:.0f} s. "
                "Send it faster, or less of it."
            )


class BodyBudget:
    """Bytes that bodies may take together, from their first byte to the answer.

    Safe to use from several threads: bodies are decompressed in one of their own.

    Args:
        max_bytes: of all of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Set so many bytes aside.

        Raises:
            OverloadedError: there are none left.
        """
        with self._lock:
            if self.used_bytes + size_bytes > self.max_bytes:
                raise OverloadedError(
                    f"{self.used_bytes} bytes of queries are being read, wait or run; with "
                    f"{size_bytes} more that would be over {self.max_bytes}; try again"
                )
            self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """They are not needed any more."""
        with self._lock:
            self.used_bytes -= size_bytes
