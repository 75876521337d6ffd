"""A variant is loaded once and never freed in use; memory is held; every change is noted."""

from __future__ import annotations

import pytest

from modelless.controller.device.load_backoff import FIRST_S, LONGEST_S
from modelless.controller.device.messages import (
    ChangeKind,
    Free,
    ReportReady,
    ResidencyChange,
    StartBatch,
    StartLoad,
    TurnBatchBack,
    WakeAt,
)
from modelless.policies.reasons import Reason

from .driver import SMALL, A, B, C, Driver, load, unload


def test_ordered_fifty_times_it_is_loaded_once() -> None:
    driver = Driver()
    driver.order(*[load(A)] * 50)
    assert driver.loads == [(A, SMALL)]
    assert not driver.device.is_empty
    driver.end_load()
    assert driver.order(*[load(A)] * 50) == []
    assert driver.device.ready == (A,)
    assert driver.of(ReportReady) == [ReportReady(SMALL, (A,))]


def test_what_is_loading_takes_no_batch_is_not_unloaded_and_has_no_size_yet() -> None:
    driver = Driver()
    driver.order(load(A), sizes={A: 10})
    driver.hand_in(A)
    assert driver.of(TurnBatchBack) == [TurnBatchBack(1, 0.0, is_held=False)]
    assert driver.order(unload(A)) == []
    (instance,) = driver.device.state((), 0.0, 0.0).instances
    assert (instance.in_use, instance.memory_bytes) == (True, 0)
    assert driver.device.used_bytes == 10


def test_it_is_freed_after_its_last_batch() -> None:
    driver = Driver()
    driver.hold(A)
    first, second = driver.hand_in(A), driver.hand_in(A)
    one, two = driver.of(StartBatch)
    assert one.copy_id == two.copy_id
    assert driver.device.in_use == {A}
    assert driver.device.state((), 0.0, 0.0).instances[0].in_use
    assert driver.order(unload(A)) == [ReportReady(SMALL, ())]
    assert driver.end_batch(first) == []
    assert driver.end_batch(second) == [Free(one.copy_id)]
    assert driver.device.used_bytes == 10, "it counts until it is free"
    driver.end_frees()
    assert driver.device.is_empty
    assert driver.device.used_bytes == 0


def test_what_drains_takes_no_batch_and_is_not_told_of() -> None:
    driver = Driver()
    driver.hold(A)
    driver.hand_in(A)
    driver.order(unload(A))
    assert driver.device.state((), 0.0, 0.0).instances == ()
    driver.hand_in(A)
    assert [back.is_held for back in driver.of(TurnBatchBack)] == [False]


def test_what_drains_and_is_ordered_again_is_ready_without_a_load() -> None:
    driver = Driver()
    driver.hold(A)
    batch = driver.hand_in(A)
    driver.order(unload(A, B))
    assert driver.order(load(A)) == [ReportReady(SMALL, (A,))]
    assert driver.end_batch(batch) == [], "it stays"
    driver.order(load(B))
    driver.end_load()
    assert driver.of(ResidencyChange)[-1].displaced == ()


def test_what_is_being_freed_is_loaded_again_once_it_is_gone() -> None:
    driver = Driver()
    driver.hold(A)
    driver.order(unload(A))
    assert driver.order(load(A)) == []
    driver.end_frees()
    driver.order(load(A))
    assert driver.loads == [(A, SMALL)] * 2


def test_a_load_waits_until_the_memory_is_free_that_it_needs() -> None:
    driver = Driver(memory_bytes=25)
    driver.hold(A, size=20)
    batch = driver.hand_in(A)
    sizes = {A: 20, B: 15}
    driver.order(unload(A, B), load(B), sizes=sizes)
    driver.end_batch(batch)
    assert driver.loads == [(A, SMALL)], "A still takes its memory"
    driver.end_frees()
    assert driver.loads[1:] == [(B, SMALL)]
    assert driver.device.used_bytes == 15


def test_a_load_that_has_no_room_is_refused_and_may_be_ordered_again_at_once() -> None:
    driver = Driver(memory_bytes=25)
    driver.hold(A, size=20)
    (refused,) = driver.order(load(B), sizes={B: 6})
    assert isinstance(refused, ResidencyChange)
    assert (refused.kind, refused.problem) == (ChangeKind.LOAD_FAILED, Reason.NO_ROOM)
    assert driver.order(load(B), sizes={B: 5}) == [StartLoad(2, B, SMALL, 5, Reason.WANTED)]


def test_a_load_is_refused_if_what_was_to_leave_for_it_stays() -> None:
    driver = Driver(memory_bytes=25)
    driver.hold(A, size=20)
    batch = driver.hand_in(A)
    driver.order(unload(A, B), load(B), sizes={B: 15})
    driver.order(load(A))
    assert driver.of(ResidencyChange)[-1].problem == Reason.NO_ROOM
    driver.end_batch(batch)
    assert driver.device.ready == (A,)
    assert driver.device.used_bytes == 20


def test_memory_counts_as_measured_where_a_size_was_not_known() -> None:
    driver = Driver(memory_bytes=25)
    driver.hold(A, size=20)
    driver.order(load(B))
    assert driver.device.used_bytes == 20
    driver.end_load(15)
    assert driver.device.used_bytes == 35
    assert driver.device.state((), 0.0, 0.0).free_bytes == -10


def test_a_variant_that_came_into_use_stays_and_what_was_to_take_its_room_stays_out() -> None:
    driver = Driver()
    driver.hold(A)
    assert driver.order(unload(A, B), load(B), load(C), in_use={A})[0] == StartLoad(
        2, C, SMALL, 0, Reason.WANTED
    )
    assert driver.device.ready == (A,)


def test_nothing_leaves_for_a_variant_that_failed_to_load_lately() -> None:
    driver = Driver()
    driver.hold(A)
    driver.order(load(B))
    driver.fail_load()
    assert driver.order(unload(A, B), load(B)) == []
    assert driver.device.ready == (A,)


def test_a_load_that_fails_is_left_alone_for_twice_as_long_each_time() -> None:
    driver = Driver()
    pauses_s = []
    for _ in range(12):
        driver.order(load(A))
        driver.fail_load()
        assert driver.order(load(A)) == []
        began_s = driver.now_s
        while A in driver.device.state((), 0.0, driver.now_s).barred:
            driver.now_s += FIRST_S
        pauses_s.append(driver.now_s - began_s)
    assert pauses_s[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses_s[-1] == LONGEST_S
    assert driver.device.failed_loads == {A: "no such operator (next try in 300 s)"}
    driver.hold(A)
    assert driver.device.failed_loads == {}


@pytest.mark.parametrize("scope", ["t", "t/a", "t/a/x", "t/a/x@1"])
def test_what_is_in_a_pinned_scope_says_so(scope: str) -> None:
    driver = Driver(pinned=(scope,))
    driver.hold(A, "other/a/x@1")
    assert [i.pinned for i in driver.device.state((), 0.0, 0.0).instances] == [True, False]


def test_uses_and_their_end_are_told() -> None:
    driver = Driver()
    driver.hold(A)
    batch = driver.hand_in(A)
    driver.now_s = 7.0
    driver.end_batch(batch)
    (instance,) = driver.device.state({B}, 0.0, 7.0).instances
    assert (instance.use_count, instance.last_used_s, instance.in_use) == (1, 7.0, False)
    assert driver.device.state({A}, 0.0, 7.0).instances[0].in_use


def test_a_load_says_what_left_for_it_and_how_long_it_took() -> None:
    driver = Driver()
    driver.hold(A, B)
    driver.effects.clear()
    driver.order(unload(A, C), unload(B, C), load(C, Reason.DEMAND))
    driver.end_frees()
    driver.end_load(20)
    one, two, three = driver.of(ResidencyChange)
    assert [(c.kind, c.variant_id, c.for_variant_id) for c in (one, two)] == [
        (ChangeKind.UNLOADED, A, C),
        (ChangeKind.UNLOADED, B, C),
    ]
    assert (one.reason, one.seconds, one.memory_bytes) == (Reason.ROOM_NEEDED, 0.01, 10)
    assert (three.kind, three.reason, three.displaced) == (ChangeKind.LOADED, Reason.DEMAND, (A, B))
    assert (three.seconds, three.memory_bytes) == (0.5, 20)


def test_a_busy_device_rests_before_a_copy_and_not_before_what_is_needed() -> None:
    driver = Driver()
    driver.hold(A)
    driver.order(load(B, Reason.ANOTHER_COPY), load(C, Reason.ANOTHER_COPY))
    batch = driver.hand_in(A)
    driver.now_s = 1.0
    driver.end_batch(batch, busy_s=0.5)
    wake_s = 1.0 + 0.5  # the load took a second, half of which was busy
    assert driver.end_load()[-2:] == [WakeAt(wake_s), ReportReady(SMALL, (A, B))]
    assert C not in [i.variant_id for i in driver.device.state((), 0.0, 1.0).instances]
    driver.order(load("t/d/x@1", Reason.DEMAND), load(C, Reason.ANOTHER_COPY))
    driver.end_load()
    assert [name for name, _ in driver.loads] == [A, B, "t/d/x@1"]
    driver.now_s = wake_s
    driver.tick()
    assert driver.loads[-1] == (C, SMALL)
