"""The control machine's account of its pools."""

from __future__ import annotations

import pytest

from modelless.controller.assembly import FIRST_START_S, limits_of, pools_of
from modelless.controller.config import parse_settings
from modelless.controller.control.messages import ScalePool
from modelless.controller.control.pools import PoolTracker
from modelless.policies.reasons import Reason

SETTINGS = parse_settings(
    {
        "gateways": {"device_class": "cpu-1", "sizes": ["cpu-2"]},
        "pools": [
            {"device_class": "cpu-1", "workers": 1, "max_workers": 3, "sizes": ["cpu-2"]},
            {"device_class": "gpu-1", "workers": 0, "max_workers": 0},
        ],
    }
)


AGAIN_S = 15.0


def pools() -> PoolTracker:
    return PoolTracker(pools_of(SETTINGS), {"cpu-1": 1, "gpu-1": 0}, AGAIN_S, 0.5)


def scale(workers: int, pool: str = "cpu-1") -> ScalePool:
    return ScalePool(pool, workers, Reason.DEMAND)


def test_bounds_are_those_of_the_settings_and_classes_without_a_pool_have_no_workers() -> None:
    limits = limits_of(SETTINGS, ["cpu-1", "cpu-2", "gpu-1"])
    assert limits.max_workers == {"cpu-1": 3, "cpu-2": 0, "gpu-1": 0, "gateways": 0}
    assert limits.sizes["cpu-1"] == ("cpu-1", "cpu-2")
    assert limits.sizes["gateways"] == ("cpu-1", "cpu-2")


def test_serve_is_asked_once_and_again_after_a_while() -> None:
    tracker = pools()
    assert tracker.request(scale(2), 1, 0.0)
    assert not tracker.request(scale(2), 1, 1.0)
    assert tracker.request(scale(3), 1, 2.0)
    assert tracker.request(scale(3), 1, 2.0 + AGAIN_S)
    assert not tracker.request(scale(2, "gateways"), 1, 3.0)


def test_how_long_a_start_takes_is_learnt() -> None:
    tracker = pools()
    assert tracker.starting_s({"cpu-1", "gpu-1"}) == {"cpu-1": FIRST_START_S}
    assert tracker.starting_s(set()) == {}
    tracker.note_worker("cpu-1", 5.0)
    assert tracker.starting_s({"cpu-1"}) == {"cpu-1": FIRST_START_S}, "nobody asked for that one"
    tracker.request(scale(2), 1, 10.0)
    tracker.note_worker("cpu-1", 14.0)
    assert tracker.starting_s({"cpu-1"}) == {"cpu-1": pytest.approx((FIRST_START_S + 4.0) / 2)}


def test_a_start_that_was_called_off_is_not_learnt_from() -> None:
    tracker = pools()
    tracker.request(scale(2), 1, 10.0)
    tracker.note_plan([scale(2)], {"cpu-1": 1})
    tracker.note_plan([], {"cpu-1": 1})
    tracker.request(scale(2), 1, 7000.0)
    tracker.note_plan([scale(2)], {"cpu-1": 1})
    tracker.note_worker("cpu-1", 7004.0)
    assert tracker.starting_s({"cpu-1"}) == {"cpu-1": pytest.approx((FIRST_START_S + 4.0) / 2)}


def test_at_rest_is_who_keeps_no_worker_but_would_start_one() -> None:
    tracker = pools()
    assert not tracker.is_at_rest({"cpu-1"})
    tracker.note_plan([scale(0)], {"cpu-1": 1})
    assert tracker.is_at_rest({"cpu-1"})
    tracker.note_plan([], {"cpu-1": 1})
    assert not tracker.is_at_rest({"cpu-1"})
    tracker.note_plan([], {})  # as after a restart: nothing is requested yet
    assert tracker.is_at_rest({"cpu-1"})
    assert not tracker.is_at_rest(set()), "nobody would start one"
