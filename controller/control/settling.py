"""What a control loop that has just begun may decide: it does not know everybody yet.

One that was killed begins anew with an empty view. Whoever has not reported yet is not gone, what
seems unwanted may be wanted by them, and what seems missing may be there.
"""

from __future__ import annotations

from collections.abc import Iterable

from modelless.controller.effects import (
    LoadInstance,
    PlanEffect,
    ResizeWorker,
    ScalePool,
    UnloadInstance,
)


def without_rash(effects: Iterable[PlanEffect]) -> list[PlanEffect]:
    """The effects without those that may be regretted: unloads, what needs their room, scaling."""
    kept: list[PlanEffect] = []
    without_room: set[tuple[str, str]] = set()
    for effect in effects:
        if isinstance(effect, UnloadInstance):
            without_room.add((effect.worker_id, effect.for_variant_id))
        elif isinstance(effect, (ScalePool, ResizeWorker)):
            continue
        elif not isinstance(effect, LoadInstance) or (
            (effect.worker_id, effect.variant_id) not in without_room
        ):
            kept.append(effect)
    return kept
