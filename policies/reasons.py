"""Reasons of decisions: a closed list, because reasons are counted, tested and explained.

A selection policy may state a reason of its own where none of the list fits.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from modelless.common.errors import InvalidInputError

_CUSTOM: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")


class Reason(StrEnum):
    """The reason that comes with every decision of a policy or a core."""

    # choosing
    CHEAPEST_FEASIBLE = "cheapest-feasible"
    MOST_ACCURATE_FEASIBLE = "most-accurate-feasible"
    BEST_VALUE = "best-value"
    BEST_FIT = "best-fit"
    PLANNED = "planned"
    IN_TURN = "in-turn"
    AT_RANDOM = "at-random"
    ALWAYS = "always"
    LATE_BINDING = "late-binding"
    DEFERRED = "deferred"
    CACHED = "cached"
    # refusing
    NOTHING_READY = "nothing-ready"
    NOTHING_KNOWN = "nothing-known"
    TOO_INACCURATE = "too-inaccurate"
    TOO_SLOW = "too-slow"
    TOO_DEAR = "too-dear"
    LIMITS_CONFLICT = "limits-conflict"
    BAD_ITEM_COUNT = "bad-item-count"
    QUEUE_TOO_LONG = "queue-too-long"
    QUEUE_FULL = "queue-full"
    DEADLINE_PASSED = "deadline-passed"
    WORKER_LOST = "worker-lost"
    EXECUTION_FAILED = "execution-failed"
    POLICY_FAILED = "policy-failed"
    CANCELLED = "cancelled"
    SHUTTING_DOWN = "shutting-down"
    # batching
    EARLIEST_DEADLINE_FIRST = "earliest-deadline-first"
    NOTHING_QUEUED = "nothing-queued"
    FILLING_BATCH = "filling-batch"
    # planning
    WANTED = "wanted"
    ANOTHER_COPY = "another-copy"
    UNWANTED = "unwanted"
    ROOM_NEEDED = "room-needed"
    NO_ROOM = "no-room"
    ON_TRIAL = "on-trial"
    WITHDRAWN = "withdrawn"
    OVER_BUDGET = "over-budget"
    FIXED_SIZE = "fixed-size"
    DEMAND = "demand"
    FORECAST = "forecast"
    OPTIMISED = "optimised"
    FALLBACK = "fallback"
    SUCCESSION = "succession"


class CustomReason(str):
    """A reason of a selection policy's own, such as ``CustomReason("saves-the-gpu")``.

    It stands in receipts, logs and metrics as it is. Metrics count a few different ones and the
    others together, so a reason names a rule, and holds no figures.

    Args:
        text: 1 to 40 small letters, digits and hyphens, the first a letter; none of ``Reason``.

    Raises:
        InvalidInputError: another text.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> CustomReason:
        if not isinstance(text, str) or not _CUSTOM.fullmatch(text) or text in _LISTED:
            allowed = (
                "1 to 40 small letters, digits and hyphens, the first a letter, and none of Reason"
            )
            raise InvalidInputError.of("reason", text, allowed)
        return super().__new__(cls, text)

    @property
    def value(self) -> str:
        """The text, as of a ``Reason``."""
        return str(self)


_LISTED: Final = frozenset(Reason)

AnyReason = Reason | CustomReason
"""The reason of a selection policy's decision."""
