"""The live machines, recorded if the settings say so."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from modelless.controller.assembly import build_dispatcher, build_planner, limits_of
from modelless.controller.config import Settings
from modelless.controller.control.planner import Planner
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.live.knowledge import Knowledge
from modelless.controller.replay.recorded import Recorded, RecordedPlanner
from modelless.controller.replay.snapshot import Snapshot
from modelless.controller.replay.tape import SUFFIX, Tape, clock


def open_dispatcher(
    gateway_id: str, settings: Settings, knowledge: Knowledge
) -> tuple[Dispatcher, Tape | None]:
    """A gateway's dispatcher, and the tape to be closed after it; None if nothing is recorded.

    Raises:
        OSError: the tape cannot be written.
    """
    dispatcher = build_dispatcher(
        settings, knowledge.catalog.versions, knowledge.device_classes, knowledge.cost_model
    )
    if settings.record.folder is None:
        return dispatcher, None
    snapshot = Snapshot(
        settings, knowledge.catalog.versions, knowledge.device_classes, knowledge.cost_inputs
    )
    tape = _open(settings, "gateway", gateway_id, snapshot.document())
    return cast("Dispatcher", Recorded(dispatcher, tape)), tape


def open_planner(
    settings: Settings, device_classes: Iterable[str], preload: Sequence[str]
) -> tuple[Planner, Tape | None]:
    """The control machine's planner, and the tape as for ``open_dispatcher``, which see."""
    limits = limits_of(settings, device_classes)
    planner = build_planner(settings, limits, preload)
    if settings.record.folder is None:
        return planner, None
    document = {
        "settings": settings.model_dump(mode="json"),
        "limits": limits,
        "preload": list(preload),
    }
    tape = _open(settings, "control", str(time.time_ns()), document)
    return cast(Planner, RecordedPlanner(planner, tape)), tape  # it can do all that Control asks


def _open(settings: Settings, what: str, name: str, document: Mapping[str, Any]) -> Tape:
    header = {"what": what, "name": name, "clock": clock(), **document}
    path = Path(settings.record.folder or ".") / f"{what}-{name}{SUFFIX}"
    return Tape(path, header, settings.record.max_bytes)
