"""Tenants under overload: who takes no more than their share is served as if they were alone."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.limits import DispatchLimits
from modelless.policies.reasons import Reason
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .world import LADDER, World, make_query

INT8 = next(iter(LADDER))
ONE = {INT8: LADDER[INT8]}


def crowded(allowed_us: int = 100_000) -> Tenants:
    """Two tenants, a query refused, and so much work a second that each may have ``allowed_us``."""
    tenants = Tenants(1000)
    for tenant in ("small", "flood"):
        tenants.count_arrival(make_query(1, 10.0, tenant=tenant), 10.0)
    tenants.add_waiting(make_query(2, 10.0, tenant="small", latency_ms=1000.0), 0)
    tenants.count_done(allowed_us * 12)  # in 3 s (at the first, the window before counts, too)
    tenants.count_refusal(Reason.QUEUE_TOO_LONG)
    return tenants


def wait(tenants: Tenants, work: int, count: int = 1, **limits: object) -> None:
    for number in range(count):
        tenants.add_waiting(make_query(100 + number, 10.0, **limits), work)  # type: ignore[arg-type]


def test_who_has_more_waiting_than_its_share_is_beyond_it() -> None:
    tenants = crowded(100_000)
    flood, small = (make_query(9, 11.0, tenant=name) for name in ("flood", "small"))
    wait(tenants, 50_000, 2, tenant="flood", latency_ms=1000.0)
    assert not tenants.is_over_share(flood, 11.0)
    wait(tenants, 50_000, 1, tenant="flood", latency_ms=1000.0)
    assert tenants.is_over_share(flood, 11.0)
    assert not tenants.is_over_share(small, 11.0)
    assert tenants.find_far_over(tenants.share(11.0)) == []
    wait(tenants, 50_000, 2, tenant="flood", latency_ms=1000.0)
    assert tenants.find_far_over(tenants.share(11.0)) == ["flood"]
    assert tenants.share(11.0) == (pytest.approx(100_000.0), 250.0)


def test_nobody_is_beyond_a_share_while_all_can_be_served() -> None:
    tenants = Tenants(1000)
    for tenant in ("small", "flood"):
        tenants.count_arrival(make_query(1, 10.0, tenant=tenant), 10.0)
    tenants.count_done(1_000_000)
    wait(tenants, 10**9, tenant="flood", latency_ms=1000.0)
    assert not tenants.is_over_share(make_query(9, 11.0, tenant="flood"), 11.0)


def test_one_tenant_alone_has_all() -> None:
    tenants = Tenants(1000)
    tenants.count_arrival(make_query(1, 10.0, tenant="flood"), 10.0)
    tenants.count_done(1_000)
    tenants.count_refusal(Reason.QUEUE_FULL)
    wait(tenants, 10**9, tenant="flood", latency_ms=1000.0)
    assert not tenants.is_over_share(make_query(9, 11.0, tenant="flood"), 11.0)


def test_a_tenant_that_is_gone_has_no_share_after_two_windows() -> None:
    tenants = crowded()
    wait(tenants, 10**9, tenant="flood", latency_ms=1000.0)
    assert tenants.is_over_share(make_query(9, 11.0, tenant="flood"), 11.0)
    for second in (11.5, 12.6, 13.7):
        tenants.count_arrival(make_query(9, second, tenant="flood"), second)
        tenants.count_refusal(Reason.QUEUE_FULL)
        tenants.count_done(1_000)
    assert not tenants.is_over_share(make_query(9, 14.0, tenant="flood"), 14.0)


def test_what_is_demoted_takes_nothing_of_the_share() -> None:
    tenants = crowded()
    demoted = make_query(9, 10.0, tenant="flood", latency_ms=1000.0)._replace(demoted=True)
    tenants.add_waiting(demoted, 10**9)
    assert "flood" not in tenants._waiting
    assert tenants.half_drain_s(11.0) == pytest.approx(10**9 / 400_000 / 2.0)  # but it must be done
    tenants.remove_waiting(demoted, 10**9)
    assert tenants.half_drain_s(11.0) is None


def test_names_that_wait_no_more_are_forgotten() -> None:
    tenants = Tenants(1000)
    queries = [make_query(n, 1.0, tenant=f"t{n}", latency_ms=10.0) for n in range(10_000)]
    for query in queries:
        tenants.count_arrival(query, 1.0)
        tenants.add_waiting(query, 7)
        tenants.remove_waiting(query, 7)
    assert not tenants._waiting
    assert len(tenants._seen) <= 4096


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
