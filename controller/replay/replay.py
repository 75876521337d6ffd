"""Feeds a recording's events to the same machines again: the effects must be the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.assembly import build_dispatcher, build_planner
from modelless.controller.config import parse_settings
from modelless.controller.control.planner import Planner
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.dispatch.messages import DispatchEvent
from modelless.controller.replay.codec import decode, encode, message
from modelless.controller.replay.recorded import Machine, PlannerFacts, PlannerTick
from modelless.controller.replay.snapshot import read_snapshot
from modelless.controller.replay.tape import SUFFIX, TapeReader


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
        tape: its file.
        what, name: ``gateway`` or ``control``, and its name.
        inputs, effects: how many events and effects were compared.
        difference: the first difference; None if there is none.
        ending: see ``TapeReader``.
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
    what = str(reader.header["what"])
    machine, kinds = _gateway(reader.header) if what == "gateway" else _control(reader.header)
    inputs = effects = 0
    difference = None
    for number, (now_s, event, recorded) in enumerate(reader.items(), 1):
        answered = machine.handle(_decode_event(kinds, event), now_s)
        replayed = encode([message(effect) for effect in answered])
        inputs += 1
        effects += len(recorded)
        if encode(recorded) != encode(json.loads(replayed)):  # as text: NaN is the same as NaN
            asked = f"{event[0]} {encode(event[1:])} at {now_s} s"
            difference = Difference(number, asked, encode(recorded), replayed)
            break
    return Replayed(path, what, str(reader.header["name"]), inputs, effects, difference,
                    reader.ending)  # fmt: skip


Kinds = Mapping[str, type]
"""The types of a machine's events, by name."""


def _decode_event(kinds: Kinds, data: Sequence[Any]) -> Any:
    kind = kinds.get(data[0])
    if kind is None:
        raise InvalidInputError.of(
            "recording: event", data[0], "one of " + ", ".join(kinds),
            "Replay it with the version that recorded it.",
        )  # fmt: skip
    return decode(kind, data[1:])


def _kinds_of(events: Any) -> Kinds:
    return {kind.__name__: kind for kind in get_args(events)}


def _gateway(header: Mapping[str, Any]) -> tuple[Machine, Kinds]:
    known = read_snapshot(header)
    dispatcher = build_dispatcher(
        known.settings, known.variants, known.device_classes, known.cost_inputs.model()
    )
    return dispatcher, _kinds_of(DispatchEvent)


def _control(header: Mapping[str, Any]) -> tuple[Machine, Kinds]:
    planner = build_planner(
        parse_settings(header["settings"], "the recording's settings"),
        decode(PlanLimits, header["limits"]),
        decode(tuple[str, ...], header["preload"]),
    )
    return _ReplayedPlanner(planner), _kinds_of(PlannerFacts | PlannerTick)


class _ReplayedPlanner:
    """The counterpart of ``RecordedPlanner``."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._facts = PlannerFacts({}, ())

    def handle(self, event: PlannerFacts | PlannerTick, _: float) -> list[Any]:
        """See ``Machine``."""
        if isinstance(event, PlannerFacts):
            self._facts = event
            return []
        effects = self._planner.tick(replace(event.view, **self._facts._asdict()))
        return [*effects, *self._planner.problems]
