"""What came to a device and what left it, as the device itself tells it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from modelless.policies.reasons import Reason


class ChangeKind(StrEnum):
    """What a change was; history and metrics use the same words."""

    LOADED = "loaded"
    UNLOADED = "unloaded"
    LOAD_FAILED = "load-failed"


@dataclass(frozen=True, slots=True)
class Change:
    """A load or an unload that has ended, or a load that failed.

    Attributes:
        at_s: when it ended, seconds since the epoch.
        worker_id: where.
        kind: what.
        variant_id: what.
        reason: why.
        for_variant_id: of an unload, what needed the room, if anything did.
        displaced: of a load, what had left for it.
        seconds: what it took: a load from disk to warm, an unload until its memory was free.
        memory_bytes: what it takes, or took, as measured.
        problem: of a load that failed, what the engine said.
    """

    at_s: float
    worker_id: str
    kind: ChangeKind
    variant_id: str
    reason: Reason
    for_variant_id: str = ""
    displaced: tuple[str, ...] = ()
    seconds: float = 0.0
    memory_bytes: int = 0
    problem: str = ""
