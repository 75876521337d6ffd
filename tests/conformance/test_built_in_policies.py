"""Every built-in policy passes the conformance kit, whatever is added to the table."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.policies import testing
from modelless.policies.discovery import BUILT_IN, build_policy, find_policy
from modelless.policies.seams import (
    BatchingPolicy,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)

CASES: dict[type, type] = {
    SelectionPolicy: testing.SelectionConformance,
    BatchingPolicy: testing.BatchingConformance,
    ScalingPolicy: testing.ScalingConformance,
    PlacementPolicy: testing.PlacementConformance,
    EvictionPolicy: testing.EvictionConformance,
    Forecaster: testing.ForecasterConformance,
}

DECLARATIONS: dict[str, dict[str, Any]] = {
    "cheapest-feasible": {"looser_deadline_never_costs_more": True},
    "most-accurate-feasible": {"looser_deadline_never_less_accurate": True},
}
"""What a policy promises beyond what all do, or does not promise; see the cases."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "cheapest-feasible": [{"quantile": "p50"}],
    "most-accurate-feasible": [
        {"batching": {"policy": "earliest-deadline-first", "min_gain": 0.2}}
    ],
    "earliest-deadline-first": [{"min_gain": 0.5}],
    "fixed": [{"workers": {"cpu-1": 3}, "keep_dominated": False}],
}
"""Settings to check besides the defaults."""


def make_case(seam: type, name: str, settings: dict[str, Any], number: int) -> type:
    def policy(self: object) -> Any:
        return build_policy(seam, {"policy": name, **settings})

    title = "".join(part.capitalize() for part in name.split("-"))
    members = {"policy": pytest.fixture(policy), **DECLARATIONS.get(name, {})}
    return type(f"Test{title}{number or ''}", (CASES[seam],), members)


for _seam, _names in BUILT_IN.items():
    for _name in _names:
        for _number, _settings in enumerate([{}, *SETTINGS.get(_name, [])]):
            _case = make_case(_seam, _name, _settings, _number)
            assert _case.__name__ not in globals(), f"two policies called {_name}"
            globals()[_case.__name__] = _case


def test_there_is_a_case_for_every_seam() -> None:
    assert set(CASES) == set(BUILT_IN)


def test_the_declarations_are_of_policies_and_words_that_exist() -> None:
    for name, words in DECLARATIONS.items():
        (seam,) = [seam for seam, names in BUILT_IN.items() if name in names]
        assert all(hasattr(CASES[seam], word) for word in words)
    assert set(SETTINGS) <= {name for names in BUILT_IN.values() for name in names}


@pytest.mark.parametrize(
    ("seam", "name"), [(seam, name) for seam, names in BUILT_IN.items() for name in names]
)
def test_every_built_in_policy_is_one_file_with_its_idea_told(seam: type, name: str) -> None:
    policy = find_policy(seam, name)
    assert policy.__doc__
    assert find_policy(seam, f"{policy.__module__}:{policy.__qualname__}") is policy
    assert not hasattr(policy, "__wrapped__")
