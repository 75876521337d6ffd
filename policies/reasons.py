"""Reasons of decisions: a closed list, because reasons are counted, tested and explained."""

from __future__ import annotations

from enum import StrEnum


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
    WORTH_WAITING = "worth-waiting"
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
