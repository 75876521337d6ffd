"""Evictions that make room: enough of them, and none in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelless.controller.control.planner import choose_victims
from modelless.policies.views import Instance

SIZES = st.lists(st.integers(1, 100), max_size=12)


def instances(sizes: list[int]) -> list[Instance]:
    return [
        Instance("w", f"t/m/v{number}@1", size, 0.1, 0.0, 1) for number, size in enumerate(sizes)
    ]


def left(sizes: list[int], lacking_bytes: int) -> list[int]:
    return [instance.memory_bytes for instance in choose_victims(instances(sizes), lacking_bytes)]


def test_down_the_ranking_until_there_is_room() -> None:
    assert left([5, 5, 5], 10) == [5, 5]
    assert left([5, 5, 5], 0) == left([5, 5, 5], -3) == []


def test_the_small_stay_where_the_large_one_after_them_is_enough() -> None:
    assert left([1, 1, 2, 90], 20) == [90]
    assert left([10, 1, 90], 95) == [10, 90], "of those that might stay, the dearest"


def test_all_of_them_are_too_few() -> None:
    assert left([5, 5], 11) == [5, 5]


@given(SIZES, st.integers(-5, 300))
def test_there_is_room_and_nobody_leaves_in_vain(sizes: list[int], lacking_bytes: int) -> None:
    leaving = left(sizes, lacking_bytes)
    if sum(sizes) >= lacking_bytes:
        assert sum(leaving) >= lacking_bytes
        assert all(sum(leaving) - size < lacking_bytes for size in leaving)
