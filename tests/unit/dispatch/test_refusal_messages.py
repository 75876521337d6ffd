"""What a client is told who asked for what cannot be: limits that, when asked for, can be met."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.refusal_messages import (
    Offer,
    is_infeasible,
    nearest_limits,
    refusal_message,
)
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import QueryView

from .world import LADDER, World, make_query


def asked_again(query: QueryView, offer: Offer, now_s: float) -> QueryView:
    """The query as a client would ask it after reading the offer."""
    changed = query._replace(query_id=query.query_id + 1000, arrival_s=now_s)
    latency_s = query.deadline_s - query.arrival_s
    if offer.latency_ms is not None:
        latency_s = offer.latency_ms / 1e3
    changed = changed._replace(deadline_s=now_s + latency_s)
    if offer.min_accuracy is not None:
        changed = changed._replace(min_accuracy_percent=offer.min_accuracy)
    if offer.max_cost_usd is not None:
        changed = changed._replace(max_cost_usd=offer.max_cost_usd)
    return changed


latencies_s = st.one_of(st.floats(1e-4, 100.0), st.sampled_from([0.01, 0.02, math.inf, math.nan]))
accuracies = st.one_of(
    st.floats(0.0, 100.0), st.integers(0, 1000).map(lambda tenths: tenths / 10.0)
)
limits = st.fixed_dictionaries(
    {
        "latency_ms": st.one_of(st.none(), st.floats(0.001, 3.6e6)),
        "min_accuracy": st.one_of(st.just(0.0), accuracies),
        "max_cost_usd": st.one_of(st.just(math.inf), st.floats(1e-12, 1e-2)),
    }
)


@given(
    variants=st.lists(st.tuples(latencies_s, accuracies), min_size=1, max_size=8),
    limits=limits,
    quantile=st.sampled_from(["p50", "p99"]),
    accurate=st.booleans(),
    now_s=st.sampled_from([0.0, 100.0, 86_400.0 * 365]),
    spent_s=st.sampled_from([0.0, 0.0, 0.0005, 0.3]),
)
def test_what_is_offered_is_feasible_when_asked_for(
    variants: list[tuple[float, float]],
    limits: dict[str, float],
    quantile: str,
    accurate: bool,
    now_s: float,
    spent_s: float,
) -> None:
    policy: SelectionPolicy = (MostAccurateFeasible if accurate else CheapestFeasible)(quantile)
    world = World(policy, {f"imagenet/m/v{i}@1": v for i, v in enumerate(variants)})
    world.now_s = now_s
    world.add_worker()
    query = make_query(1, now_s, **limits)  # type: ignore[arg-type]
    world.now_s += spent_s
    world.send(query)
    if query.query_id not in world.refused:
        return
    refusal = world.refused[1]
    receipt = world.dispatcher.receipt(1)
    assert receipt is not None
    assert receipt.candidates is not None
    offers = nearest_limits(query, receipt.candidates)
    if is_infeasible(refusal.reason):
        known = any(math.isfinite(latency) for latency, _ in variants)
        assert bool(offers) is known
        assert "inf" not in refusal.message.replace("feasible", "")
        assert "nan" not in refusal.message
    for number, offer in enumerate(offers):
        world.now_s = 2.0 * world.now_s + 1.0
        again = asked_again(query._replace(query_id=number), offer, world.now_s)
        world.now_s += spent_s
        world.send(again)
        assert again.query_id in {i for b in world.executed for i in b.query_ids}, offer
        world.finish(after_s=0.001)


@pytest.mark.parametrize(
    ("limits", "offers"),
    [
        ({"latency_ms": 5.0}, [Offer(latency_ms=12.1)]),
        ({"min_accuracy": 90.0}, [Offer(min_accuracy=80.0)]),
        ({"max_cost_usd": 1e-9}, [Offer(max_cost_usd=1.4e-07)]),
        (
            {"latency_ms": 15.0, "min_accuracy": 75.0},
            [Offer(latency_ms=24.1), Offer(min_accuracy=70.0)],
        ),
        (
            {"latency_ms": 5.0, "min_accuracy": 75.0},
            [Offer(latency_ms=24.1)],
        ),
        (
            {"latency_ms": 15.0, "min_accuracy": 90.0},
            [Offer(min_accuracy=70.0)],
        ),
        (
            {"latency_ms": 5.0, "min_accuracy": 90.0},
            [Offer(latency_ms=12.1, min_accuracy=70.0)],
        ),
        (
            {"latency_ms": 5.0, "min_accuracy": 90.0, "max_cost_usd": 1e-9},
            [Offer(12.1, 70.0, 1.4e-07)],
        ),
        ({}, []),
        ({"latency_ms": 1000.0}, []),
    ],
)
def test_as_few_limits_as_possible_change_as_little_as_possible(
    limits: dict[str, float], offers: list[Offer]
) -> None:
    world = World()
    world.add_worker()
    query = make_query(1, world.now_s, **limits)  # type: ignore[arg-type]
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    assert list(nearest_limits(query, candidates)) == offers


def test_the_message_names_them() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=15.0, min_accuracy=75.0)
    assert world.refused[query].message == (
        "no variant of 'imagenet' can meet latency_ms 15 with min_accuracy 75 (limits-conflict); "
        "nearest feasible: latency_ms 24.1, or min_accuracy 70"
    )


def test_the_message_says_that_the_client_named_no_latency() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=10_000.0, min_accuracy=90.0, has_default_deadline=True)
    assert world.refused[query].message == (
        "no variant of 'imagenet' can meet latency_ms 10000 (the server's "
        "limits.default_latency_ms, for the query names none) with min_accuracy 90 "
        "(too-inaccurate); nearest feasible: min_accuracy 80"
    )


def test_the_message_of_two_that_must_change_together() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=5.0, min_accuracy=90.0)
    assert world.refused[query].message.endswith(
        "nearest feasible: latency_ms 12.1 and min_accuracy 70"
    )


@pytest.mark.parametrize("tenths", [9, 18, 36, 37, 500, 744])
def test_an_accuracy_just_short_of_a_tenth_is_not_rounded_up_to_it(tenths: int) -> None:
    accuracy = float(np.nextafter(tenths / 10.0, 0.0))
    world = World(variants={"imagenet/m/v@1": (0.01, accuracy)})
    world.add_worker()
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    query = make_query(1, world.now_s, min_accuracy=100.0)
    (offer,) = nearest_limits(query, candidates)
    assert offer.min_accuracy is not None
    assert accuracy - 0.11 < offer.min_accuracy <= accuracy


def test_large_latencies_keep_their_digits() -> None:
    assert str(Offer(latency_ms=1234567.9)) == "latency_ms 1234567.9"
    assert str(Offer(max_cost_usd=1.4e-07)) == "max_cost_usd 1.4e-07"


def test_the_time_spent_on_the_way_is_allowed_for() -> None:
    world = World()
    world.add_worker()
    query = make_query(1, world.now_s, latency_ms=5.0)
    world.now_s += 0.003
    world.send(query)
    assert "latency_ms 15.1" in world.refused[1].message


def test_what_was_never_profiled_is_not_offered() -> None:
    world = World(variants={**LADDER, "imagenet/new/fp32@1": (math.inf, 99.0)})
    world.add_worker()
    query = world.ask(min_accuracy=95.0)
    assert world.refused[query].reason is Reason.TOO_INACCURATE
    assert "min_accuracy 80" in world.refused[query].message


@pytest.mark.parametrize("reason", list(Reason))
def test_there_is_a_message_for_every_reason(reason: Reason) -> None:
    world = World()
    world.add_worker()
    for candidates in (None, world.instances.candidates("imagenet", 1, world.now_s)):
        query = make_query(1, world.now_s, latency_ms=1.0)
        receipt = Receipt(query, candidates, reason=reason, problem="Mine.on_arrival raised")
        message, retry_after_s = refusal_message(receipt, 8)
        assert message
        assert not re.search(r"\b(inf|nan)\b", message)
        assert retry_after_s is None or 0.0 < retry_after_s < 60.0
        if is_infeasible(reason):
            assert retry_after_s is None


def test_the_wait_told_is_that_of_a_variant_that_would_do() -> None:
    world = World()
    world.add_worker("w0", ["imagenet/lite0/int8@1"])
    world.add_worker("w1", ["imagenet/lite2/fp32@1"])
    world.ask(min_accuracy=79.0)
    query = world.ask(min_accuracy=79.0, latency_ms=60.0)
    assert world.refused[query].reason is Reason.QUEUE_TOO_LONG
    assert "now takes 88 ms, 40 ms of them waiting" in world.refused[query].message


def test_no_wait_of_0_ms_is_told() -> None:
    """A query that is late only for others, which wait for no worker yet, has no wait to tell."""
    world = World()
    world.add_worker("w0", ["imagenet/lite0/int8@1"])
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    receipt = Receipt(
        make_query(1, world.now_s, latency_ms=900.0), candidates, reason=Reason.QUEUE_TOO_LONG
    )
    message, retry_after_s = refusal_message(receipt, 8)
    assert "idle system, but other queries go before it; try again" in message
    assert retry_after_s == 0.05


def test_arrays_are_not_touched() -> None:
    world = World()
    world.add_worker()
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    before = np.array(candidates.cost_usd)
    nearest_limits(make_query(1, world.now_s, latency_ms=1.0), candidates)
    assert (candidates.cost_usd == before).all()
