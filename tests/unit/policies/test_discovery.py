"""Finding policies by name, by module and class, by entry point; refusing what does not fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.policies.batching.earliest_deadline_first import EarliestDeadlineFirst
from modelless.policies.discovery import BUILT_IN, build_policy, find_policy
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import (
    BatchingPolicy,
    EvictionPolicy,
    Forecaster,
    ScalingPolicy,
    SelectionPolicy,
)
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible

OUTSIDE = '''
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.seams import SelectionPolicy
from modelless.policies.reasons import Reason
from modelless.policies.views import Wait


class Mine(LeastRecentlyUsed):
    def __init__(self, weight=1.0):
        if weight < 0.0:
            raise ValueError("weight must not be negative")
        self.weight = weight


class Late(SelectionPolicy):
    """Does not say how to batch: it never asks."""

    def on_idle(self, worker, queues, now_s, rng):
        return Wait(Reason.NOTHING_QUEUED, now_s + 1.0)


class Typed(LeastRecentlyUsed):
    def __init__(self, names: list[str], weight: float = 1.0):
        self.names, self.weight = names, weight


class Anything(LeastRecentlyUsed):
    def __init__(self, **settings):
        self.settings = settings


class Outer:
    class Inner(LeastRecentlyUsed):
        pass


NOT_A_CLASS = 5
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on the path that registers policies, as one that pip has installed would."""
    (tmp_path / "outside_policies.py").write_text(OUTSIDE)
    (tmp_path / "broken_policies.py").write_text("raise RuntimeError('half written')\n")
    info = tmp_path / "outside_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[modelless.policies]\n"
        "mine = outside_policies:Mine\n"
        "late = outside_policies:Late\n"
        "gone = outside_policies:Gone\n"
        "lost = no_such_module:Mine\n"
        "half = broken_policies:Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "outside_policies"
    for name in ("outside_policies", "broken_policies"):
        sys.modules.pop(name, None)


# -- by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seam", "name"), [(seam, name) for seam, names in BUILT_IN.items() for name in names]
)
def test_every_built_in_policy_is_found_and_built(seam: type, name: str) -> None:
    assert issubclass(find_policy(seam, name), seam)
    assert isinstance(build_policy(seam, name, clairvoyant=True), seam)
    assert isinstance(build_policy(seam, {"policy": name}, clairvoyant=True), seam)


def test_a_policy_that_knows_the_future_is_built_for_the_simulator_only() -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, "belady")
    message = str(caught.value)
    assert message.startswith("policy: got 'belady'; allowed: a policy that does without")
    assert "modelless simulate" in message


def test_an_unknown_name_says_what_there_is_and_what_was_meant() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_policy(SelectionPolicy, "cheapest-feasable")
    message = str(caught.value)
    assert "SelectionPolicy 'cheapest-feasable' does not exist" in message
    assert "best-value, cheapest-feasible, clipper" in message
    assert "Did you mean 'cheapest-feasible'?" in message
    assert "'module:Class'" in message


def test_a_name_unlike_any_other() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_policy(EvictionPolicy, "zzz")
    assert "Did you mean" not in str(caught.value)


def test_a_policy_of_another_seam_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError) as caught:
        find_policy(SelectionPolicy, "lru")
    assert "got 'lru'; allowed: a class derived from SelectionPolicy" in str(caught.value)
    assert "It is the class LeastRecentlyUsed, derived from EvictionPolicy" in str(caught.value)


# -- by module and class ----------------------------------------------------------------------


def test_by_module_and_class(outside: str) -> None:
    policy = build_policy(EvictionPolicy, {"policy": f"{outside}:Mine", "weight": 2.0})
    assert type(policy).__name__ == "Mine"
    assert policy.weight == 2.0  # type: ignore[attr-defined]


def test_a_class_within_a_class(outside: str) -> None:
    assert find_policy(EvictionPolicy, f"{outside}:Outer.Inner").__name__ == "Inner"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("outside_policies:Gone", "has no attribute 'Gone'"),
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        ("no_such_module:Mine", "Put the folder that it is in on PYTHONPATH"),
        ("./mine.py:Mine", "Name the module, not the file: mine:..."),
        ("broken_policies:Mine", "RuntimeError: half written"),
        ("outside_policies:", "cannot be imported"),
        (":Mine", "cannot be imported"),
        (".outside_policies:Mine", "cannot be imported"),
        ("outside_policies:Mine:Mine", "cannot be imported"),
    ],
)
def test_what_cannot_be_imported(outside: str, name: str, told: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_policy(EvictionPolicy, name)
    assert told in str(caught.value)
    assert name.strip(":") in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("Outer", "It is the class Outer, derived from object"),
        ("NOT_A_CLASS", "It is 5, and no class"),
        ("Late", "It is the class Late, derived from SelectionPolicy"),
    ],
)
def test_what_is_no_policy_of_the_seam(outside: str, attribute: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        find_policy(EvictionPolicy, f"{outside}:{attribute}")
    assert told in str(caught.value)


def test_the_seam_itself_is_no_policy() -> None:
    with pytest.raises(InvalidInputError, match="abstract"):
        build_policy(EvictionPolicy, "modelless.policies.seams:EvictionPolicy")  # type: ignore[type-abstract]


# -- by entry point ---------------------------------------------------------------------------


def test_by_entry_point(outside: str) -> None:
    policy = build_policy(EvictionPolicy, {"policy": "mine", "weight": 3.0})
    assert type(policy).__module__ == outside
    assert policy.weight == 3.0  # type: ignore[attr-defined]


def test_entry_points_are_among_what_there_is(outside: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_policy(EvictionPolicy, "min")
    assert "mine" in str(caught.value)
    assert "Did you mean 'mine'?" in str(caught.value)


@pytest.mark.parametrize("name", ["gone", "lost", "half"])
def test_an_entry_point_that_leads_nowhere(outside: str, name: str) -> None:
    with pytest.raises(NotFoundError, match="cannot be imported"):
        find_policy(EvictionPolicy, name)


def test_an_entry_point_of_another_seam(outside: str) -> None:
    with pytest.raises(InvalidInputError, match="derived from SelectionPolicy"):
        find_policy(EvictionPolicy, "late")


def test_without_the_package_its_names_are_unknown() -> None:
    with pytest.raises(NotFoundError):
        find_policy(EvictionPolicy, "mine")


# -- settings ---------------------------------------------------------------------------------


def test_settings_are_the_arguments_of_the_class() -> None:
    policy = build_policy(ScalingPolicy, {"policy": "fixed", "workers": {"h200": 2}})
    assert isinstance(policy, Fixed)
    assert policy.workers == {"h200": 2}


def test_an_unknown_setting_is_refused_with_what_was_meant() -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(SelectionPolicy, {"policy": "cheapest-feasible", "quantil": "p50"})
    message = str(caught.value)
    assert message.startswith("cheapest-feasible.quantil: got 'p50'")
    assert "allowed: the settings quantile='p99', batching=None" in message
    assert "Did you mean 'quantile'?" in message


def test_a_policy_without_settings_says_so() -> None:
    with pytest.raises(InvalidInputError, match=r"the settings \(none\)"):
        build_policy(EvictionPolicy, {"policy": "lru", "size": 3})


def test_a_setting_that_is_no_string() -> None:
    with pytest.raises(InvalidInputError, match=r"lru\.5"):
        build_policy(EvictionPolicy, {"policy": "lru", 5: 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("specification", "told"),
    [
        ({"policy": "cheapest-feasible", "quantile": "p97"}, "quantile: got 'p97'; allowed: p50"),
        ({"policy": "cheapest-feasible", "quantile": 99}, "quantile: got 99"),
        ({"policy": "most-accurate-feasible", "quantile": None}, "quantile: got None"),
        ({"policy": "cheapest-feasible", "quantile": ["p50"]}, "quantile: got ['p50']"),
    ],
)
def test_a_value_that_it_does_not_take(specification: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(SelectionPolicy, specification)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("seam", "specification", "told"),
    [
        (
            Forecaster,
            {"policy": "ewma", "half_life_s": "long"},
            "ewma.half_life_s: got 'long'; allowed: a valid number. Its settings: half_life_s=20.0",
        ),
        (
            Forecaster,
            {"policy": "ewma", "half_life_s": 0},
            "ewma.half_life_s: got 0; allowed: seconds, more than 0.",
        ),
        (
            ScalingPolicy,
            {"policy": "fixed", "keep_dominated": "no"},
            "fixed.keep_dominated: got 'no'; allowed: a valid boolean. "
            "Its settings: workers=None, keep_dominated=True",
        ),
        (
            ScalingPolicy,
            {"policy": "fixed", "workers": "two"},
            "fixed.workers: got 'two'; allowed: a mapping. "
            "Its settings: workers=None, keep_dominated=True",
        ),
        (
            EvictionPolicy,
            {"policy": "miss-cost", "half_lives_s": [600, "long"], "admission": False},
            "miss-cost.half_lives_s.1: got 'long'; allowed: a valid number. Its settings: "
            "half_lives_s=(600.0, 7200.0), lost_query_s=3.0, view_s=1.0, admission=True",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_is_allowed(
    seam: type, specification: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(seam, specification)
    assert str(caught.value) == told


def test_an_outside_policy_is_checked_by_its_annotations(outside: str) -> None:
    specification = {"policy": f"{outside}:Typed", "names": ["a"], "weight": 1}
    assert isinstance(build_policy(EvictionPolicy, specification), EvictionPolicy)  # type: ignore[type-abstract]
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, {**specification, "weight": None})  # type: ignore[type-abstract]
    assert ":Typed.weight: got None; allowed: a valid number." in str(caught.value)


def test_a_setting_that_must_be_given(outside: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, f"{outside}:Typed")  # type: ignore[type-abstract]
    assert str(caught.value) == (
        f"{outside}:Typed.names: got nothing; it must be given. Its settings: names, weight=1.0"
    )


@pytest.mark.parametrize("min_gain", [-0.1, 1.0, float("nan"), "much", None])
def test_min_gain_is_a_share(min_gain: Any) -> None:
    with pytest.raises(InvalidInputError):
        build_policy(BatchingPolicy, {"policy": "earliest-deadline-first", "min_gain": min_gain})


@pytest.mark.parametrize(
    "workers", [{"h200": -1}, {"h200": 1.5}, {"h200": "two"}, {"h200": True}, "h200", 7]
)
def test_workers_are_whole_numbers(workers: Any) -> None:
    with pytest.raises(InvalidInputError):
        build_policy(ScalingPolicy, {"policy": "fixed", "workers": workers})


def test_an_error_of_an_outside_policy_names_it(outside: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, {"policy": "mine", "weight": -1.0})
    assert str(caught.value) == (
        "mine: its settings do not fit: weight must not be negative. Its settings: weight=1.0"
    )


def test_a_policy_that_takes_any_setting_gets_it(outside: str) -> None:
    policy = build_policy(EvictionPolicy, {"policy": f"{outside}:Anything", "colour": "red"})
    assert policy.settings == {"colour": "red"}  # type: ignore[attr-defined]


# -- the batching policy inside a selection policy --------------------------------------------


def test_without_one_it_is_earliest_deadline_first() -> None:
    for name in ("cheapest-feasible", "most-accurate-feasible"):
        assert isinstance(build_policy(SelectionPolicy, name).batching, EarliestDeadlineFirst)


@pytest.mark.parametrize(
    "specification",
    ["earliest-deadline-first", {"policy": "earliest-deadline-first", "min_gain": 0.25}],
)
def test_a_nested_batching_policy(specification: str | dict[str, Any]) -> None:
    policy = build_policy(
        SelectionPolicy,
        {"policy": "most-accurate-feasible", "quantile": "p90", "batching": specification},
    )
    assert isinstance(policy, MostAccurateFeasible)
    assert isinstance(policy.batching, EarliestDeadlineFirst)
    assert policy.quantile == "p90"
    assert policy.batching.min_gain == (0.0 if isinstance(specification, str) else 0.25)


def test_an_unknown_setting_of_a_nested_policy() -> None:
    nested = {"policy": "earliest-deadline-first", "min_gian": 0.25}
    with pytest.raises(InvalidInputError, match="Did you mean 'min_gain'"):
        build_policy(SelectionPolicy, {"policy": "cheapest-feasible", "batching": nested})


@pytest.mark.parametrize("nested", ["lru", "cheapest-feasible"])
def test_a_nested_policy_of_the_wrong_seam(nested: str) -> None:
    with pytest.raises(InvalidInputError, match="a class derived from BatchingPolicy"):
        build_policy(SelectionPolicy, {"policy": "cheapest-feasible", "batching": nested})


@pytest.mark.parametrize("nested", [None, 5, [], {}, {"min_gain": 0.1}])
def test_a_nested_policy_that_is_no_specification(nested: Any) -> None:
    with pytest.raises(InvalidInputError, match="policy: got"):
        build_policy(SelectionPolicy, {"policy": "cheapest-feasible", "batching": nested})


def test_a_late_binding_policy_need_not_say_how_to_batch(outside: str) -> None:
    policy = build_policy(SelectionPolicy, "late")
    assert isinstance(policy.batching, EarliestDeadlineFirst)


# -- specifications ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "specification", [None, 5, ["lru"], {}, {"size": 3}, {"policy": None}, {"policy": 5}]
)
def test_what_is_no_specification(specification: Any) -> None:
    with pytest.raises(InvalidInputError, match="policy: got"):
        build_policy(EvictionPolicy, specification)  # type: ignore[type-abstract]


def test_a_specification_is_not_changed() -> None:
    specification: dict[str, Any] = {
        "policy": "cheapest-feasible",
        "batching": {"policy": "earliest-deadline-first"},
    }
    build_policy(SelectionPolicy, specification)
    assert specification == {
        "policy": "cheapest-feasible",
        "batching": {"policy": "earliest-deadline-first"},
    }


def test_found_is_the_class_itself() -> None:
    assert find_policy(SelectionPolicy, "cheapest-feasible") is CheapestFeasible
    assert find_policy(EvictionPolicy, "lru") is LeastRecentlyUsed
