"""The states of what a device holds: loaded once, never freed in use, counted as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from modelless.common.errors import ModellessError
from modelless.controller.device.load_backoff import FIRST_S, LONGEST_S
from modelless.controller.device.residency import (
    Residence,
    Residency,
)
from modelless.variants.vocabulary import Variant
from tests.builders import tiny_bytes, variant_of

A, B = "t/a/x@1", "t/b/x@1"


@dataclass
class Loaded:
    """Something loaded that takes what a test says."""

    variant: Variant
    memory_bytes: int
    load_s: float = 0.5
    threads: int = 1

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(inputs)

    def unload(self) -> None:
        """Nothing to do."""


def loaded(memory_bytes: int = 10) -> Loaded:
    return Loaded(variant_of(tiny_bytes(), "tiny"), memory_bytes)


def holding(*names: str, memory_bytes: int = 100, size: int = 10, **more: Any) -> Residency:
    residency = Residency("w", memory_bytes, **more)
    for name in names:
        assert residency.begin_load(name, 0.0)
        residency.end_load(name, loaded(size), 1.0)
    return residency


def test_asked_for_fifty_times_it_is_loaded_once() -> None:
    residency = Residency("w", 100)
    assert [residency.begin_load(A, 0.0) for _ in range(50)] == [True] + [False] * 49
    assert residency.states == {A: Residence.LOADING}
    residency.end_load(A, loaded(), 1.0)
    assert not any(residency.begin_load(A, 2.0) for _ in range(50))
    assert residency.ready == (A,)


def test_what_is_loading_cannot_be_used_or_evicted() -> None:
    residency = Residency("w", 100)
    residency.begin_load(A, 0.0)
    with pytest.raises(ModellessError, match="not ready in w"):
        residency.acquire(A, 0.5)
    assert residency.drain(A, 0.5) is None
    assert residency.states == {A: Residence.LOADING}
    (instance,) = residency.instances(set())
    assert instance.in_use
    assert instance.memory_bytes == 0


def test_it_is_freed_with_its_last_lease() -> None:
    residency = holding(A)
    mine = residency.acquire(A, 2.0)
    assert residency.acquire(A, 2.0) is mine
    assert residency.instances(set())[0].in_use
    assert residency.drain(A, 3.0) is None, "two batches still need it"
    assert residency.release(A, 4.0) is None
    assert residency.used_bytes == 10
    assert residency.release(A, 5.0) is mine
    assert residency.used_bytes == 10, "it counts until it is free"
    residency.end_free(A)
    assert residency.states == {}
    assert residency.used_bytes == 0


def test_what_drains_takes_no_more_batches_and_is_not_told_of() -> None:
    residency = holding(A)
    residency.acquire(A, 2.0)
    residency.drain(A, 3.0)
    assert residency.ready == ()
    assert residency.instances(set()) == ()
    with pytest.raises(ModellessError, match="not ready"):
        residency.acquire(A, 3.5)


def test_what_drains_and_is_wanted_again_is_ready_without_a_load() -> None:
    residency = holding(A)
    residency.acquire(A, 2.0)
    residency.drain(A, 3.0)
    assert not residency.begin_load(A, 3.5)
    assert residency.ready == (A,)
    assert residency.release(A, 4.0) is None, "it stays"


def test_what_is_being_freed_is_not_revived() -> None:
    residency = holding(A)
    assert residency.drain(A, 3.0) is not None
    assert not residency.begin_load(A, 3.1)
    assert residency.is_draining
    residency.end_free(A)
    assert residency.begin_load(A, 3.2)


def test_the_budget_is_held_against_what_was_measured() -> None:
    residency = holding(A, memory_bytes=25, size=20)
    assert residency.excess_bytes == 0
    residency.begin_load(B, 2.0)
    residency.end_load(B, loaded(15), 3.0)
    assert (residency.used_bytes, residency.excess_bytes) == (35, 10)


def test_a_load_that_fails_is_left_alone_for_twice_as_long_each_time() -> None:
    residency = Residency("w", 100)
    now_s = 0.0
    waits = []
    for _ in range(12):
        assert residency.begin_load(A, now_s)
        residency.fail_load(A, "no such operator", now_s)
        assert not residency.begin_load(A, now_s)
        begin_s = now_s
        while A in residency.barred(now_s):
            now_s += FIRST_S
        waits.append(now_s - begin_s)
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == LONGEST_S
    assert residency.begin_load(A, now_s)
    residency.end_load(A, loaded(), now_s)
    assert residency.failed == {}


@pytest.mark.parametrize("scope", ["t", "t/a", "t/a/x", "t/a/x@1"])
def test_what_is_in_a_pinned_scope_says_so(scope: str) -> None:
    residency = holding(A, "other/a/x@1", pinned=(scope,))
    assert [i.pinned for i in residency.instances(set())] == [True, False]


def test_uses_and_their_end_are_told() -> None:
    residency = holding(A)
    residency.acquire(A, 2.0)
    residency.release(A, 7.0)
    (instance,) = residency.instances({B})
    assert (instance.use_count, instance.last_used_s, instance.in_use) == (1, 7.0, False)
    assert residency.instances({A})[0].in_use
