"""A recording through the cores again: the same inputs must give the same effects."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.assembly import build_dispatcher, build_planner
from modelless.controller.config import parse_settings
from modelless.controller.control.pool_moves import PlanLimits
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.replay.codec import decode, encode, encode_item
from modelless.controller.replay.snapshot import read_snapshot
from modelless.controller.replay.tape import SUFFIX, TapeReader
from modelless.policies.views import ClusterView, VariantFacts
from modelless.variants.vocabulary import DeviceClass


@dataclass(frozen=True, slots=True)
class Difference:
    """The first input to which the cores answer otherwise than they did.

    Attributes:
        number: of the input on its tape, from 1.
        asked: the input and its arguments.
        recorded, replayed: what was answered, as JSON.
    """

    number: int
    asked: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one tape.

    Attributes:
        tape: its file.
        what, name: ``gateway`` or ``control``, and which.
        inputs, effects: how many were compared.
        difference: the first; None if there is none.
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
    """The tapes of a recording.

    Raises:
        NotFoundError: there are none.
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
        InvalidInputError: it is no tape, or one of a core with other inputs.
        NotFoundError: a policy that was recorded is not there.
    """
    reader = TapeReader(path)
    what = str(reader.header["what"])
    answer = _dispatcher(reader.header) if what == "gateway" else _planner(reader.header)
    inputs = effects = 0
    difference = None
    for number, (name, arguments, recorded) in enumerate(reader.items(), 1):
        replayed = json.loads(encode_item(name, (), answer(name, arguments)))[2]
        inputs += 1
        effects += len(recorded) if isinstance(recorded, list) else 0
        if encode(recorded) != encode(replayed):  # as text: NaN is the same as NaN
            difference = Difference(
                number, f"{name} {encode(arguments)}", encode(recorded), encode(replayed)
            )
            break
    return Replayed(path, what, str(reader.header["name"]), inputs, effects, difference,
                    reader.ending)  # fmt: skip


def arguments_of(name: str, arguments: list[Any]) -> dict[str, Any]:
    """The arguments of one of the dispatcher's inputs, by name.

    Raises:
        InvalidInputError: there is no such input, or its arguments are others.
    """
    known = _parameters(name)
    if known is None or len(known) != len(arguments):
        raise InvalidInputError.of(
            "recording: input", f"{name} with {len(arguments)} arguments", "this version's inputs",
            "Replay it with the version that recorded it.",
        )  # fmt: skip
    return {
        parameter: decode(kind, value)
        for (parameter, kind), value in zip(known.items(), arguments, strict=True)
    }


@cache
def _parameters(name: str) -> Mapping[str, Any] | None:
    method = getattr(Dispatcher, name, None)
    if method is None:
        return None
    hints = get_type_hints(method)
    return {each: hints[each] for each in inspect.signature(method).parameters if each != "self"}


def _dispatcher(header: Mapping[str, Any]) -> Callable[[str, list[Any]], object]:
    known = read_snapshot(header)
    dispatcher = build_dispatcher(
        known.settings, known.variants, known.device_classes, known.cost_inputs.model()
    )

    def answer(name: str, arguments: list[Any]) -> object:
        return getattr(dispatcher, name)(**arguments_of(name, arguments))

    return answer


def _planner(header: Mapping[str, Any]) -> Callable[[str, list[Any]], object]:
    planner = build_planner(
        parse_settings(header["settings"], "the recording's settings"),
        decode(PlanLimits, header["limits"]),
        decode(tuple[str, ...], header["preload"]),
    )
    device_classes: Mapping[str, DeviceClass] = {}
    variants: tuple[VariantFacts, ...] = ()

    def answer(name: str, arguments: list[Any]) -> object:
        nonlocal device_classes, variants
        if name == "facts":
            device_classes = decode(Mapping[str, DeviceClass], arguments[0])
            variants = decode(tuple[VariantFacts, ...], arguments[1])
            return None
        view = decode(ClusterView, arguments[0])
        effects = planner.tick(replace(view, device_classes=device_classes, variants=variants))
        return [*effects, *planner.problems]

    return answer
