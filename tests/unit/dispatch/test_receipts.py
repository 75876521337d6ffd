"""Receipts: complete, plain, bounded."""

from __future__ import annotations

import json
import math

import pytest

from modelless.controller.dispatch.explanations import (
    explain_candidates,
    explain_choice,
    explain_receipt,
)
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.policies.discovery import build_policy
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy

from .world import LADDER, World, make_query

INT8, FP32, LITE2 = LADDER


def told(world: World, query_id: int) -> dict[str, object]:
    """The receipt as a client would read it; infinities and NaN are not JSON."""
    receipt = world.dispatcher.receipt(query_id)
    assert receipt is not None
    return json.loads(json.dumps(explain_receipt(receipt), allow_nan=False))  # type: ignore[no-any-return]


def test_a_served_query_tells_all() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=30.0, min_accuracy=71.0)
    world.finish(after_s=0.022)
    receipt = told(world, query)
    assert receipt.pop("candidates")
    assert receipt == {
        "query_id": 1,
        "scope": "imagenet",
        "tenant": "",
        "latency_ms": pytest.approx(30.0),
        "is_default_latency": False,
        "min_accuracy": 71.0,
        "max_cost_usd": None,
        "priority": 0,
        "when_late": "refuse",
        "demoted": False,
        "items": 1,
        "item_size": None,
        "outcome": "served",
        "reason": "most-accurate-feasible",
        "variant": FP32,
        "device_class": "cpu-1",
        "worker": "w0",
        "predicted_latency_ms": pytest.approx(20.0),
        "observed_latency_ms": pytest.approx(22.0),
        "predicted_cost_usd": pytest.approx(0.020 * 0.05 / 3600.0),
        "cost_usd": pytest.approx(0.022 * 0.05 / 3600.0),
        "waited_ms": pytest.approx(0.0),
        "batch_items": 1,
        "attempts": 1,
        "rebinds": 0,
    }


def test_each_query_of_a_batch_costs_its_share_of_what_the_batch_took() -> None:
    world = World()
    world.add_worker(variant_ids=[INT8])
    world.ask()
    one, three = world.ask(), world.ask(items=3)
    assert told(world, one)["cost_usd"] is None
    world.finish()
    assert world.running["w0"].query_ids == (one, three)
    world.finish(after_s=0.080)
    batch_usd = 0.080 * 0.05 / 3600.0
    assert told(world, one)["cost_usd"] == pytest.approx(batch_usd / 4.0)
    assert told(world, three)["cost_usd"] == pytest.approx(batch_usd * 3.0 / 4.0)
    assert told(world, three)["predicted_cost_usd"] == pytest.approx(0.020 * 0.05 / 3600.0)


def test_every_candidate_is_there_with_what_speaks_against_it() -> None:
    world = World()
    world.add_worker()
    world.ask(scope="imagenet/lite0/int8")
    query = world.ask(latency_ms=33.0, min_accuracy=72.0, max_cost_usd=5e-7)
    rows = {row["variant"]: row for row in told(world, query)["candidates"]}  # type: ignore[attr-defined]
    assert set(rows) == {INT8, FP32, LITE2}
    assert rows[INT8]["misses"] == ["too-inaccurate"]
    assert rows[FP32]["misses"] == ["queue-too-long"]
    assert rows[LITE2]["misses"] == ["too-slow", "too-dear"]
    assert rows[FP32]["wait_ms"] == pytest.approx(10.0)
    assert rows[FP32]["p50_ms"] == pytest.approx(20.0)
    assert rows[FP32]["p99_ms"] == pytest.approx(24.0)
    assert rows[FP32]["cost_usd"] == pytest.approx(0.05 * 0.020 / 3600)
    assert not any(row["chosen"] for row in rows.values())


def test_the_chosen_one_misses_nothing() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=30.0)
    rows = {row["variant"]: row for row in told(world, query)["candidates"]}  # type: ignore[attr-defined]
    assert [row["variant"] for row in rows.values() if row["chosen"]] == [FP32]
    assert rows[FP32]["misses"] == []


def test_no_limits_and_unknown_estimates_are_plain_json() -> None:
    world = World(variants={INT8: LADDER[INT8], "imagenet/new/x@1": (math.inf, 90.0)})
    world.add_worker()
    query = world.ask()
    receipt = told(world, query)
    assert receipt["latency_ms"] is None
    row = next(r for r in receipt["candidates"] if r["variant"] == "imagenet/new/x@1")  # type: ignore[attr-defined]
    assert row["misses"] == ["nothing-known"]
    assert (row["p50_ms"], row["p99_ms"], row["cost_usd"]) == (None, None, None)


def test_a_query_that_nobody_was_asked_about() -> None:
    world = World()
    query = world.ask()
    receipt = told(world, query)
    assert (receipt["variant"], receipt["predicted_latency_ms"]) == (None, None)
    assert receipt["candidates"] == []


def test_nan_estimates_are_unknown_too() -> None:
    world = World(variants={INT8: (math.nan, 70.0)})
    world.add_worker()
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    (row,) = explain_candidates(make_query(1, world.now_s), candidates, None)
    json.dumps(row, allow_nan=False)
    assert row["misses"] == ["nothing-known"]


def test_a_receipt_follows_its_query() -> None:
    world = World()
    world.add_worker()
    world.ask()
    query = world.ask()
    assert told(world, query)["outcome"] == "waiting"
    world.finish()
    assert told(world, query)["outcome"] == "running"
    world.finish()
    assert told(world, query)["outcome"] == "served"


def test_of_a_query_that_never_came_there_is_none() -> None:
    assert World().dispatcher.receipt(1) is None


def test_the_book_forgets_the_oldest_first() -> None:
    book = RecentReceipts(max_rows=32 * 10)
    for number in range(20):
        book.add(Receipt(make_query(number, 0.0), reason=Reason.QUEUE_FULL))
    assert len(book) == 10
    assert book.get(9) is None
    assert book.get(10) is not None


def test_the_book_counts_candidates() -> None:
    world = World(variants={f"imagenet/m/v{i}@1": (0.01, 50.0) for i in range(68)})
    world.add_worker()
    candidates = world.instances.candidates("imagenet", 1, world.now_s)
    book = RecentReceipts(max_rows=1000)
    for number in range(20):
        book.add(Receipt(make_query(number, 0.0), candidates))
    assert len(book) == 10


def test_the_last_receipt_stays_whatever_its_size() -> None:
    book = RecentReceipts(max_rows=1)
    book.add(Receipt(make_query(1, 0.0)))
    book.add(Receipt(make_query(2, 0.0)))
    assert len(book) == 1
    assert book.get(2) is not None


def test_a_receipt_that_comes_twice_counts_once() -> None:
    book = RecentReceipts(max_rows=64)
    for _ in range(5):
        book.add(Receipt(make_query(1, 0.0)))
    book.add(Receipt(make_query(2, 0.0)))
    assert len(book) == 2


def test_an_explanation_has_the_choice_and_what_ruled_the_others_out() -> None:
    for policy in ("best-value", "cheapest-feasible"):
        world = World(build_policy(SelectionPolicy, policy))  # type: ignore[type-abstract]
        world.add_worker()
        query = world.ask(latency_ms=30.0, min_accuracy=71.0)
        world.finish()
        receipt = world.dispatcher.receipt(query)
        assert receipt is not None
        found = explain_choice(receipt)
        assert found["choice"]["variant"] == FP32
        assert found["reason"] == policy
        assert [(each["variant"], each["why"]) for each in found["runners_up"]] == [
            (LITE2, "too-slow"),
            (INT8, "too-inaccurate"),
        ]
        assert found["others"] == 0
        assert [each["chosen"] for each in explain_receipt(receipt)["candidates"]] == [
            False,
            True,
            False,
        ]
        fewer = explain_choice(receipt, most=1)
        assert [each["variant"] for each in fewer["runners_up"]] == [LITE2]
        assert fewer["others"] == 1


def test_a_refusal_is_explained_too() -> None:
    world = World()
    world.add_worker()
    receipt = world.dispatcher.receipt(world.ask(latency_ms=15.0, min_accuracy=78.0))
    assert receipt is not None
    found = explain_choice(receipt)
    assert found["choice"] is None
    assert found["reason"] == "limits-conflict"
    assert found["runners_up"][0]["misses"] == ["too-slow"]
    unknown = world.dispatcher.receipt(world.ask(scope="none"))
    assert unknown is not None
    assert explain_choice(unknown)["runners_up"] == []
