"""Feeds a recording's events to the same machines again: the effects must be the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import NotFoundError
from modelless.controller.assembly import build_control, build_dispatcher
from modelless.controller.config import parse_settings
from modelless.controller.control.machine import ControlTimes
from modelless.controller.control.messages import ControlEvent
from modelless.controller.device import messages as device
from modelless.controller.device.machine import Device
from modelless.controller.dispatch.messages import DispatchEvent
from modelless.controller.replay.codec import decode, encode, message
from modelless.controller.replay.snapshot import read_snapshot
from modelless.controller.replay.tape import SUFFIX, Machine, TapeReader


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event to which a machine returns other effects than it did.

    Attributes:
        number: the event's place on its tape, from 1.
        asked: the event and its time, for people.
        recorded, replayed: the effects then and now, as JSON.
    """

    number: int
    asked: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one tape.

    Attributes:
        what, name: ``gateway``, ``control`` or ``device``, and its name.
        inputs, effects: how many events and effects were compared.
        difference: the first difference; None if there is none.
    """

    tape: Path
    what: str
    name: str
    inputs: int
    effects: int
    difference: Difference | None
    ending: str


def tapes_in(folder: Path) -> list[Path]:
    """Return the tapes of a recording.

    Raises:
        NotFoundError: the folder has none.
    """
    tapes = sorted(folder.glob(f"*{SUFFIX}"))
    if not tapes:
        raise NotFoundError(
            f"no recording in {folder}: 'modelless up --record {folder}' makes one there"
        )
    return tapes


def replay(path: Path) -> Replayed:
    """Replay one tape up to its end or the first difference.

    Raises:
        InvalidInputError: the file is no tape of this version.
        NotFoundError: a policy that was recorded is not there.
    """
    reader = TapeReader(path)
    machine, event_type = _rebuild(reader.header)
    inputs = effects = 0
    difference = None
    for number, (now_s, event, recorded) in enumerate(reader.items(), 1):
        answered = machine.handle(decode(event_type, event), now_s)
        replayed = encode([message(effect) for effect in answered])
        inputs += 1
        effects += len(recorded)
        if encode(recorded) != encode(json.loads(replayed)):  # as text: NaN is the same as NaN
            asked = f"{event[0]} {encode(event[1:])} at {now_s} s"
            difference = Difference(number, asked, encode(recorded), replayed)
            break
    return Replayed(path, str(reader.header["what"]), str(reader.header["name"]), inputs, effects,
                    difference, reader.ending)  # fmt: skip


def _rebuild(header: Mapping[str, Any]) -> tuple[Machine, Any]:
    """Return the machine as it was when its tape began, and the type of its events."""
    what = header["what"]
    if what == "device":
        return Device(**header["arguments"]), device.Event
    if what == "control":
        control = build_control(
            parse_settings(header["settings"], "the recording's settings"),
            header["device_classes"],
            header["preload"],
            header["began_s"],
            decode(ControlTimes, header["times"]),
        )
        return control, ControlEvent
    known = read_snapshot(header)
    dispatcher = build_dispatcher(
        known.settings, known.variants, known.device_classes, known.cost_inputs.model()
    )
    return dispatcher, DispatchEvent
