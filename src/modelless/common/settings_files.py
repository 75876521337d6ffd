"""Messages for mistakes in settings files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from modelless.common.errors import did_you_mean, shown

_ALLOWED: Final = "allowed: "
_WORDS: Final = {
    "missing": "it must be given",
    "extra_forbidden": "there is no such key",
    "string_type": f"{_ALLOWED}text",
    "tuple_type": f"{_ALLOWED}a list",
    "list_type": f"{_ALLOWED}a list",
    "set_type": f"{_ALLOWED}a list",
    "frozen_set_type": f"{_ALLOWED}a list",
    "dict_type": f"{_ALLOWED}a mapping",
    "model_type": f"{_ALLOWED}a mapping",
    "model_attributes_type": f"{_ALLOWED}a mapping",
    "finite_number": f"{_ALLOWED}a finite number",
}
_BOUNDS: Final = {
    "gt": "greater than",
    "ge": "greater than or equal to",
    "lt": "less than",
    "le": "less than or equal to",
}
_OUT_OF_RANGE: Final = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_BRANCH: Final = re.compile(r"str|int|float|bool|\w+\[.*\]")
"""Parts of a place that Pydantic adds for each type that a field may have."""


def problems(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Every problem that a validation found, each with its field, its value and what is allowed.

    Of a field that may be one of several types it is one problem, with what each of them allows.

    Args:
        model: what was validated; then of a key that there is not, those that there are are told.
    """
    got: dict[str, str] = {}
    wrong: dict[str, list[str]] = {}
    found = error.errors()
    for problem in found:
        place = problem["loc"]
        if problem["type"] == "too_short" and any(
            _is_inside(other["loc"], place) for other in found
        ):
            continue  # Pydantic counts an entry that is wrong as one that is missing
        parts = [str(part) for part in place]
        field = ".".join(part for part in parts if not _BRANCH.fullmatch(part)) or "(top)"
        kind = problem["type"]
        got[field] = "nothing" if kind == "missing" else shown(problem.get("input"), 80)
        words = _words(kind, problem["msg"], problem.get("ctx", {}))
        if kind in _OUT_OF_RANGE and model is not None:
            words = _range_at(model, place) or words
        if kind == "extra_forbidden" and model is not None:
            words += _instead(str(place[-1]), _keys_at(model, place[:-1]))
        wrong.setdefault(field, []).append(words)
    return "; ".join(f"{field}: got {got[field]}; {_joined(wrong[field])}" for field in wrong)


def _is_inside(place: Sequence[int | str], other: Sequence[int | str]) -> bool:
    return len(place) > len(other) and tuple(place[: len(other)]) == tuple(other)


def _words(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Pydantic's message, without what it says of Python."""
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "too_short":
        return f"{_ALLOWED}at least {context['min_length']} of them"
    if kind == "too_long":
        return f"{_ALLOWED}at most {context['max_length']} of them"
    message = message.partition(", unable to parse")[0]
    return message.removeprefix("Value error, ").replace("Input should be ", _ALLOWED, 1)


def _joined(messages: list[str]) -> str:
    if all(message.startswith(_ALLOWED) for message in messages):
        return _ALLOWED + ", or ".join(message.removeprefix(_ALLOWED) for message in messages)
    return "; ".join(messages)


def _instead(key: str, known: Sequence[str]) -> str:
    if near := did_you_mean(key, known):
        return f". {near}"
    return f"; {_ALLOWED}{', '.join(known)}" if known else ""


def _range_at(model: type[BaseModel], place: Sequence[int | str]) -> str:
    """What the bounds of the number at a place of an error allow; empty if they are not known."""
    bounds = {
        name: getattr(bound, name)
        for each in _models_at(model, place[:-1])
        if place[-1] in each.model_fields
        for bound in each.model_fields[str(place[-1])].metadata
        for name in _BOUNDS
        if hasattr(bound, name)
    }
    numbers = {name: f"{value:.15g}" for name, value in bounds.items()}
    if numbers.keys() == {"ge", "le"}:
        return f"{_ALLOWED}{numbers['ge']} to {numbers['le']}"
    told = [f"{_BOUNDS[name]} {number}" for name, number in numbers.items()]
    return _ALLOWED + " and ".join(told) if told else ""


def _keys_at(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The keys that there are at a place of an error."""
    return list(
        dict.fromkeys(key for each in _models_at(model, place) for key in each.model_fields)
    )


def _models_at(model: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models at a place of an error: of fields, list indices, names and kinds of unions."""
    found = [model]
    for part in place:
        of_kind = [
            each
            for each in found
            if "kind" in each.model_fields
            and part in get_args(each.model_fields["kind"].annotation)
        ]
        fields = [each.model_fields[str(part)] for each in found if part in each.model_fields]
        if of_kind or fields:
            found = of_kind or [inner for each in fields for inner in _models_in(each.annotation)]
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
