"""The settings of a policy: the annotated arguments of its ``__init__``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from modelless.common.errors import FOREIGN_ERRORS
from modelless.common.settings_files import problems

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def settings_of(policy: type) -> dict[str, inspect.Parameter]:
    """Returns the settings by name."""
    parameters = inspect.signature(policy).parameters
    return {name: each for name, each in parameters.items() if each.kind not in _ANY_NUMBER}


def takes_any(policy: type) -> bool:
    """Returns whether the policy takes further settings of any name."""
    kinds = [each.kind for each in inspect.signature(policy).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def told(policy: type) -> str:
    """Returns the settings with their defaults, for people."""
    return ", ".join(_told(each) for each in settings_of(policy).values()) or "(none)"


def misfits(policy: type, settings: Mapping[str, Any]) -> str:
    """Returns which settings have a wrong type, for people; empty if none has.

    The annotations give the types, and scalars are not converted: text is no number. A list may
    stand for a tuple or a set, and text for a path or an enumeration, which YAML cannot express; a
    number that is a key counts as text, too, as in JSON. Settings without an annotation, with an
    unreadable one or with one that is not of plain data are not checked, and neither is a value
    that equals the default.
    """
    try:
        types = get_type_hints(policy.__init__)  # type: ignore[misc]  # of this very class
    except FOREIGN_ERRORS:  # annotations that only a type checker can read
        return ""
    found = [
        problem
        for name, parameter in settings_of(policy).items()
        if name in settings
        and name in types
        and (problem := _misfit(name, types[name], parameter.default, settings[name]))
    ]
    return "; ".join(found)


def _misfit(name: str, annotation: Any, default: object, value: object) -> str:
    try:
        if type(value) is type(default) and value == default:
            return ""
        adapter = TypeAdapter(dict[str, annotation])
        adapter.validate_json(json.dumps({name: value}), strict=True)
    except ValidationError as error:
        return problems(error)
    except FOREIGN_ERRORS:  # an annotation or a value that is not of plain data
        return ""
    return ""


def _told(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"
