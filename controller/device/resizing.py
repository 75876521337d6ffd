"""What a worker takes along when it becomes one of another device class while it serves.

Each variant is loaded again, for the new class, beside the old one; when all are there they take
over at once, and an old one is freed after its last batch. So no query is dropped and none waits
for a load, at the price of memory for both for a moment. Only what was used lately is taken along,
as far as it fits: the fewer loads, the sooner the worker is what it is to be. The rest is loaded
again afterwards if it is still wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

LATELY_S = 30.0
"""What was last used so long before the latest use of anything is not taken along."""


class Resident(NamedTuple):
    """A variant that is loaded.

    Attributes:
        needed_bytes: what it is expected to take once more.
        last_used_s: when it last served a batch; -inf if it never did.
        in_use: a batch runs or is queued on it.
    """

    variant_id: str
    needed_bytes: int
    last_used_s: float
    in_use: bool


def take_along(residents: Iterable[Resident], free_bytes: int) -> tuple[str, ...] | None:
    """What to load a second time: what was used lately, as much as fits, the latest used first.

    Of a worker that never served, everything counts as used lately.

    Returns:
        Variant ids in the order to load them in; None if something in use does not fit, or nothing
        does: then the worker must stay what it is.
    """
    taken: list[str] = []
    waiting = sorted(residents, key=lambda r: (not r.in_use, -r.last_used_s, r.variant_id))
    latest_s = max((resident.last_used_s for resident in waiting), default=-inf)
    for resident in waiting:
        if not resident.in_use and resident.last_used_s < latest_s - LATELY_S:
            continue
        if resident.needed_bytes <= free_bytes:
            free_bytes -= resident.needed_bytes
            taken.append(resident.variant_id)
        elif resident.in_use:
            return None
    return tuple(taken) if taken or not waiting else None
