"""What the control loop remembers of its pools, and whom routers can reach."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import parse_settings
from modelless.controller.effects import ScalePool
from modelless.controller.live.control.pools import AGAIN_S, FIRST_START_S, PoolBook
from modelless.controller.live.front.routable import RoutableWorkers
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


def scale(workers: int, pool: str = "cpu-1") -> ScalePool:
    return ScalePool(pool, workers, Reason.DEMAND)


def test_bounds_are_those_of_the_settings_and_classes_without_a_pool_have_no_workers() -> None:
    limits = PoolBook(SETTINGS).limits(["cpu-1", "cpu-2", "gpu-1"])
    assert limits.max_workers == {"cpu-1": 3, "cpu-2": 0, "gpu-1": 0, "gateways": 0}
    assert limits.sizes["cpu-1"] == ("cpu-1", "cpu-2")
    assert limits.sizes["gateways"] == ("cpu-1", "cpu-2")


def test_serve_is_asked_once_and_again_after_a_while() -> None:
    book = PoolBook(SETTINGS)
    assert book.ask(scale(2), 1, 0.0)
    assert not book.ask(scale(2), 1, 1.0)
    assert book.ask(scale(3), 1, 2.0)
    assert book.ask(scale(3), 1, 2.0 + AGAIN_S)
    assert not book.ask(scale(2, "gateways"), 1, 3.0)


def test_how_long_a_start_takes_is_learnt() -> None:
    book = PoolBook(SETTINGS)
    assert book.starting_s({"cpu-1", "gpu-1"}) == {"cpu-1": FIRST_START_S}
    assert book.starting_s(set()) == {}
    book.on_worker("cpu-1", 5.0)
    assert book.starting_s({"cpu-1"}) == {"cpu-1": FIRST_START_S}, "nobody asked for that one"
    book.ask(scale(2), 1, 10.0)
    book.on_worker("cpu-1", 14.0)
    assert book.starting_s({"cpu-1"}) == {"cpu-1": pytest.approx((FIRST_START_S + 4.0) / 2)}


def test_a_start_that_was_called_off_is_not_learnt_from() -> None:
    book = PoolBook(SETTINGS)
    book.ask(scale(2), 1, 10.0)
    book.on_plan([scale(2)], {"cpu-1": 1})
    book.on_plan([], {"cpu-1": 1})
    book.ask(scale(2), 1, 7000.0)
    book.on_plan([scale(2)], {"cpu-1": 1})
    book.on_worker("cpu-1", 7004.0)
    assert book.starting_s({"cpu-1"}) == {"cpu-1": pytest.approx((FIRST_START_S + 4.0) / 2)}


def test_at_rest_is_who_keeps_no_worker_but_would_start_one() -> None:
    book = PoolBook(SETTINGS)
    assert not book.is_at_rest({"cpu-1"})
    book.on_plan([scale(0)], {"cpu-1": 1})
    assert book.is_at_rest({"cpu-1"})
    book.on_plan([], {"cpu-1": 1})
    assert not book.is_at_rest({"cpu-1"})
    book.on_plan([], {})  # as after a restart of the control loop, which has asked for nothing yet
    assert book.is_at_rest({"cpu-1"})
    assert not book.is_at_rest(set()), "nobody would start one"


def test_gateways_without_a_device_cannot_be_resized() -> None:
    with pytest.raises(InvalidInputError, match=r"gateways\.sizes"):
        parse_settings(
            {
                "gateways": {"device_class": None, "sizes": ["cpu-2"]},
                "pools": [{"device_class": "cpu-1"}],
            }
        )


def test_routers_tell_when_workers_come_and_go() -> None:
    routable, told = RoutableWorkers(), []
    routable.listen(lambda: told.append(routable.app_of("b")))
    routable.put("app", ["a"])
    routable.put("app", ["a"])
    routable.put("app", ["a", "b"])
    routable.put("other", ["c"])
    routable.put("app", ["a"])
    assert told == [None, "app", "app", None]
    assert routable.app_of("c") == "other"
