"""Why: a query's limits, choice and course in words, and what was not there, and since when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from modelless.controller.control.messages import Entry
from modelless.controller.dispatch.messages import CacheHit
from modelless.controller.history.entries import write_entries
from modelless.controller.history.receipts import receipt_document
from modelless.controller.history.why import context_of, entry_lines, words
from modelless.variants.store import Store
from tests.unit.dispatch.world import LADDER, World, make_query

INT8, FP32, LITE2 = LADDER


def told(world: World, query_id: int) -> dict[str, object]:
    receipt = world.dispatcher.receipt(query_id)
    assert receipt is not None
    return receipt_document("gw", receipt, world.now_s)


def test_a_served_query_in_words() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=30.0, min_accuracy=71.0)
    world.finish(after_s=0.022)
    assert words(told(world, query)) == [
        "asked for imagenet: 1 item, within 30 ms, at least 71 %",
        f"{FP32} on cpu-1, chosen as the most accurate that keeps all limits",
        "waited 0.0 ms; ran in w0 in a batch of 1; "
        "answered after 22.0 ms, predicted 20.0 ms (+10%); cost 3.06e-07 USD",
    ]


def test_a_query_that_the_cache_answered_in_words(store: Store) -> None:
    world = World()
    world.dispatcher.handle(CacheHit(make_query(1, 0.0, latency_ms=30.0), FP32), 0.001)
    receipt = told(world, 1)
    assert words(receipt) == [
        "asked for imagenet: 1 item, within 30 ms",
        f"{FP32} from the cache: the same inputs were answered before",
    ]
    arrived = datetime.fromisoformat(str(receipt["arrived_at"]))
    loaded = Entry("loaded", LITE2, "wanted", {"worker": "w0", "device_class": "cpu-1"})
    write_entries(store, [(arrived - timedelta(seconds=5), loaded)], 100)
    assert context_of(store, receipt)[1] == []  # nothing else was looked for


def test_a_refused_query_in_words() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=1.0)
    assert words(told(world, query)) == [
        "asked for imagenet: 1 item, within 1 ms",
        "refused after 0.0 ms: nothing would be in time, even without a queue",
    ]


def test_a_deadline_that_the_client_did_not_name_in_words() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=10_000.0, has_default_deadline=True)
    assert words(told(world, query))[0] == (
        "asked for imagenet: 1 item, within 10000 ms (the server's default)"
    )


@pytest.mark.parametrize(
    ("reason", "took_ms", "says"),
    [
        ("deadline-passed", 30.0, "nothing could have it done in time any more"),
        ("deadline-passed", 40.0, "its deadline passed while it waited"),
        ("queue-too-long", 0.1, "the queue was too long to be in time"),
        ("queue-too-long", 85.0, "its time was over when the gateway came to it"),
    ],
)
def test_whether_its_time_was_over_is_said_of_a_refusal(
    reason: str, took_ms: float, says: str
) -> None:
    world = World()
    world.add_worker()
    receipt = told(world, world.ask(latency_ms=1.0))
    receipt |= {"reason": reason, "latency_ms": 40.0, "observed_latency_ms": took_ms}
    assert words(receipt)[1].startswith(f"refused after {took_ms:.1f} ms: {says}")


def test_a_query_that_is_served_late_in_words() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=1.0, tenant="careful", serve_late=True)
    world.finish()
    assert words(told(world, query))[:2] == [
        "asked for imagenet: 1 item, within 1 ms, tenant careful, late rather than not at all",
        "stood behind the others of its priority: late, or beyond its tenant's share",
    ]


def test_what_was_not_loaded_is_explained_by_the_history(store: Store) -> None:
    world = World()
    world.add_worker(variant_ids=[INT8])
    receipt = told(world, world.ask(latency_ms=30.0))
    arrived = datetime.fromisoformat(str(receipt["arrived_at"]))
    where = {"worker": "w0", "device_class": "cpu-1"}
    evicted = Entry("unload", LITE2, "room-needed", {**where, "for": INT8})
    write_entries(
        store,
        [
            (arrived - timedelta(seconds=300), Entry("load", FP32, "wanted", where)),
            (arrived - timedelta(seconds=299), Entry("load-failed", FP32, "bad hash", where)),
            (arrived - timedelta(seconds=12), evicted),
            (arrived - timedelta(seconds=12), Entry("load", INT8, "wanted", where)),
            (arrived - timedelta(seconds=5), Entry("load", "other/a/x@1", "wanted", where)),
            (arrived + timedelta(seconds=5), Entry("load", LITE2, "wanted", where)),
        ],
        100,
    )
    entries, absent = context_of(store, receipt)
    assert absent == [
        f"{FP32} was not ready: its load had failed 299.0 s before: bad hash",
        f"{LITE2} was not ready: evicted 12.0 s before for {INT8}: room was needed",
    ]
    assert [entry.entry.subject for entry in entries] == [LITE2, INT8]
    assert entry_lines(entries, arrived)[0] == (
        f"  12.0 s before: unload {LITE2}: room was needed; for {INT8}; in w0 (cpu-1)"
    )
    assert datetime.now(UTC) - arrived < timedelta(minutes=1)
