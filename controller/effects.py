"""What the cores ask their driver to do. Plain values: they can be recorded, compared, replayed."""

from __future__ import annotations

from typing import NamedTuple

from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import Reason
from modelless.variants.vocabulary import Placement


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


class LoadInstance(NamedTuple):
    """Load the variant into the worker."""

    worker_id: str
    variant_id: str
    reason: Reason


class UnloadInstance(NamedTuple):
    """Unload the variant from it; ``for_variant_id`` is what needed the room, if any."""

    worker_id: str
    variant_id: str
    reason: Reason
    for_variant_id: str = ""


class ScalePool(NamedTuple):
    """Bring the pool of this device class to ``workers`` workers."""

    device_class: str
    workers: int
    reason: Reason


class ResizeWorker(NamedTuple):
    """Make the worker one of another device class while it serves."""

    worker_id: str
    device_class: str
    reason: Reason


class Advise(NamedTuple):
    """Tell every gateway's selection policy which share of a scope's queries each placement serves.

    Attributes:
        shares: ``(scope, ((placement, share), ...))`` pairs.
    """

    shares: tuple[tuple[str, tuple[tuple[Placement, float], ...]], ...]


class Planned(NamedTuple):
    """Note how good the scaling policy's new plan is known to be; there is nothing to carry out."""

    reason: Reason
    quality: PlanQuality


PlanEffect = LoadInstance | UnloadInstance | ScalePool | ResizeWorker | Advise | Planned
