"""What the cores ask their driver to do. Plain values: they can be recorded, compared, replayed."""

from __future__ import annotations

from typing import NamedTuple

from modelless.policies.reasons import Reason


class Execute(NamedTuple):
    """Run these queries, in this order, as one batch on this worker."""

    batch_id: int
    worker_id: str
    variant_id: str
    query_ids: tuple[int, ...]


class Complete(NamedTuple):
    """Answer the query with its part of the batch's output."""

    query_id: int
    batch_id: int


class Refuse(NamedTuple):
    """Answer the query with an error.

    Attributes:
        reason: why, for programs.
        message: why, for people: with the nearest feasible limits where no placement fits.
        retry_after_s: when trying again makes sense; None if it does not.
    """

    query_id: int
    reason: Reason
    message: str
    retry_after_s: float | None = None


class WakeAt(NamedTuple):
    """Call ``on_tick`` at this time, if nothing else happens before."""

    at_s: float


class AskForLoad(NamedTuple):
    """Tell the control loop now that something waits for a load, and not with the next report.

    Attributes:
        scope: what nothing is ready for that is accurate enough.
        min_accuracy_percent: how accurate that is.
    """

    scope: str
    min_accuracy_percent: float


DispatchEffect = Execute | Complete | Refuse | WakeAt | AskForLoad
