"""What no policy may overstep on the way of a query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds that hold whatever a policy says.

    Attributes:
        max_queued: queries waiting in all; of more the one that stands last is refused, by
            priority and tenants' shares. Those that come back from a lost worker are not.
        max_batch: items in one batch.
        max_attempts: times a query is handed to a worker: 2 is one retry elsewhere.
        max_rebinds: times a late query is chosen for anew; after that it runs or expires.
        max_hold_s: a query for which nothing is ready waits for a load at most this long, and not
            at all if no load could end by then or by its deadline.
        max_held: such queries in all, so that they leave waiting in the queue for others.
        max_late_s: a query that is to be served late rather than not at all is refused this long
            after its deadline.
        min_wait_s: a policy that lets a worker wait is not asked again before this, seconds, unless
            something happens.
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
