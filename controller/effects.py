"""The effects of the planner, as plain values: they can be recorded, compared and replayed."""

from __future__ import annotations

from typing import NamedTuple

from modelless.policies.plan_quality import PlanQuality
from modelless.policies.reasons import Reason
from modelless.variants.vocabulary import Placement


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
