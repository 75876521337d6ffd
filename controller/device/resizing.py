"""Which variants a worker takes along when it becomes one of another device class while it serves.

The device loads each of these variants again, for the new class, beside the old copy. When all are
loaded, the new copies take over at once, and each old copy is freed after its last batch. So no
query is dropped and none waits for a load, at the price of memory for both copies for a moment. The
device takes along only the variants that were used lately, as far as they fit: the fewer loads, the
sooner it is of the new class. The control loop orders the others again if it still wants them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from modelless.policies.reasons import Reason

LATELY_S = 30.0
"""A variant was not used lately if another was last used so much later."""


class Candidate(NamedTuple):
    """A ready variant that could be taken along.

    Attributes:
        needed_bytes: memory that its second copy is expected to take.
        last_used_s: when it last served a batch; -inf if it never did.
        in_use: whether a batch runs or is queued on it.
    """

    variant_id: str
    needed_bytes: float
    last_used_s: float
    in_use: bool


@dataclass(slots=True)
class Resize:
    """A resize under way.

    Attributes:
        device_class: the class that the device is to become.
        needed_bytes: memory that a second copy of each ready variant is expected to take.
        missing: variants still to be loaded a second time, in order.
        loaded: ids of the second copies, by variant.
        failed: why second copies could not be loaded, by variant.
    """

    device_class: str
    reason: Reason
    began_s: float
    needed_bytes: dict[str, float]
    missing: list[str]
    loaded: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def take_along(candidates: Iterable[Candidate], free_bytes: float) -> tuple[str, ...] | None:
    """Choose what to load a second time: what was used lately and fits, the latest used first.

    On a worker that never served, every variant counts as used lately.

    Returns:
        Variant ids in the order to load them in; None if a variant in use does not fit, or no
        variant does: then the worker must stay what it is.
    """
    taken: list[str] = []
    waiting = sorted(candidates, key=lambda c: (not c.in_use, -c.last_used_s, c.variant_id))
    latest_s = max((candidate.last_used_s for candidate in waiting), default=-inf)
    for candidate in waiting:
        if not candidate.in_use and candidate.last_used_s < latest_s - LATELY_S:
            continue
        if candidate.needed_bytes <= free_bytes:
            free_bytes -= candidate.needed_bytes
            taken.append(candidate.variant_id)
        elif candidate.in_use:
            return None
    return tuple(taken) if taken or not waiting else None
