"""The packaged systems fit, and documents that do not are refused with their place."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.policies.discovery import BUILT_IN
from modelless.policies.seams import SelectionPolicy
from modelless.policies.systems import parse_suite, parse_systems, systems

FIELDS: dict[str, Any] = {
    "description": "One line.",
    "source": "a paper",
    "policies": {"selection": "cheapest-feasible"},
}


def test_the_packaged_systems_are_whole() -> None:
    known = systems()
    assert next(iter(known)) == "modelless"
    assert {"infaas", "proteus", "clockwork", "ray-serve", "static-fastest"} <= known.keys()
    assert known["modelless"].policies == {
        "selection": "best-value",
        "scaling": "expected-value",
        "eviction": "miss-cost",
    }
    for system in known.values():
        assert "selection" in system.policies, system.name
        assert system.description.endswith("."), system.name


def test_every_selection_policy_is_in_a_system() -> None:
    used = set()
    for system in systems().values():
        said = system.policies["selection"]
        used.add(said if isinstance(said, str) else said["policy"])
    assert used == BUILT_IN[SelectionPolicy].keys()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"description": "two\nlines"}, "s: x.description: got"),
        ({"source": None}, "s: x.source: got None; allowed: one line"),
        ({"colour": "red"}, "s: x.colour: got 'red'; allowed: description, source, policies"),
        ({"policies": {}}, "s: x.policies: got {}"),
        ({"policies": ["lru"]}, "allowed: a mapping of some of selection"),
        ({"policies": {"selecting": "lru"}}, r"selecting.*Did you mean 'selection'"),
        ({"policies": {"eviction": 5}}, "s: x.policies.eviction: got 5; allowed: a policy's name"),
        ({"policies": {"eviction": {"size": 5}}}, "a mapping of 'policy'"),
        ({"policies": {"eviction": "lrv"}}, r"EvictionPolicy 'lrv' does not exist.*mean 'lru'"),
        (
            {"policies": {"selection": {"policy": "static", "batching": "nexu"}}},
            r"policies.selection.batching: BatchingPolicy 'nexu'.*mean 'nexus'",
        ),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModellessError, match=message):
        parse_systems({"x": {**FIELDS, **changed}}, source="s")


@pytest.mark.parametrize("document", [None, [], {}, "x", {"x": "y"}])
def test_documents_of_another_shape_are_refused(document: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_systems(document)


def test_policies_of_one_s_own_fit_into_a_suite() -> None:
    suite = {
        "selection": "mine.selection:Mine",
        "eviction": {"policy": "my.eviction:Evict", "a": 1},
    }
    assert parse_suite(suite) == suite
