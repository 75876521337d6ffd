"""Meters: what is counted, into which bucket, and that sums of meters are meters of sums."""

from __future__ import annotations

from modelless.controller.dispatch.counters import BATCH_BOUNDS, LATENCY_BOUNDS_S, Meters


def test_a_latency_counts_in_the_first_bucket_that_holds_it() -> None:
    meters = Meters()
    for latency_s in (0.0, 0.001, 0.0011, 10.0, 11.0):
        meters.count_latency("t", latency_s, 7)
    counts = meters.latencies["t"]
    assert len(counts) == len(LATENCY_BOUNDS_S) + 2
    assert counts[:2] == [2.0, 1.0]  # a bound belongs to its own bucket
    assert counts[-3:-1] == [1.0, 1.0]  # up to 10 s, and above
    assert counts[-1] == 0.0 + 0.001 + 0.0011 + 10.0 + 11.0


def test_a_batch_counts_by_its_items() -> None:
    meters = Meters()
    for items in (1, 3, 4, 5000):
        meters.count_batch("t/m/v@1", "cpu-1", items, 0.5)
    counts = meters.batches["t/m/v@1", "cpu-1"]
    assert counts[: len(BATCH_BOUNDS) + 1] == [1.0, 0.0, 2.0, *[0.0] * 8, 1.0]
    assert counts[-2:] == [5008.0, 2.0]


def test_further_reasons_of_a_policys_own_are_counted_together() -> None:
    meters = Meters()
    for number in range(100):
        meters.count_refusal("t", f"own-{number}")
        meters.count_refusal("u", "own-0")
    meters.count_refusal("t", "too-slow")
    assert len({reason for _, reason in meters.refusals}) == 18  # 16 of its own
    assert meters.refusals["t", "own-15"] == meters.refusals["t", "too-slow"] == 1
    assert meters.refusals["u", "own-0"] == 100
    assert meters.refusals["t", "other"] == 84
    total = Meters()
    total.count_refusal("t", "own-99")
    total.add(meters)
    assert len({reason for _, reason in total.refusals}) == 18
    assert sum(total.refusals.values()) == 202


def test_sums_keep_what_is_only_in_one_and_leave_the_other_alone() -> None:
    one, other = Meters(), Meters()
    one.count_end("a", "served", "shop")
    one.count_cache_hit("a")
    other.count_cache_hit("a", 2)
    for meters in (one, other):
        meters.count_latency("a", 0.02, 7)
        meters.count_batch("a/m/v@1", "cpu-1", 2, 0.01)
    other.count_end("a", "served", "shop")
    other.count_end("b", "refused")
    other.count_refusal("b", "too-slow")
    one.add(other)
    assert one.ends == {("a", "served"): 2, ("b", "refused"): 1}
    assert one.tenants == {("shop", "served"): 1}
    assert one.refusals == {("b", "too-slow"): 1}
    assert (one.cache_hits, other.cache_hits) == ({"a": 3}, {"a": 2})
    assert sum(one.latencies["a"][:-1]) == 2.0
    assert one.batches["a/m/v@1", "cpu-1"][-2:] == [4.0, 0.02]
    one.count_latency("a", 0.02, 7)
    assert sum(other.latencies["a"][:-1]) == 1.0
