"""What the workers hold, and will hold, as a plan is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelless.policies.scaling.demand_value.offer import Offer
from modelless.policies.views import WorkerState
from modelless.variants.vocabulary import Placement


@dataclass(slots=True)
class Held:
    """An instance on a worker.

    Attributes:
        row: of its placement in the offer; -1 if it is not on offer.
        size_bytes: what it takes.
        movable: idle, and pinned by nobody.
    """

    row: int
    size_bytes: float
    movable: bool


@dataclass(slots=True)
class Shelf:
    """A worker and what it holds.

    Attributes:
        class_number: of its device class.
        free_bytes: room left.
        loaded_at_s: how long from now until its loads under way are done.
        held: its instances.
    """

    class_number: int
    free_bytes: float
    loaded_at_s: float
    held: list[Held] = field(default_factory=list)


def shelves_of(
    workers: Sequence[WorkerState], offer: Offer, loads_left_s: Mapping[str, float]
) -> list[Shelf]:
    """The workers in order of their ids."""
    rows = {(p.variant_id, p.device_class): row for row, p in enumerate(offer.placements)}
    numbers = {name: number for number, name in enumerate(offer.classes)}
    shelves = []
    for worker in sorted(workers, key=lambda worker: worker.worker_id):
        held = []
        for instance in sorted(worker.instances, key=lambda instance: instance.variant_id):
            row = rows.get((instance.variant_id, worker.device_class), -1)
            size = float(instance.memory_bytes)
            if size <= 0.0 and row >= 0:  # still loading
                size = float(offer.memory_bytes[row])
            held.append(Held(row, size, not (instance.in_use or instance.pinned)))
        shelves.append(
            Shelf(
                numbers[worker.device_class],
                worker.memory_bytes - sum(one.size_bytes for one in held),
                loads_left_s.get(worker.worker_id, 0.0),
                held,
            )
        )
    return shelves


def has_room(shelves: Sequence[Shelf], offer: Offer) -> bool:
    """Whether anything more could be loaded anywhere without displacing anything."""
    for shelf in shelves:
        fits = (offer.class_of == shelf.class_number) & (offer.memory_bytes <= shelf.free_bytes)
        if set(np.flatnonzero(fits).tolist()) - {held.row for held in shelf.held}:
            return True
    return False


def fill(shelves: Sequence[Shelf], offer: Offer, order: Iterable[Placement]) -> None:
    """Let every shelf hold as much as it has room for, in this order."""
    rows = {placement: row for row, placement in enumerate(offer.placements)}
    wanted = [rows[placement] for placement in order if placement in rows]
    for shelf in shelves:
        there = {held.row for held in shelf.held}
        for row in wanted:
            size = float(offer.memory_bytes[row])
            if offer.class_of[row] != shelf.class_number or row in there:
                continue
            if size <= shelf.free_bytes:
                shelf.held.append(Held(row, size, movable=False))
                shelf.free_bytes -= size
