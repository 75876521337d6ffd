"""Margins over the best other contender, against a reckoning by hand."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.controller.sim.compare.regret import regret_of

NAMES = ("ours", "one", "two")


def scenario(
    world: str, *values: float | None, load: float = 1.0, bound: float | None = None
) -> dict[str, Any]:
    """A world's part of a comparison; a value of None failed."""
    rows = [
        {
            "contender": name,
            "runs": int(value is not None),
            "failed": int(value is None),
            "value_per_query": {"mean": value},
            "violations_percent": {"mean": None if value is None else 100.0 * (0.9 - value)},
        }
        for name, value in zip(NAMES, values, strict=False)
    ]
    return {
        "label": f"{world} at load {load:g}",
        "world": world,
        "load": load,
        "rows": rows,
        "bound": {"value_per_query": {"mean": bound}},
    }


FEATURES = {
    "a": {"load": 0.5, "memory": 0.1, "same": 1.0},
    "b": {"load": 1.0, "memory": 0.2, "same": 1.0},
    "c": {"load": 1.5, "memory": 0.7, "same": 1.0},
    "d": {"load": 2.0, "memory": 0.9, "same": 1.0},
}
SCENARIOS = [
    scenario("a", 0.50, 0.60, 0.55, bound=0.7),  # ten points behind one
    scenario("b", 0.80, 0.70, 0.76, bound=0.9),  # four ahead of two
    scenario("c", 0.700, 0.704, 0.60, bound=0.8),  # 0.4 behind one: near
    scenario("d", 0.40, 0.20, 0.38, bound=0.4),  # two ahead of two
]


def test_the_distribution_of_margins() -> None:
    told = regret_of(SCENARIOS, FEATURES)
    assert told["first"] == "ours"
    assert [each["world"] for each in told["worlds"]] == ["a", "c", "d", "b"]
    assert [each["margin"] for each in told["worlds"]] == pytest.approx([-10.0, -0.4, 2.0, 4.0])
    assert [each["best_others"]["ours"] for each in told["worlds"]] == ["one", "one", "two", "two"]
    summary = told["summary"]
    assert summary["worlds"] == 4
    assert summary["mean"] == pytest.approx(-1.1)
    assert summary["median"] == pytest.approx(0.8)
    assert summary["worst"] == pytest.approx(-10.0)
    assert summary["worst_decile"] == pytest.approx(-10.0 + 0.3 * 9.6)
    assert summary["share_near"] == 0.75
    assert summary["mean_to_bound"] == pytest.approx((-20 - 10 - 10 + 0) / 4)


def test_every_contender_has_margins_of_its_own() -> None:
    ours, one, two = regret_of(SCENARIOS, FEATURES)["contenders"]
    assert ours["value_per_query"] == pytest.approx(0.6)
    assert ours["violations_percent"] == pytest.approx(30.0)
    assert ours["mean_margin"] == pytest.approx(-1.1)
    assert one["mean_margin"] == pytest.approx((5 - 10 + 0.4 - 20) / 4)
    assert one["share_near"] == 0.5
    assert two["share_near"] == 0.0
    assert two["worst"] == pytest.approx(-10.4)


def test_causes_are_halves_by_a_feature_the_clearest_first() -> None:
    causes = regret_of(SCENARIOS, FEATURES)["causes"]
    assert {each["feature"] for each in causes} == {"load", "memory"}  # "same" has no halves
    memory = next(each for each in causes if each["feature"] == "memory")
    assert memory["median"] == pytest.approx(0.45)
    assert memory["lower"] == pytest.approx((-10 + 4) / 2)
    assert memory["upper"] == pytest.approx((-0.4 + 2) / 2)
    assert (memory["lower_worlds"], memory["upper_worlds"]) == (2, 2)
    error = (98.0 / 2 + 2.88 / 2) ** 0.5
    assert memory["errors"] == pytest.approx((0.8 + 3.0) / error)


def test_a_feature_that_few_worlds_have_is_split_where_it_begins() -> None:
    features = {name: {**told, "rare": float(name == "a")} for name, told in FEATURES.items()}
    causes = regret_of(SCENARIOS, features)["causes"]
    rare = next(each for each in causes if each["feature"] == "rare")
    assert (rare["lower_worlds"], rare["upper_worlds"]) == (3, 1)
    assert rare["upper"] == pytest.approx(-10.0)
    assert rare["errors"] is None  # nobody knows how far a single world is off
    common = {name: {**told, "rare": float(name != "a")} for name, told in FEATURES.items()}
    causes = regret_of(SCENARIOS, common)["causes"]
    rare = next(each for each in causes if each["feature"] == "rare")
    assert (rare["lower_worlds"], rare["upper_worlds"]) == (1, 3)


def test_what_is_unusual_in_a_world_is_furthest_from_the_median_world() -> None:
    features = {
        name: {"load": 1.0, "memory": 1.0, "size": told["load"]} for name, told in FEATURES.items()
    }
    worlds = regret_of(SCENARIOS, features)["worlds"]
    assert {each["unusual"][0] for each in worlds} == {"size"}


def test_loads_multiply_the_drawn_one() -> None:
    told = regret_of([scenario("b", 0.8, 0.7, load=1.5)], FEATURES)
    assert told["worlds"][0]["features"]["load"] == 1.5


def test_worlds_in_which_runs_failed_have_no_margin_of_those() -> None:
    scenarios = [
        scenario("a", None, 0.6, 0.5),  # ours failed
        scenario("b", 0.8, None, 0.7),  # one failed: two is the best other
        scenario("c", 0.8, None, None),  # nobody to compare with
    ]
    told = regret_of(scenarios, FEATURES)
    assert told["failed"] == ["a at load 1", "c at load 1"]
    assert [each["margin"] for each in told["worlds"]] == pytest.approx([10.0])
    ours, one, two = told["contenders"]
    assert (ours["failed"], one["failed"], two["failed"]) == (1, 2, 1)
    assert two["mean_margin"] == pytest.approx((-10.0 - 10.0) / 2)


def test_without_any_margin_there_is_nothing_to_tell() -> None:
    told = regret_of([scenario("a", None, 0.6)], FEATURES)
    assert told["summary"]["mean"] is None
    assert told["worlds"] == told["causes"] == []
