"""Who takes whose place in an upgrade, and what it loads before that."""

from __future__ import annotations

from modelless.controller.control.succession import (
    MOST_ROLLOUT_S,
    Candidate,
    RolloutWatch,
    Standing,
    bequests,
    lacking,
    predecessors,
)
from modelless.controller.effects import LoadInstance
from modelless.policies.reasons import Reason

A, B, C = "t/a/x@1", "t/b/x@1", "t/c/x@1"


def old(name: str, began_s: float, *ready: str, pool: str = "cpu-1") -> Candidate:
    return Candidate(name, pool, Standing("1", "first", began_s), dict.fromkeys(ready, 10))


def new(
    name: str, began_s: float, *ready: str, pool: str = "cpu-1", is_starting: bool = True
) -> Candidate:
    standing = Standing("2", "second", began_s, is_starting)
    return Candidate(name, pool, standing, dict.fromkeys(ready, 10))


def heirs(*members: Candidate) -> dict[str, str]:
    return {heir: one.member_id for heir, one in predecessors(members).items()}


def test_the_first_to_start_takes_the_place_of_the_oldest() -> None:
    members = [old("b", 2.0), old("a", 1.0), new("y", 11.0), new("x", 10.0)]
    assert heirs(*members) == {"x": "a", "y": "b"}


def test_one_that_serves_already_has_taken_its_place() -> None:
    members = [old("b", 2.0), new("x", 10.0, is_starting=False), new("y", 11.0)]
    assert heirs(*members) == {"y": "b"}


def test_nobody_takes_the_place_of_another_pool_or_of_the_same_rollout() -> None:
    assert heirs(old("a", 1.0, pool="cpu-2"), new("x", 10.0)) == {}
    assert heirs(new("w", 9.0, is_starting=False), new("x", 10.0)) == {}


def test_a_first_start_takes_nobodys_place() -> None:
    assert heirs(new("x", 10.0), new("y", 11.0)) == {}


def test_more_heirs_than_places() -> None:
    assert heirs(old("a", 1.0), new("x", 10.0), new("y", 11.0)) == {"x": "a"}


def test_an_heir_loads_what_the_other_serves_and_it_does_not() -> None:
    members = [old("a", 1.0, A, B, C), new("x", 10.0, B)]
    assert bequests(members) == [
        LoadInstance("x", A, Reason.SUCCESSION),
        LoadInstance("x", C, Reason.SUCCESSION),
    ]


def test_what_cannot_be_loaded_is_not_waited_for() -> None:
    heir = new("x", 10.0, A)._replace(hopeless=(B,))
    assert bequests([old("a", 1.0, A, B), heir]) == []


def test_whoever_goes_first_nothing_goes_with_it() -> None:
    members = [old("a", 1.0, A), old("b", 2.0, A, B), new("x", 10.0)]
    assert lacking(members[2], members[0], members) == (A, B)
    elsewhere = [*members, new("w", 9.0, B, is_starting=False), old("o", 0.0, C, pool="cpu-2")]
    assert lacking(members[2], members[0], elsewhere) == (A,)


def test_an_heir_takes_no_more_than_it_has_memory_for() -> None:
    heir = new("x", 10.0)._replace(memory_bytes=25)
    members = [old("a", 1.0, A), old("b", 2.0, B, C), heir]
    assert lacking(heir, members[0], members) == (A, B)


def test_several_rollouts_in_a_pool_are_one_under_way() -> None:
    watch = RolloutWatch()
    assert not watch.is_under_way([old("a", 1.0), new("x", 2.0, pool="cpu-2")], 0.0)
    mixed = [old("a", 1.0), new("x", 2.0)]
    assert watch.is_under_way(mixed, 10.0)
    assert watch.is_under_way(mixed, 9.0 + MOST_ROLLOUT_S)


def test_one_that_does_not_get_on_holds_nothing_up_for_good() -> None:
    watch = RolloutWatch()
    mixed = [old("a", 1.0), new("x", 2.0)]
    assert watch.is_under_way(mixed, 10.0)
    assert not watch.is_under_way(mixed, 10.0 + MOST_ROLLOUT_S)
    assert not watch.is_under_way([new("x", 2.0)], 700.0)
    assert watch.is_under_way(mixed, 800.0)
