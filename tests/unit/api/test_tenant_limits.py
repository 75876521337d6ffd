"""Tenants' limits: rate, open queries and cost of the day, with what happens at other gateways."""

from __future__ import annotations

import pytest

from modelless.common.errors import OverloadedError
from modelless.controller.api.tenant_limits import DAY_S, TenantBooks, TenantUse
from modelless.controller.config import TenantSettings

NOON = 100 * DAY_S + DAY_S / 2


def books(**limits: float) -> TenantBooks:
    return TenantBooks({"shop": TenantSettings.model_validate(limits)})


def admitted(books: TenantBooks, count: int, now_s: float, *, close: bool = True) -> int:
    done = 0
    for _ in range(count):
        try:
            books.admit("shop", now_s, NOON)
        except OverloadedError:
            continue
        done += 1
        if close:
            books.close("shop")
    return done


def test_a_tenant_without_limits_has_none() -> None:
    for _ in range(1000):
        books(max_queries_per_s=1.0).admit("other", 0.0, NOON)


def test_the_rate_holds_over_time_and_says_when_to_come_again() -> None:
    shop = books(max_queries_per_s=10.0)
    assert admitted(shop, 100, 0.0) == 10
    with pytest.raises(OverloadedError, match="10 queries a second") as refused:
        shop.admit("shop", 0.0, NOON)
    assert refused.value.retry_after_s == pytest.approx(0.1)
    assert sum(admitted(shop, 100, step * 0.1) for step in range(1, 101)) == 100


def test_the_rate_is_shared_with_the_other_gateways() -> None:
    shop = books(max_queries_per_s=100.0)
    admitted(shop, 1000, 0.0)
    shop.note_others({"shop": TenantUse(queries=60.0), "gone": TenantUse()})
    assert admitted(shop, 1000, 1.0) == 40
    shop.note_others({"shop": TenantUse(queries=500.0)})
    assert admitted(shop, 1000, 2.0) == 5  # a little, or it could never come here again


def test_open_queries_count_here_and_elsewhere() -> None:
    shop = books(max_open_queries=5)
    shop.note_others({"shop": TenantUse(open_queries=2)})
    assert admitted(shop, 10, 0.0, close=False) == 3
    with pytest.raises(OverloadedError, match="5 queries open"):
        shop.admit("shop", 0.0, NOON)
    shop.close("shop")
    shop.admit("shop", 0.0, NOON)


def test_a_day_has_its_cost_and_the_next_day_another() -> None:
    shop = books(max_cost_usd_per_day=1.0)
    shop.admit("shop", 0.0, NOON)
    shop.close("shop", 0.4)
    assert shop.take_use() == {"shop": TenantUse(1, 0, 0.4)}
    assert shop.take_use() == {"shop": TenantUse(0, 0, 0.0)}
    shop.admit("shop", 0.0, NOON)  # the orders with the sum are not there yet
    shop.close("shop", 0.6)
    with pytest.raises(OverloadedError, match="spent 1 USD today") as refused:
        shop.admit("shop", 0.0, NOON)
    assert refused.value.retry_after_s == DAY_S / 2
    shop.take_use()
    shop.note_others({"shop": TenantUse()})  # a new day
    shop.admit("shop", 0.0, NOON)


def test_limits_that_change_leave_what_was_used() -> None:
    books = TenantBooks({"shop": TenantSettings(max_open_queries=2)})
    books.admit("shop", 0.0, 0.0)
    books.change({"shop": TenantSettings(max_open_queries=1)})
    with pytest.raises(OverloadedError, match="has 1 queries open"):
        books.admit("shop", 0.0, 0.0)
    books.change({})
    books.admit("shop", 0.0, 0.0)
    books.close("shop")
    books.change({"shop": TenantSettings(max_open_queries=1)})
    books.close("shop")  # it began while the tenant had no limits
    books.admit("shop", 0.0, 0.0)
    assert books.take_use()["shop"].open_queries == 1


def test_costs_that_were_not_reported_are_reported_again_and_count_once() -> None:
    shop = books(max_cost_usd_per_day=1.0)
    shop.admit("shop", 0.0, NOON)
    shop.close("shop", 0.4)
    for _ in range(3):
        used = shop.take_use()
        assert used["shop"].cost_usd == pytest.approx(0.4)
        shop.put_back({**used, "gone": TenantUse(cost_usd=9.0)})
    shop.close("shop", 0.5)
    shop.admit("shop", 0.0, NOON)  # 0.9 so far
    shop.close("shop", 0.2)
    assert shop.take_use()["shop"].cost_usd == pytest.approx(1.1)
    with pytest.raises(OverloadedError, match="has spent 1 USD"):
        shop.admit("shop", 0.0, NOON)
