"""The settings of outside policies are checked as far as YAML can spell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.discovery import build_policy
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.policy_settings import misfits
from modelless.policies.seams import EvictionPolicy


class Colour(Enum):
    RED = "red"


class Quantile(StrEnum):
    P50 = "p50"


class _Odd:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise SystemExit(3)


class Outside(LeastRecentlyUsed):
    def __init__(
        self,
        pair: tuple[int, float] = (1, 2.0),
        sizes: set[int] = frozenset({1}),  # type: ignore[assignment]
        names: frozenset[str] = frozenset(),
        colour: Colour = Colour.RED,
        quantile: Quantile = Quantile.P50,
        file: Path | None = None,
        limit: float = None,  # type: ignore[assignment]  # noqa: RUF013
        weight: float = 1.0,
        count: int = 1,
        quick: bool = True,
        day: date | None = None,
        shares: Mapping[str, Sequence[float]] | None = None,
        odd: _Odd | None = None,
    ) -> None:
        self.given = dict(locals())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pair", [1, 2.5]),
        ("sizes", [1, 2]),
        ("sizes", {1, 2}),  # YAML's !!set
        ("names", ["a"]),
        ("colour", "red"),
        ("quantile", "p50"),
        ("file", "a.csv"),
        ("limit", None),
        ("limit", 3),
        ("weight", float("inf")),
        ("day", date(2024, 2, 29)),
        ("day", "2024-02-29"),
        ("shares", {"a": [1, 0.5]}),
        ("odd", 1),
    ],
)
def test_what_yaml_can_spell_is_taken_and_given_as_it_is(name: str, value: object) -> None:
    specification = {"policy": f"{__name__}:Outside", name: value}
    built = build_policy(EvictionPolicy, specification)  # type: ignore[type-abstract]
    assert built.given[name] is value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("pair", [1, "b"], "pair.1: got 'b'; allowed: a valid number"),
        ("pair", 5, "pair: got 5; allowed: a list"),
        ("sizes", ["a"], "sizes.0: got 'a'; allowed: a valid integer"),
        ("sizes", 5, "sizes: got 5; allowed: a list"),
        ("names", 5, "names: got 5; allowed: a list"),
        ("colour", "blue", "colour: got 'blue'; allowed: 'red'"),
        ("quantile", "p51", "quantile: got 'p51'; allowed: 'p50'"),
        ("file", 5, "file: got 5; allowed: text"),
        ("limit", "3", "limit: got '3'; allowed: a valid number"),
        ("weight", "1", "weight: got '1'; allowed: a valid number"),
        ("weight", True, "weight: got True; allowed: a valid number"),
        ("weight", None, "weight: got None; allowed: a valid number"),
        ("count", True, "count: got True; allowed: a valid integer"),
        ("count", 1.0, "count: got 1.0; allowed: a valid integer"),
        ("quick", 1, "quick: got 1; allowed: a valid boolean"),
        ("shares", {"a": [1, None]}, "shares.a.1: got None; allowed: a valid number"),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: object, problem: str) -> None:
    assert misfits(Outside, {name: value}) == problem


class Unreadable:
    weight: float

    def __init__(self, weight: Any) -> None:
        self.weight = weight


@pytest.mark.parametrize(
    "annotation",
    ["Nowhere", "Path.nothing", "not python(", "1 / 0", "tuple[5]", "__import__('sys').exit()"],
)
def test_annotations_that_cannot_be_read_are_not_checked(
    annotation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Unreadable.__init__.__annotations__, "weight", annotation)
    assert misfits(Unreadable, {"weight": "much"}) == ""


class Careful(LeastRecentlyUsed):
    built = 0

    def __init__(self, weight: float = 1.0, says: str = "") -> None:
        Careful.built += 1
        if says:
            raise InvalidInputError(says)


def test_a_wrong_type_never_reaches_the_class() -> None:
    name = f"{__name__}:Careful"
    before = Careful.built
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, {"policy": name, "weight": "a"})  # type: ignore[type-abstract]
    assert Careful.built == before
    assert str(caught.value) == (
        f"{name}.weight: got 'a'; allowed: a valid number. Its settings: weight=1.0, says=''"
    )


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("weight: got 1.0; allowed: less", ".weight: got 1.0; allowed: less"),
        ("weight.a: got 1.0", ".weight.a: got 1.0"),
        ("weights do not add up", ": weights do not add up"),
        ("weight is too large", ": weight is too large"),
    ],
)
def test_what_a_class_says_of_a_setting_stands_behind_its_name(says: str, told: str) -> None:
    name = f"{__name__}:Careful"
    with pytest.raises(InvalidInputError) as caught:
        build_policy(EvictionPolicy, {"policy": name, "weight": 1.0, "says": says})  # type: ignore[type-abstract]
    assert str(caught.value) == name + told
