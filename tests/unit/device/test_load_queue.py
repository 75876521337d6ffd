"""Needed variants are loaded first and at once; copies of what others serve wait, and rest."""

from __future__ import annotations

import pytest

from modelless.controller.device.load_queue import LoadQueue, QueuedLoad
from modelless.policies.reasons import Reason

ONE, TWO, THREE = "t/one/x@1", "t/two/x@1", "t/three/x@1"


def queue_of(*waiting: tuple[str, Reason]) -> LoadQueue:
    queue = LoadQueue()
    for variant_id, reason in waiting:
        queue.put(QueuedLoad(variant_id, reason))
    return queue


def loads(*waiting: tuple[str, Reason]) -> list[QueuedLoad]:
    return [QueuedLoad(*each) for each in waiting]


def test_copies_come_last() -> None:
    orders = [(ONE, Reason.ANOTHER_COPY), (TWO, Reason.WANTED), (THREE, Reason.DEMAND)]
    queue = queue_of(*orders)
    assert (len(queue), queue.needed) == (3, 2)
    assert [queue.take() for _ in range(3)] == loads(orders[1], orders[2], orders[0])
    assert not queue


@pytest.mark.parametrize(
    ("reason", "busy_share", "rest_s"),
    [
        (Reason.ANOTHER_COPY, 0.2, 0.1),
        (Reason.ANOTHER_COPY, 1.0, 0.5),
        (Reason.ANOTHER_COPY, 0.0, 0.0),
        (Reason.WANTED, 0.5, 0.0),
    ],
)
def test_it_rests_after_a_copy_the_longer_the_busier_it_is(
    reason: Reason, busy_share: float, rest_s: float
) -> None:
    queue = queue_of((ONE, Reason.ANOTHER_COPY))
    queue.end_load(TWO, reason, 0.5, 100.0, busy_share)
    assert max(queue.rest_until_s - 100.0, 0.0) == pytest.approx(rest_s)


def test_what_is_needed_does_not_wait_for_the_rest() -> None:
    queue = queue_of((ONE, Reason.ANOTHER_COPY))
    queue.end_load(TWO, Reason.ANOTHER_COPY, 0.5, 100.0, 0.5)
    queue.put(QueuedLoad(TWO, Reason.DEMAND))
    assert queue.rest_until_s < 100.0
    assert queue.take() == QueuedLoad(TWO, Reason.DEMAND)
    assert queue.rest_until_s > 100.0


def test_what_was_given_up_unused_can_wait_unless_it_is_asked_for() -> None:
    queue = LoadQueue()
    queue.give_up([THREE])
    queue.give_up([ONE])
    orders = [(ONE, Reason.WANTED), (TWO, Reason.WANTED), (THREE, Reason.WANTED)]
    for order in orders:
        queue.put(QueuedLoad(*order))
    assert [queue.take() for _ in range(3)] == loads(orders[1], orders[2], orders[0])
    queue.put(QueuedLoad(ONE, Reason.DEMAND))
    assert queue.needed == 1
    queue.end_load(ONE, Reason.WANTED, 0.5, 100.0, 0.5)
    queue.take()
    assert queue.rest_until_s > 100.0


def test_what_can_wait_can_be_dropped() -> None:
    queue = queue_of((ONE, Reason.ANOTHER_COPY), (TWO, Reason.WANTED))
    queue.drop_spare()
    assert (len(queue), queue.needed) == (1, 1)
    assert queue.take() == QueuedLoad(TWO, Reason.WANTED)
    with pytest.raises(IndexError):
        queue.take()


def test_what_is_ordered_anew_is_what_it_is_by_then() -> None:
    queue = queue_of((ONE, Reason.ANOTHER_COPY), (ONE, Reason.ANOTHER_COPY), (ONE, Reason.DEMAND))
    assert (len(queue), queue.needed) == (1, 1)


def test_what_was_given_up_and_loaded_again_cannot_wait_the_next_time() -> None:
    queue = LoadQueue()
    queue.give_up([ONE])
    queue.end_load(ONE, Reason.WANTED, 0.5, 100.0, 0.0)
    assert not queue.is_spare(ONE, Reason.WANTED)
