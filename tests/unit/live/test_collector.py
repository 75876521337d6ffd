"""The garbage collector looks at what is new, and once an hour at everything."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from modelless.controller.live.front.gateway import WHOLE_S, Collector


class Node:
    """May be part of a cycle."""

    other: Node | None = None


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def make_cycle() -> tuple[Node, weakref.ref[Node]]:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first, weakref.ref(second)


def test_what_is_remembered_is_not_looked_through_again() -> None:
    collector = Collector(0.0)
    remembered = [Node() for _ in range(10_000)]
    collector.collect(1.0, is_idle=False)
    assert gc.get_freeze_count() > len(remembered)
    assert not any(isinstance(each, Node) for each in gc.get_objects())


def test_garbage_of_a_second_is_freed_at_its_end() -> None:
    collector = Collector(0.0)
    node, seen = make_cycle()
    del node
    collector.collect(1.0, is_idle=False)
    assert seen() is None


def test_older_garbage_is_freed_within_the_hour_when_nothing_is_open() -> None:
    collector = Collector(0.0)
    node, seen = make_cycle()
    collector.collect(1.0, is_idle=True)
    del node
    collector.collect(WHOLE_S - 1.0, is_idle=True)
    collector.collect(WHOLE_S + 1.0, is_idle=False)
    assert seen() is not None
    collector.collect(WHOLE_S + 2.0, is_idle=True)
    assert seen() is None


def test_older_garbage_of_a_gateway_that_is_never_idle_is_freed_too() -> None:
    collector = Collector(0.0)
    node, seen = make_cycle()
    collector.collect(1.0, is_idle=False)
    del node
    collector.collect(2.0 * WHOLE_S, is_idle=False)
    assert seen() is None
