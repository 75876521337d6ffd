"""Finding a policy: by name, by ``module:attr``, or by an entry point; its settings from YAML.

A specification is a name, or a mapping whose ``policy`` is the name and whose other keys are the
settings, which are the keyword arguments of the policy's ``__init__``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from modelless.policies.seams import (
    BatchingPolicy,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)
from modelless.variants.errors import InvalidInputError, NotFoundError

GROUP = "modelless.policies"

_HOME = "modelless.policies"
BUILT_IN: Mapping[type, Mapping[str, str]] = {
    SelectionPolicy: {
        "cheapest-feasible": f"{_HOME}.selection.cheapest_feasible:CheapestFeasible",
        "most-accurate-feasible": f"{_HOME}.selection.most_accurate_feasible:MostAccurateFeasible",
    },
    BatchingPolicy: {
        "earliest-deadline-first": (
            f"{_HOME}.batching.earliest_deadline_first:EarliestDeadlineFirst"
        ),
    },
    ScalingPolicy: {"fixed": f"{_HOME}.scaling.fixed:Fixed"},
    PlacementPolicy: {"most-free-memory": f"{_HOME}.placement.most_free_memory:MostFreeMemory"},
    EvictionPolicy: {"lru": f"{_HOME}.eviction.least_recently_used:LeastRecentlyUsed"},
    Forecaster: {"last-value": f"{_HOME}.forecast.last_value:LastValue"},
}

Seam = TypeVar("Seam")


def find_policy(seam: type[Seam], name: str) -> type[Seam]:
    """The policy class called ``name`` that fits ``seam``.

    Raises:
        NotFoundError: nothing of that name; says what there is.
        InvalidInputError: it is there, but is no policy of this seam.
    """
    built_in = BUILT_IN[seam]
    if name in built_in:
        found = _import(built_in[name])
    elif ":" in name:
        found = _import(name)
    else:
        outside = {point.name: point for point in entry_points(group=GROUP)}
        if name not in outside:
            raise NotFoundError(_unknown(seam, name, [*built_in, *outside]))
        found = outside[name].load()
    if not (isinstance(found, type) and issubclass(found, seam)):
        raise InvalidInputError.of("policy", name, f"a class derived from {seam.__name__}")
    return found


def build_policy(seam: type[Seam], specification: str | Mapping[str, Any]) -> Seam:
    """The policy a specification describes, with its settings; see the module's docstring.

    Raises:
        NotFoundError: no such policy.
        InvalidInputError: a setting it does not have, or a value it does not take.
    """
    if isinstance(specification, str):
        specification = {"policy": specification}
    settings = dict(specification)
    name = settings.pop("policy", None)
    if not isinstance(name, str):
        raise InvalidInputError.of("policy", name, "the name of a policy")
    policy = find_policy(seam, name)
    parameters = inspect.signature(policy).parameters
    for key in settings:
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, n=1)
            raise InvalidInputError.of(
                f"{name}.{key}",
                settings[key],
                "the settings " + (", ".join(parameters) or "(none)"),
                f"Did you mean {near[0]!r}?" if near else "",
            )
    if "batching" in settings:
        settings["batching"] = build_policy(BatchingPolicy, settings["batching"])  # type: ignore[type-abstract]
    try:
        return policy(**settings)
    except TypeError as error:
        raise InvalidInputError(f"{name}: its settings do not fit: {error}") from error


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise NotFoundError(f"policy {path!r} cannot be imported: {error}") from error


def _unknown(seam: type, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{seam.__name__} {name!r} does not exist; there are: {', '.join(sorted(known))}; "
        f"or name your own as 'module:Class'.{hint}"
    )
