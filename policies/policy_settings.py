"""The settings that a policy takes: the arguments of its ``__init__``, as they are annotated."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from modelless.variants.settings_files import problems

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def settings_of(policy: type) -> dict[str, inspect.Parameter]:
    """The settings by name."""
    parameters = inspect.signature(policy).parameters
    return {name: each for name, each in parameters.items() if each.kind not in _ANY_NUMBER}


def takes_any(policy: type) -> bool:
    """Whether it takes settings of any name besides."""
    kinds = [each.kind for each in inspect.signature(policy).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def told(policy: type) -> str:
    """The settings with their defaults, for people."""
    return ", ".join(_told(each) for each in settings_of(policy).values()) or "(none)"


def misfits(policy: type, settings: Mapping[str, Any]) -> str:
    """What is wrong with the types of these settings, for people; empty if nothing is.

    Types are those of the annotations, and nothing is converted: text is no number. What has no
    annotation, or one that is not of plain data, is taken as it is.
    """
    try:
        types = get_type_hints(policy.__init__)  # type: ignore[misc]  # of this very class
    except (NameError, TypeError):  # annotations that only a type checker can read
        return ""
    found = [
        problem
        for name, value in settings.items()
        if name in types and (problem := _misfit(name, types[name], value))
    ]
    return "; ".join(found)


def _misfit(name: str, annotation: Any, value: object) -> str:
    try:
        adapter = TypeAdapter(dict[str, annotation], config=ConfigDict(strict=True))
        adapter.validate_python({name: value})
    except ValidationError as error:
        return problems(error)
    except PydanticUserError:
        return ""
    return ""


def _told(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"
