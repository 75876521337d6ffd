"""Systems: suites of policies under one name, such as ``proteus``; read from ``systems.yaml``.

A suite names policies by seam, as a settings file does. Policies are checked by name here, and
built only where they run: a system whose policy cannot be imported is still listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from modelless.common.errors import InvalidInputError, NotFoundError, did_you_mean
from modelless.common.plugins import Plugins
from modelless.policies.discovery import POLICIES
from modelless.policies.seams import (
    BatchingPolicy,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)

Suite = Mapping[str, str | Mapping[str, Any]]
"""Specifications of policies, see ``discovery.build_policy``, by the names of ``SEAMS``."""

SEAMS: Final[Mapping[str, type]] = {
    "selection": SelectionPolicy,
    "scaling": ScalingPolicy,
    "placement": PlacementPolicy,
    "eviction": EvictionPolicy,
    "forecast": Forecaster,
}
"""By the key that names a seam's policy in settings."""

_FIELDS: Final = ("description", "source", "policies")


@dataclass(frozen=True, slots=True)
class System:
    """A suite of policies under a name.

    Attributes:
        name: for tables and the command line.
        description: one sentence.
        source: where the idea was published.
        policies: by seam; those of other seams stay as they are.
    """

    name: str
    description: str
    source: str
    policies: Suite


@cache
def systems() -> Mapping[str, System]:
    """Every system that comes with the package, by name, in the file's order."""
    text = files("modelless.policies").joinpath("systems.yaml").read_text(encoding="utf-8")
    return parse_systems(yaml.safe_load(text), source="systems.yaml")


def find_system(name: str) -> System:
    """The system of that name.

    Raises:
        NotFoundError: there is none; says what there is.
    """
    system: System = Plugins("system", systems()).find(name)
    return system


def parse_systems(document: object, source: str = "systems") -> dict[str, System]:
    """Systems from a document already read: fields by name.

    Raises:
        InvalidInputError: a field that is missing, unknown or of the wrong kind, an unknown policy;
            names the place.
    """
    if not isinstance(document, Mapping) or not document:
        raise InvalidInputError.of(source, document, "a mapping of names to systems")
    found = {}
    for name, fields in document.items():
        place = f"{source}: {name}"
        if not isinstance(fields, Mapping):
            raise InvalidInputError.of(place, fields, "a mapping of " + ", ".join(_FIELDS))
        for key in fields:
            if key not in _FIELDS:
                raise InvalidInputError.of(f"{place}.{key}", fields[key], ", ".join(_FIELDS))
        for key in ("description", "source"):
            text = fields.get(key)
            if not isinstance(text, str) or not text.strip() or "\n" in text:
                raise InvalidInputError.of(f"{place}.{key}", text, "one line of text")
        suite = parse_suite(fields.get("policies"), f"{place}.policies")
        found[str(name)] = System(str(name), fields["description"], fields["source"], suite)
    return found


def parse_suite(document: object, place: str = "policies") -> Suite:
    """A suite from a document already read.

    Args:
        document: specifications by seam.
        place: begins the errors.

    Raises:
        InvalidInputError: no mapping, empty, no such seam, or no specification of a policy.
        NotFoundError: no policy of that name.
    """
    if not isinstance(document, Mapping) or not document:
        allowed = f"a mapping of some of {', '.join(SEAMS)} to policies"
        raise InvalidInputError.of(place, document, allowed)
    for seam, specification in document.items():
        if seam not in SEAMS:
            hint = did_you_mean(str(seam), SEAMS)
            raise InvalidInputError.of(f"{place}.{seam}", specification, ", ".join(SEAMS), hint)
        _check(SEAMS[seam], specification, f"{place}.{seam}")
    return dict(document)


def _check(seam: type, specification: object, place: str) -> None:
    """A policy of the name is known, and so is that of the batching policy it is given."""
    name = specification
    if isinstance(specification, Mapping):
        name = specification.get("policy")
        if "batching" in specification:
            _check(BatchingPolicy, specification["batching"], f"{place}.batching")
    if not isinstance(name, str):
        allowed = "a policy's name, or a mapping of 'policy' and its settings"
        raise InvalidInputError.of(place, specification, allowed)
    try:
        POLICIES[seam].check(name)
    except NotFoundError as error:
        raise NotFoundError(f"{place}: {error}") from None
