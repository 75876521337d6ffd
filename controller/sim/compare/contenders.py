"""Contenders: suites of policies by the name of a system or a selection policy, or from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelless.common.errors import InvalidInputError, NotFoundError, did_you_mean
from modelless.common.yaml_files import read_yaml
from modelless.controller.sim.compare.jobs import BOUND
from modelless.policies.discovery import POLICIES, find_policy
from modelless.policies.seams import SelectionPolicy
from modelless.policies.systems import parse_suite, systems

EVERY_SYSTEM = "all"
MOST_LETTERS = 60
"""Of a name from the command line: it stands in tables and in pictures."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A set of policies under a name.

    Attributes:
        policies: what the world's ``policies`` are overridden with; what is not named stays.
    """

    name: str
    policies: Mapping[str, Any]
    description: str = ""
    source: str = ""


def contenders_of(names: Sequence[str]) -> list[Contender]:
    """Contenders from what a person writes.

    Args:
        names: each a system (see ``policies/systems.yaml``), a selection policy, ``NAME=FILE.yaml``
            with a suite of policies by seam, or ``all`` for every system.

    Raises:
        NotFoundError: no such system or policy.
        InvalidInputError: a file that does not fit, or a name that is there twice.
    """
    found: list[Contender] = []
    for name in names:
        if name == EVERY_SYSTEM:
            found += [_system(each) for each in systems()]
        else:
            found.append(_contender(name))
    for name, count in Counter(each.name for each in found).items():
        if count > 1:
            raise InvalidInputError.of("policies", name, f"each name once; it is there {count}x")
    return found


def _contender(text: str) -> Contender:
    name, is_file, path = text.partition("=")
    if is_file:
        return _from_file(name, Path(path))
    if name in systems():
        return _system(name)
    known = POLICIES[SelectionPolicy]
    if name not in known and ":" not in name:
        every = list(dict.fromkeys([*systems(), *known]))
        raise NotFoundError(
            f"policies: there is no system or selection policy {name!r}; there are: all, "
            f"{', '.join(every)}; or NAME=FILE.yaml, or module:Class. "
            f"{did_you_mean(name, every)}".rstrip()
        )
    if name not in known.built_in:
        find_policy(SelectionPolicy, name)
    return Contender(name, {"selection": name}, "The world's policies with this selection.")


def _system(name: str) -> Contender:
    system = systems()[name]
    return Contender(name, system.policies, system.description, system.source)


def _from_file(name: str, path: Path) -> Contender:
    """A suite from a file: policies by seam, or a settings file, whose ``policies`` count."""
    if not name.strip() or not path.name:
        raise InvalidInputError.of("policies", f"{name}={path}", "NAME=FILE.yaml")
    if name == BOUND or len(name) > MOST_LETTERS or not name.isprintable():
        allowed = f"a name of at most {MOST_LETTERS} letters, other than {BOUND!r}"
        raise InvalidInputError.of("policies", name, allowed)
    document = read_yaml(f"policies {name}", path)
    if isinstance(document, Mapping) and "policies" in document:
        document = document["policies"]
    return Contender(name, parse_suite(document, f"{path}"), f"From {path.name}.")
