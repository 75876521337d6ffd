"""Each published batching policy, on queues that show its idea."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.batching.additive_increase import AdditiveIncrease
from modelless.policies.batching.nexus import Nexus
from modelless.policies.reasons import Reason
from modelless.policies.seams import BatchingPolicy
from modelless.policies.views import QueryView, QueueView, ResidentView, Run, Wait, WorkerView

VARIANT, OTHER = "t/m/v@1", "t/m/w@1"
NOW_S = 100.0


def make_resident(name: str, batch_s: Sequence[float]) -> ResidentView:
    return ResidentView(name, 70.0, (0.0, *batch_s), (0.0, *batch_s))


def make_worker(
    *residents: ResidentView, name: str = "worker-0", device_class: str = "cpu-1"
) -> WorkerView:
    return WorkerView(name, device_class, {r.variant_id: r for r in residents}, 8)


def make_query(
    number: int,
    left_s: float,
    *,
    waited_s: float = 0.0,
    items: int = 1,
    priority: int = 0,
    now_s: float = NOW_S,
) -> QueryView:
    return QueryView(number, "t", now_s - waited_s, now_s + left_s, items=items, priority=priority)


def make_queue(*queries: QueryView, variant: str = VARIANT) -> QueueView:
    ordered = sorted(queries, key=lambda q: (-q.priority, q.deadline_s, q.query_id))
    return QueueView("t", variant, None, tuple(ordered))


def ids(queries: Sequence[QueryView]) -> list[int]:
    return [query.query_id for query in queries]


# -- additive increase, multiplicative decrease -----------------------------------------------

EIGHT = make_resident(VARIANT, [0.01 * b for b in range(1, 9)])


def sizes(
    policy: AdditiveIncrease,
    took_s: Sequence[float],
    *,
    waiting: int = 30,
    worker: WorkerView | None = None,
    left_s: float = 1.0,
) -> list[int]:
    """The sizes of the batches a busy worker gets, the n-th of which takes ``took_s[n]``."""
    worker, now_s, out = worker or make_worker(EIGHT), NOW_S, []
    for batch_s in (*took_s, 0.0):
        queries = [make_query(number, left_s, now_s=now_s) for number in range(waiting)]
        decision = policy.next_batch(worker, [make_queue(*queries)], now_s)
        assert isinstance(decision, Run)
        assert decision.reason is Reason.EARLIEST_DEADLINE_FIRST
        out.append(len(decision.queries))
        now_s += batch_s
    return out


def test_batches_grow_one_by_one_while_they_are_quick() -> None:
    assert sizes(AdditiveIncrease(), [0.1] * 9) == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert sizes(AdditiveIncrease(step=3.0), [0.1] * 3) == [1, 4, 7, 8]


def test_batches_shrink_by_a_share_of_themselves_when_they_take_too_long() -> None:
    policy = AdditiveIncrease(backoff=0.5, objective_s=0.5)
    assert sizes(policy, [0.1, 0.1, 0.1, 0.6, 0.1, 0.6, 0.6, 0.6]) == [1, 2, 3, 4, 2, 3, 1, 1, 1]


def test_a_tenth_is_given_up_at_a_time_by_default() -> None:
    assert sizes(AdditiveIncrease(objective_s=0.5), [0.1] * 7 + [0.6] * 2) == [
        *range(1, 9),
        7,  # 8 x 0.9 = 7.2
        6,  # 7.2 x 0.9 = 6.48
    ]


def test_the_objective_is_the_queries_own_if_none_is_set() -> None:
    assert sizes(AdditiveIncrease(), [0.2, 0.2, 0.2], left_s=0.1) == [1, 1, 1, 1]
    assert sizes(AdditiveIncrease(), [0.2, 0.2, 0.2], left_s=0.3) == [1, 2, 3, 4]


def test_nothing_is_learned_of_a_worker_that_left_nothing_waiting() -> None:
    policy = AdditiveIncrease(objective_s=0.5)
    assert sizes(policy, [60.0, 60.0], waiting=1) == [1, 1, 1]  # the pauses are no batches
    assert sizes(policy, [0.1, 0.1]) == [1, 2, 3]


def test_a_batch_that_was_not_full_says_nothing_of_the_size_allowed() -> None:
    policy = AdditiveIncrease(objective_s=10.0)
    assert sizes(policy, [0.1, 0.1], worker=make_worker(EIGHT, name="first")) == [1, 2, 3]
    worker = make_worker(EIGHT, make_resident(OTHER, [0.01] * 8))
    for number in range(5):
        now_s = NOW_S + number
        urgent = make_queue(make_query(1, 0.5, now_s=now_s))
        later = make_queue(make_query(2, 0.9, now_s=now_s), variant=OTHER)
        policy.next_batch(worker, [urgent, later], now_s)
    assert sizes(policy, [], worker=make_worker(EIGHT, name="new")) == [3]


def test_each_variant_on_each_device_class_has_a_size_of_its_own() -> None:
    policy = AdditiveIncrease()
    assert sizes(policy, [0.1, 0.1]) == [1, 2, 3]
    gpu = make_worker(EIGHT, name="worker-1", device_class="gpu-1")
    assert sizes(policy, [0.1], worker=gpu) == [1, 2]
    twin = make_worker(EIGHT, name="worker-2")
    assert sizes(policy, [0.1], worker=twin) == [3, 4]


def test_sizes_are_counted_in_items_and_one_query_always_goes() -> None:
    queue = make_queue(*(make_query(number, 1.0, items=3) for number in range(4)))
    decision = AdditiveIncrease().next_batch(make_worker(EIGHT), [queue], NOW_S)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0]


@pytest.mark.parametrize(
    "settings", [{"step": 0.0}, {"backoff": 1.0}, {"backoff": 0.0}, {"objective_s": 0.0}]
)
def test_settings_of_additive_increase_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        AdditiveIncrease(**settings)


# -- early drop -------------------------------------------------------------------------------

STEEP = make_resident(VARIANT, [0.040 + 0.005 * b for b in range(1, 9)])
"""Mostly fixed costs: one takes 45 ms, eight take 80."""


def overloaded(heads: int, left_s: float = 0.060) -> QueueView:
    """Some whose time is short, and eight behind them that have more; all allow 160 ms."""
    short = [make_query(n, left_s, waited_s=0.160 - left_s) for n in range(heads)]
    return make_queue(*short, *(make_query(n, 0.1, waited_s=0.06) for n in range(10, 18)))


def test_the_heads_are_dropped_for_a_full_window_behind_them() -> None:
    decision = Nexus().next_batch(make_worker(STEEP), [overloaded(3)], NOW_S)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == list(range(10, 18))
    assert ids(decision.dropped) == [0, 1, 2]
    assert decision.reason is Reason.EARLIEST_DEADLINE_FIRST


def test_nobody_is_dropped_who_has_time_for_the_whole_window() -> None:
    decision = Nexus().next_batch(make_worker(STEEP), [overloaded(3, left_s=0.080)], NOW_S)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0, 1, 2, 10, 11, 12, 13, 14]
    assert decision.dropped == ()


def test_nobody_is_dropped_while_fewer_wait_than_a_window_takes() -> None:
    queue = make_queue(
        make_query(0, 0.060, waited_s=0.1),
        *(make_query(n, 0.1, waited_s=0.06) for n in range(10, 16)),
    )
    decision = Nexus().next_batch(make_worker(STEEP), [queue], NOW_S)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0, 10, 11, 12]  # four take 60 ms
    assert decision.dropped == ()


def test_the_window_is_what_fits_twice_into_the_latency_limit() -> None:
    # Of 100 ms, 50 may be a batch: two items. With 60 ms left, a window of two is no trouble.
    queue = make_queue(*(make_query(n, 0.060, waited_s=0.04) for n in range(9)))
    decision = Nexus().next_batch(make_worker(STEEP), [queue], NOW_S)
    assert isinstance(decision, Run)
    assert ids(decision.queries) == [0, 1, 2, 3]
    assert decision.dropped == ()


def test_what_would_be_late_even_alone_is_dropped() -> None:
    queue = make_queue(make_query(0, 0.040), make_query(1, 0.050))
    decision = Nexus().next_batch(make_worker(STEEP), [queue], NOW_S)
    assert isinstance(decision, Run)
    assert (ids(decision.queries), ids(decision.dropped)) == ([1], [0])


def test_the_next_queue_has_its_turn_when_one_is_dropped_whole() -> None:
    worker = make_worker(STEEP, make_resident(OTHER, [0.01] * 8))
    lost = make_queue(make_query(0, 0.020), make_query(1, 0.030))
    fine = make_queue(make_query(2, 0.050), variant=OTHER)
    decision = Nexus().next_batch(worker, [fine, lost], NOW_S)
    assert isinstance(decision, Run)
    assert (decision.variant_id, ids(decision.queries)) == (OTHER, [2])
    assert ids(decision.dropped) == [0, 1]
    alone = Nexus().next_batch(worker, [lost], NOW_S)
    assert isinstance(alone, Wait)
    assert (alone.reason, ids(alone.dropped)) == (Reason.DEADLINE_PASSED, [0, 1])
    assert NOW_S < alone.until_s < math.inf


def test_nobody_is_dropped_for_a_lower_priority() -> None:
    queue = overloaded(0)
    urgent = make_query(0, 0.060, waited_s=0.1, priority=5)
    decision = Nexus().next_batch(make_worker(STEEP), [make_queue(urgent, *queue.queries)], NOW_S)
    assert isinstance(decision, Run)
    assert decision.dropped == ()
    assert decision.queries[0] == urgent


def test_what_nothing_is_known_of_runs_alone() -> None:
    unknown = make_resident(VARIANT, [math.nan] * 8)
    decision = Nexus().next_batch(make_worker(unknown), [overloaded(3)], NOW_S)
    assert isinstance(decision, Run)
    assert (ids(decision.queries), decision.dropped) == ([0], ())


@pytest.mark.parametrize("policy", [AdditiveIncrease(), Nexus()])
def test_queues_of_what_is_not_there_are_left_alone(policy: BatchingPolicy) -> None:
    elsewhere = make_queue(make_query(0, 1.0), variant="t/not/here@1")
    deferred = elsewhere._replace(variant_id=None)
    decision = policy.next_batch(make_worker(EIGHT), [elsewhere, deferred], NOW_S)
    assert decision == Wait(Reason.NOTHING_QUEUED)
