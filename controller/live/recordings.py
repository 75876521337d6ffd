"""The live machines, recorded if the settings say so.

Each function returns a machine, and the tape to be closed after it: None if nothing is recorded.
Each raises OSError if the tape cannot be written.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from modelless.controller.assembly import build_control, build_dispatcher
from modelless.controller.config import RecordSettings, Settings
from modelless.controller.control.machine import DEFAULT_TIMES, Control, ControlTimes
from modelless.controller.device.machine import Device
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.live.knowledge import Knowledge
from modelless.controller.replay.snapshot import Snapshot
from modelless.controller.replay.tape import SUFFIX, Machine, Recorded, Tape, clock

_Machine = TypeVar("_Machine", bound=Machine)


def open_dispatcher(
    gateway_id: str, settings: Settings, knowledge: Knowledge
) -> tuple[Dispatcher, Tape | None]:
    """A gateway's dispatcher."""
    facts = knowledge.catalog.versions, knowledge.device_classes
    dispatcher = build_dispatcher(settings, *facts, knowledge.cost_model)
    header = Snapshot(settings, *facts, knowledge.cost_inputs).document()
    return _record(dispatcher, settings.record, "gateway", gateway_id, header)


def open_control(
    settings: Settings,
    device_classes: Collection[str],
    preload: Sequence[str],
    began_s: float,
    times: ControlTimes = DEFAULT_TIMES,
) -> tuple[Control, Tape | None]:
    """The control machine; the arguments are those of ``build_control``."""
    header = {
        "settings": settings.model_dump(mode="json"),
        "device_classes": list(device_classes),
        "preload": preload,
        "began_s": began_s,
        "times": times,
    }
    control = build_control(settings, device_classes, preload, began_s, times)
    return _record(control, settings.record, "control", str(time.time_ns()), header)


def open_device(record: RecordSettings, arguments: Mapping[str, Any]) -> tuple[Device, Tape | None]:
    """A device; ``arguments`` are those of ``Device``, by name: text, numbers, lists of text."""
    device = Device(**arguments)
    return _record(device, record, "device", device.worker_id, {"arguments": arguments})


def _record(
    machine: _Machine, record: RecordSettings, what: str, name: str, header: Mapping[str, Any]
) -> tuple[_Machine, Tape | None]:
    if record.folder is None:
        return machine, None
    path = Path(record.folder) / f"{what}-{name}{SUFFIX}"
    known = {"what": what, "name": name, "clock": clock(), **header}
    tape = Tape(path, known, record.max_bytes)
    return cast(_Machine, Recorded(machine, tape)), tape  # it can do all that the machine can
