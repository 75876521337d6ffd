"""Which replica succeeds which in an upgrade, and what it loads before that."""

from __future__ import annotations

from dataclasses import replace

from modelless.controller.control.messages import MemberReport, Replica
from modelless.controller.control.succession import (
    MOST_ROLLOUT_S,
    RolloutWatch,
    lacking,
    predecessors,
    successor_loads,
)
from modelless.controller.device.messages import LoadInstance
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, VariantFacts, WorkerState

A, B, C = "t/a/x@1", "t/b/x@1", "t/c/x@1"


def member(
    name: str, replica: Replica, ready: tuple[str, ...], pool: str, memory_bytes: int = 1000
) -> MemberReport:
    instances = tuple(Instance(name, each, 10, 0.1, 0.0, 0) for each in ready)
    state = WorkerState(name, pool, memory_bytes, instances)
    return MemberReport(name, False, state, pool=pool, replica=replica)


def old(name: str, began_s: float, *ready: str, pool: str = "cpu-1") -> MemberReport:
    return member(name, Replica("1", "first", began_s), ready, pool)


def new(
    name: str,
    began_s: float,
    *ready: str,
    pool: str = "cpu-1",
    is_starting: bool = True,
    memory_bytes: int = 1000,
) -> MemberReport:
    replica = Replica("2", "second", began_s, is_starting)
    return member(name, replica, ready, pool, memory_bytes)


def successors(*members: MemberReport) -> dict[str, str]:
    return {name: one.member_id for name, one in predecessors(members).items()}


def test_the_first_to_start_takes_the_place_of_the_oldest() -> None:
    members = [old("b", 2.0), old("a", 1.0), new("y", 11.0), new("x", 10.0)]
    assert successors(*members) == {"x": "a", "y": "b"}


def test_one_that_serves_already_has_taken_its_place() -> None:
    members = [old("b", 2.0), new("x", 10.0, is_starting=False), new("y", 11.0)]
    assert successors(*members) == {"y": "b"}


def test_nobody_takes_the_place_of_another_pool_or_of_the_same_rollout() -> None:
    assert successors(old("a", 1.0, pool="cpu-2"), new("x", 10.0)) == {}
    assert successors(new("w", 9.0, is_starting=False), new("x", 10.0)) == {}


def test_a_first_start_takes_nobodys_place() -> None:
    assert successors(new("x", 10.0), new("y", 11.0)) == {}


def test_more_successors_than_predecessors() -> None:
    assert successors(old("a", 1.0), new("x", 10.0), new("y", 11.0)) == {"x": "a"}


def test_a_successor_loads_what_the_other_serves_and_it_does_not() -> None:
    members = [old("a", 1.0, A, B, C), new("x", 10.0, B)]
    assert successor_loads(members, {}) == [
        LoadInstance("x", A, Reason.SUCCESSION, 10),
        LoadInstance("x", C, Reason.SUCCESSION, 10),
    ]


def test_memory_is_set_aside_as_the_successors_own_device_class_takes_it() -> None:
    large = new("x", 10.0, pool="cpu-1")
    assert large.state is not None
    large = replace(large, state=replace(large.state, device_class="cpu-2"))
    facts = {A: VariantFacts(A, "t", 70.0, {"cpu-1": 10.0, "cpu-2": 12.5}, {}, {})}
    (load,) = successor_loads([old("a", 1.0, A), large], facts)
    assert load.memory_bytes == 13, "expected, as none of its class holds one"
    other = old("o", 0.0, A, pool="cpu-2")
    (load,) = successor_loads([old("a", 1.0, A), large, other], facts)
    assert load.memory_bytes == 10, "as another of its class holds it"


def test_what_cannot_be_loaded_is_not_waited_for() -> None:
    successor = replace(new("x", 10.0, A), failed_loads={B: "broken"})
    assert successor_loads([old("a", 1.0, A, B), successor], {}) == []


def test_whoever_goes_first_nothing_goes_with_it() -> None:
    members = [old("a", 1.0, A), old("b", 2.0, A, B), new("x", 10.0)]
    assert lacking(members[2], members[0], members) == (A, B)
    elsewhere = [*members, new("w", 9.0, B, is_starting=False), old("o", 0.0, C, pool="cpu-2")]
    assert lacking(members[2], members[0], elsewhere) == (A,)


def test_a_successor_takes_no_more_than_it_has_memory_for() -> None:
    successor = new("x", 10.0, memory_bytes=25)
    members = [old("a", 1.0, A), old("b", 2.0, B, C), successor]
    assert lacking(successor, members[0], members) == (A, B)


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
