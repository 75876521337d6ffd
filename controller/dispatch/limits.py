"""The limits that hold for every query, whatever a policy says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Limits of the dispatcher; times are in seconds.

    Attributes:
        max_queued: the most queries that wait. If one more arrives, the least urgent query is
            refused. Queries that come back from a lost worker are never refused for this.
        max_batch: the most items in one batch.
        max_attempts: the most times that a query is handed to a worker: 2 is one retry elsewhere.
        max_rebinds: the most times that the policy chooses anew for a late query; after that the
            query runs or expires.
        max_hold_s: the longest time that a query without a ready variant waits for a load. It does
            not wait at all if no load could end by then or by its deadline.
        max_held: the most queries that wait for loads, so that others find room.
        max_late_s: a query that prefers a late answer to none is refused this long after its
            deadline.
        min_wait_s: the shortest time until a policy is asked again about a worker that it left
            idle, unless an event occurs.
        suspect_factor, suspect_s: a batch that runs longer than ``suspect_factor`` x its p99 plus
            ``suspect_s`` seconds hangs: its queries go elsewhere; see ``quarantine``.
        overdue_factor, overdue_s: a batch that runs longer than ``overdue_factor`` x its p99 plus
            ``overdue_s`` seconds is given up, and its worker with it.
    """

    max_queued: int = 2048
    max_batch: int = 8
    max_attempts: int = 2
    max_rebinds: int = 3
    max_hold_s: float = 120.0
    max_held: int = 512
    max_late_s: float = 60.0
    min_wait_s: float = 0.0005
    suspect_factor: float = 4.0
    suspect_s: float = 0.1
    overdue_factor: float = 20.0
    overdue_s: float = 5.0
