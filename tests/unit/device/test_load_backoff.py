"""Loads that fail are tried again, later each time; loads that never end are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from modelless.controller.control.planned_memory import PlannedMemory
from modelless.controller.device.load_backoff import LoadBackoff, is_load_stuck
from modelless.policies.views import ClusterView, VariantFacts, WorkerState
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import DEVICES

NAME = "imagenet/lite0/int8@1"


def test_each_failure_bars_twice_as_long() -> None:
    backoff, now_s = LoadBackoff(), 0.0
    for pause_s in (1.0, 2.0, 4.0, 8.0):
        assert backoff.fail(NAME, now_s) == pause_s
        assert backoff.barred(now_s + 0.9 * pause_s) == {NAME}
        now_s += pause_s
        assert backoff.barred(now_s) == frozenset()


def test_it_is_tried_at_least_every_five_minutes() -> None:
    backoff = LoadBackoff()
    assert max(backoff.fail(NAME, 0.0) for _ in range(40)) == 300.0


def test_a_load_that_works_ends_it() -> None:
    backoff = LoadBackoff()
    backoff.fail(NAME, 0.0)
    backoff.succeed(NAME)
    assert backoff.barred(0.0) == frozenset()
    assert backoff.fail(NAME, 0.0) == 1.0


def test_what_is_barred_is_loaded_into_another_worker() -> None:
    memory: Mapping[str, float] = {"cpu-1": 10.0}
    facts = VariantFacts(NAME, "imagenet", 70.0, memory, {"cpu-1": 0.1}, {"cpu-1": 0.01})
    sound = WorkerState("w1", "cpu-1", 100, ())
    failing = replace(sound, worker_id="w0", barred=frozenset({NAME}))
    view = ClusterView(0.0, DEVICES, (failing, sound), (facts,), {}, {})
    given = PlannedMemory(view).without(Placement(NAME, "cpu-1"), set())
    assert [worker.worker_id for worker in given] == ["w1"]


@pytest.mark.parametrize(
    ("predicted_s", "took_s", "is_stuck"),
    [(1.0, 70.0, False), (1.0, 81.0, True), (10.0, 200.0, False), (math.nan, 61.0, True)],
)
def test_a_load_far_beyond_what_is_predicted_is_load_stuck(
    predicted_s: float, took_s: float, is_stuck: bool
) -> None:
    assert is_load_stuck(100.0, predicted_s, 100.0 + took_s) is is_stuck
