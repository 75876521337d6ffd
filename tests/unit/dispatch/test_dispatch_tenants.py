"""Tenants under overload: who takes no more than their share is served as if they were alone."""

from __future__ import annotations

import math

import pytest

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .world import LADDER, World, make_query

INT8 = next(iter(LADDER))
ONE = {INT8: LADDER[INT8]}


def overloaded(
    small_us: int = 50_000, flood_us: int = 4_000_000, flood_priority: int = 0
) -> Tenants:
    """Two tenants that asked for so much work, beside devices that did 150 ms a second."""
    tenants = Tenants(1000)
    for tenant, work_us, priority in (("small", small_us, 0), ("flood", flood_us, flood_priority)):
        query = make_query(1, 10.0, tenant=tenant, priority=priority)
        tenants.count_arrival(query, work_us, 10.0)
    tenants.count_start(make_query(2, 10.0), 150_000)
    tenants.count_refusal(Reason.QUEUE_TOO_LONG)
    tenants.find_shares(11.0)
    return tenants


def wait(tenants: Tenants, work_us: int, count: int = 1, **limits: object) -> None:
    for number in range(count):
        query = make_query(100 + number, 10.0, **limits)  # type: ignore[arg-type]
        tenants.add_waiting(query, work_us)


def is_over(tenants: Tenants, tenant: str) -> bool:
    return tenants.is_over_share(make_query(9, 11.0, tenant=tenant), 11.0)


@pytest.mark.parametrize(
    ("small_us", "flood_us", "rate_us_per_s"),
    [
        (30_000, 4_000_000, 120_000.0),
        (300_000, 4_000_000, 75_000.0),
        (1, 4_000_000, 150_000.0),
        (10_000, 20_000, math.inf),
    ],
)
def test_the_fair_rate_is_max_min_fair(small_us: int, flood_us: int, rate_us_per_s: float) -> None:
    tenants = overloaded(small_us, flood_us)
    if rate_us_per_s == math.inf:
        assert not tenants.shares
    else:
        assert tenants.shares[0].rate_us_per_s == pytest.approx(rate_us_per_s, rel=1e-4)


def test_tenants_share_with_those_of_their_own_priority_only() -> None:
    tenants = overloaded(4_000_000, 4_000_000, flood_priority=1)
    assert not tenants.shares


def test_queries_with_long_limits_are_not_demoted_because_they_wait() -> None:
    tenants = overloaded()
    wait(tenants, 100_000, 10, tenant="small", latency_ms=60_000.0)
    assert not is_over(tenants, "small")


def test_who_has_more_waiting_than_half_its_limits_allow_is_beyond_its_share() -> None:
    tenants = overloaded()
    half_us = 150_000 / 2 * 0.5  # of an equal share
    wait(tenants, int(half_us * 0.9), tenant="flood", latency_ms=1000.0)
    assert not is_over(tenants, "flood")
    wait(tenants, int(half_us * 0.9), tenant="flood", latency_ms=1000.0)
    assert is_over(tenants, "flood")
    assert not tenants.find_far_over(11.0)
    wait(tenants, int(half_us * 0.9), tenant="flood", latency_ms=1000.0)
    assert tenants.find_far_over(11.0) == {(0, "flood")}


def test_nobody_is_beyond_a_share_while_all_can_be_served() -> None:
    tenants = Tenants(1000)
    for tenant in ("small", "flood"):
        tenants.count_arrival(make_query(1, 10.0, tenant=tenant), 10**9, 10.0)
    tenants.count_start(make_query(2, 10.0), 1_000_000)
    wait(tenants, 10**9, tenant="flood", latency_ms=1000.0)
    tenants.find_shares(11.0)
    assert not is_over(tenants, "flood")


def test_one_tenant_alone_has_all() -> None:
    tenants = Tenants(1000)
    tenants.count_arrival(make_query(1, 10.0, tenant="flood"), 10**9, 10.0)
    tenants.count_start(make_query(2, 10.0), 1_000)
    tenants.count_refusal(Reason.QUEUE_FULL)
    wait(tenants, 10**9, tenant="flood", latency_ms=1000.0)
    tenants.find_shares(11.0)
    assert not is_over(tenants, "flood")


def test_a_tenant_that_is_gone_has_no_share_after_two_windows() -> None:
    tenants = overloaded()
    assert tenants.shares
    for second in (11.5, 12.6, 13.7):
        tenants.count_arrival(make_query(9, second, tenant="flood"), 10**6, second)
        tenants.count_refusal(Reason.QUEUE_FULL)
        tenants.count_start(make_query(2, 10.0), 1_000)
        tenants.find_shares(second)
    assert not tenants.shares


def test_what_is_demoted_takes_nothing_of_the_share() -> None:
    tenants = overloaded()
    demoted = make_query(9, 10.0, tenant="flood", latency_ms=1000.0)._replace(demoted=True)
    tenants.add_waiting(demoted, 10**9)
    assert not tenants._waiting
    assert tenants.half_drain_s(11.0) == pytest.approx(10**9 / 150_000 / 2.0)  # but it must be done
    tenants.remove_waiting(demoted, 10**9)
    assert tenants.half_drain_s(11.0) is None


def test_names_that_wait_no_more_are_forgotten() -> None:
    tenants = Tenants(1000)
    queries = [
        make_query(n, 1.0, tenant=f"t{n}", latency_ms=math.inf if n % 2 else 10.0)
        for n in range(10_000)
    ]
    for query in queries:
        tenants.count_arrival(query, 7, 1.0)
        tenants.add_waiting(query, 7)
        tenants.remove_waiting(query, 7)
    assert not tenants._waiting
    assert len(tenants._asked_us) <= 4096


@pytest.mark.parametrize("policy", [CheapestFeasible, BestValue])
def test_a_flood_that_waits_makes_way_for_another_tenant(
    policy: type[CheapestFeasible | BestValue],
) -> None:
    world = World(policy(), ONE, DispatchLimits(max_batch=1))
    world.add_worker()
    for _ in range(150):  # ten come while one is served
        world.finish() if world.running else None
        for _ in range(10):
            world.ask(latency_ms=200.0, tenant="flood")
    world.ask(latency_ms=200.0, tenant="small")  # from now on there are two
    world.finish()
    world.tick()
    small = world.ask(latency_ms=200.0, tenant="small")
    assert small in world.open_ids
    for _ in range(12):
        for _ in range(10):
            world.ask(latency_ms=200.0, tenant="flood")
        world.finish()
    assert world.answered_s[small] - world.asked[small].arrival_s <= 0.1 + 0.02


def test_a_full_queue_takes_who_is_within_their_share() -> None:
    world = World(CheapestFeasible(), ONE, DispatchLimits(max_batch=1, max_queued=40))
    world.add_worker()
    for _ in range(150):
        world.finish() if world.running else None
        for _ in range(10):
            world.ask(latency_ms=5000.0, tenant="flood")
    before = len(world.refused)
    world.ask(latency_ms=1000.0, tenant="small")
    world.tick()  # the flood stands behind from here on
    small = world.ask(latency_ms=1000.0, tenant="small")
    assert small in world.open_ids
    assert len(world.refused) == before + 2
    assert {world.asked[number].tenant for number in list(world.refused)[-1:]} == {"flood"}
