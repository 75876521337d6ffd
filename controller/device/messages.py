"""The events that a device handles, and the effects that it asks its driver to carry out.

All are plain values: they can be recorded, compared and replayed. A loaded engine is known here by
a number, its ``copy_id``; the driver keeps the engine itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from modelless.policies.reasons import Reason

# -- orders, which events carry ------------------------------------------------------------------


class LoadInstance(NamedTuple):
    """Load the variant into the worker.

    Attributes:
        memory_bytes: memory that it is expected to take; if 0, none is set aside for it.
        device_class: the class that this holds for: a worker that was resized meanwhile does not
            obey. Empty for any.
    """

    worker_id: str
    variant_id: str
    reason: Reason
    memory_bytes: int = 0
    device_class: str = ""


class UnloadInstance(NamedTuple):
    """Unload the variant; ``for_variant_id`` names the variant that needs the room, if any."""

    worker_id: str
    variant_id: str
    reason: Reason
    for_variant_id: str = ""


class ResizeWorker(NamedTuple):
    """Make the worker one of another device class while it serves.

    Attributes:
        worker_id, device_class: the worker, and what it is to become.
        memory_bytes: memory that each known variant is expected to take there, by id; inf if it
            cannot run there. It is for all, as others may be ready when the order arrives. One that
            is not named takes as much as now.
    """

    worker_id: str
    device_class: str
    reason: Reason
    memory_bytes: Mapping[str, float] = {}


Order = LoadInstance | UnloadInstance | ResizeWorker
"""What one worker is to do. A driver may keep orders until the worker reports."""


# -- events ---------------------------------------------------------------------------------------


class Ordered(NamedTuple):
    """The control loop has sent orders for this device.

    Attributes:
        effects: in the order in which the device obeys them; loads, unloads and resizes.
        in_use: variants with queries that run here or wait for this device, as far as the driver
            knows.
    """

    effects: Sequence[Order]
    in_use: Collection[str] = ()


class LoadEnded(NamedTuple):
    """A load has ended, and its engine is warm.

    Attributes:
        memory_bytes: memory that the engine takes, as measured.
        load_s: seconds that the load took, as measured.
    """

    copy_id: int
    memory_bytes: int
    load_s: float


class LoadFailed(NamedTuple):
    """A load has failed; ``problem`` is the engine's message."""

    copy_id: int
    problem: str


class BatchHandedIn(NamedTuple):
    """A gateway has sent a batch.

    Attributes:
        batch_id: a number that no other batch on this device has.
        variant_id: the variant that the batch is to run on.
        expected_s: seconds that the batch is expected to run.
        patience_s: seconds that it may wait before it runs.
    """

    batch_id: int
    variant_id: str
    expected_s: float = 0.0
    patience_s: float = inf


class BatchEnded(NamedTuple):
    """A batch has run, or has failed.

    Attributes:
        busy_s: seconds for which it kept the device busy.
    """

    batch_id: int
    busy_s: float


class FreeEnded(NamedTuple):
    """The memory of an engine is free."""

    copy_id: int
    seconds: float


class Tick(NamedTuple):
    """The time of ``WakeAt`` has come."""


Event = Ordered | LoadEnded | LoadFailed | BatchHandedIn | BatchEnded | FreeEnded | Tick

# -- effects --------------------------------------------------------------------------------------


class StartLoad(NamedTuple):
    """Load a variant and answer with ``LoadEnded`` or ``LoadFailed``. The device asks for one load
    at a time.

    Attributes:
        copy_id: the number of the engine from now on.
        device_class: the device class to load it for: another one than the device's own while the
            device is being resized.
        memory_bytes: memory set aside for it; 0 if its size is unknown.
    """

    copy_id: int
    variant_id: str
    device_class: str
    memory_bytes: int
    reason: Reason


class Free(NamedTuple):
    """Free an engine that no batch uses, and answer with ``FreeEnded``."""

    copy_id: int


class StartBatch(NamedTuple):
    """Run a batch on an engine, after the batches that were started before; then answer with
    ``BatchEnded``."""

    batch_id: int
    copy_id: int


class TurnBatchBack(NamedTuple):
    """Give a batch back to its gateway: nothing of it has run.

    Attributes:
        others_s: seconds for which the accepted batches will keep the device.
        is_held: whether the variant is ready here; if not, the gateway needs a new report.
    """

    batch_id: int
    others_s: float
    is_held: bool


class ReportReady(NamedTuple):
    """Tell dispatch which variants are ready now, and on which device class.

    Attributes:
        variant_ids: the variants that batches can run on.
    """

    device_class: str
    variant_ids: tuple[str, ...]


class ChangeKind(StrEnum):
    """The kind of a residency change; history and metrics use the same words."""

    LOADED = "loaded"
    UNLOADED = "unloaded"
    LOAD_FAILED = "load-failed"


class ResidencyChange(NamedTuple):
    """Note in the history that a load or an unload has ended, or that a load has failed.

    Attributes:
        at_s: when it ended: the ``now_s`` of ``handle``; in reports, seconds since the epoch.
        for_variant_id: of an unload, the variant that needed the room, if one did.
        displaced: of a load, the variants that were unloaded for it.
        seconds: how long it took: a load from disk to warm, an unload until its memory was free.
        memory_bytes: memory that the variant takes, or took, as measured.
        problem: of a load that failed, the engine's message, or ``no-room``.
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


class ResizeStep(StrEnum):
    """How far a resize has come."""

    STARTED = "resize"
    ENDED = "resized"
    FAILED = "resize-failed"


class NoteResize(NamedTuple):
    """Note that a resize has started, ended or failed.

    Attributes:
        device_class: the class that the device is to become, or has become.
    """

    device_class: str
    step: ResizeStep
    problem: str = ""


class WakeAt(NamedTuple):
    """Send ``Tick`` at this time. A later ``WakeAt`` replaces an earlier one."""

    at_s: float


Effect = (
    StartLoad
    | Free
    | StartBatch
    | TurnBatchBack
    | ReportReady
    | ResidencyChange
    | NoteResize
    | WakeAt
)
