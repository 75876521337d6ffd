"""Systems: suites of policies under one name, such as ``proteus``, read from ``systems.yaml``.

A suite names policies by seam, as a settings file does. Their names are checked here; policies are
built only where they run, so a system whose policy cannot be imported is still listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from modelless.common.errors import InvalidInputError, NotFoundError, did_you_mean
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
"""The seams by their keys in settings."""

_FIELDS: Final = ("description", "source", "policies")


@dataclass(frozen=True, slots=True)
class System:
    """A suite of policies under a name.

    Attributes:
        name: name in tables and on the command line.
        description: one sentence.
        source: publication of the idea.
        policies: specifications by seam; other seams keep their policies.
    """

    name: str
    description: str
    source: str
    policies: Suite


@cache
def systems() -> Mapping[str, System]:
    """Returns every system of the package by name, in the file's order."""
    text = files("modelless.policies").joinpath("systems.yaml").read_text(encoding="utf-8")
    return parse_systems(yaml.safe_load(text), source="systems.yaml")


def parse_systems(document: object, source: str = "systems") -> dict[str, System]:
    """Returns the systems in a document that was read already, by name.

    Raises:
        InvalidInputError: a field is missing, unknown or of the wrong kind, or a policy is unknown;
            the message names the place.
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
    """Returns the suite in a document that was read already.

    Args:
        document: specifications by seam.
        place: beginning of error messages.

    Raises:
        InvalidInputError: the document is no mapping or empty, or names an unknown seam or no
            policy.
        NotFoundError: no policy has that name.
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
    """Raise unless the specification names a known policy and a known batching policy."""
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
