"""A worker becomes one of another class while it serves: what it takes along, and its queries."""

from __future__ import annotations

from math import inf

import pytest

from modelless.controller.device.messages import (
    ChangeKind,
    Free,
    NoteResize,
    ReportReady,
    ResidencyChange,
    ResizeStep,
    StartBatch,
)
from modelless.controller.device.resizing import LATELY_S, Candidate, take_along
from modelless.controller.dispatch.messages import LoadChanged, WorkerReport, WorkerReported
from modelless.policies.reasons import Reason
from modelless.variants.estimates import Load
from tests.unit.dispatch.world import World

from .driver import LARGE, RESIZE, SMALL, A, B, C, Driver, load, unload

INT8 = "imagenet/lite0/int8@1"


def candidate(name: str, last_used_s: float, *, size: int = 10, in_use: bool = False) -> Candidate:
    return Candidate(name, size, last_used_s, in_use)


@pytest.mark.parametrize(
    ("candidates", "free_bytes", "taken"),
    [
        ([], 0, ()),
        ([candidate("a", 1.0), candidate("b", 2.0)], 20, ("b", "a")),
        ([candidate("a", 1.0), candidate("b", 2.0)], 10, ("b",)),
        ([candidate("a", 1.0), candidate("b", 2.0)], 9, None),
        ([candidate("a", 1.0, in_use=True), candidate("b", 2.0)], 10, ("a",)),
        ([candidate("a", 1.0, size=11, in_use=True), candidate("b", 2.0)], 10, None),
        ([candidate("old", 1.0), candidate("b", 2.0 + LATELY_S)], 20, ("b",)),
        ([candidate("old", 1.0, in_use=True), candidate("b", 2.0 + LATELY_S)], 20, ("old", "b")),
        ([candidate("a", -inf), candidate("b", -inf)], 20, ("a", "b")),
        ([candidate("never", -inf), candidate("b", 5.0)], 20, ("b",)),
    ],
)
def test_what_was_used_lately_is_taken_along_if_it_fits(
    candidates: list[Candidate], free_bytes: int, taken: tuple[str, ...] | None
) -> None:
    assert take_along(candidates, free_bytes) == taken


def test_batches_go_on_and_the_new_size_takes_over() -> None:
    driver = Driver()
    driver.hold(A, B)
    first = driver.hand_in(A)
    driver.order(RESIZE)
    assert driver.device.resizing_to == LARGE
    assert driver.device.device_class == SMALL, "until it is loaded"
    second = driver.hand_in(A)
    driver.now_s = 1.0
    ended = driver.end_load()
    assert ended[1:] == [NoteResize(LARGE, ResizeStep.ENDED), ReportReady(LARGE, (A,))]
    assert driver.device.used_bytes == 30, "B was not used: it leaves; A is there twice"
    driver.end_batch(driver.hand_in(A))
    assert len(driver.of(Free)) == 1, "that of B"
    driver.end_batch(first)
    driver.end_batch(second)
    assert [batch.copy_id for batch in driver.of(StartBatch)] == [1, 1, 3]
    driver.end_frees()
    assert driver.device.used_bytes == 10
    assert [(c.kind, c.variant_id) for c in driver.of(ResidencyChange)[2:]] == [
        (ChangeKind.UNLOADED, B)
    ], "A was there all the time"
    assert driver.device.resizing_to == ""


def test_while_it_is_resized_nothing_else_is_begun() -> None:
    driver = Driver()
    driver.hold(A)
    driver.order(RESIZE, RESIZE, load(B))
    driver.end_load()
    assert driver.loads == [(A, SMALL), (A, LARGE)]
    driver.order(load(B, Reason.ANOTHER_COPY))
    assert driver.loads[2:] == [], "the memory of the old copy comes free first"
    driver.end_frees()
    assert driver.loads[2:] == [(B, LARGE)]


def test_a_load_that_was_decided_for_the_former_class_is_not_begun() -> None:
    driver = Driver()
    driver.order(RESIZE)
    assert driver.device.device_class == LARGE, "it held nothing"
    driver.order(load(A)._replace(memory_bytes=10, device_class=SMALL))
    assert driver.loads == []
    driver.order(load(A)._replace(memory_bytes=12, device_class=LARGE))
    assert driver.loads == [(A, LARGE)]


def test_while_it_loads_it_is_not_resized() -> None:
    driver = Driver()
    driver.hold(A)
    driver.order(load(B), RESIZE)
    assert driver.device.resizing_to == ""


def test_it_does_not_become_what_it_was_while_an_old_copy_still_runs() -> None:
    driver = Driver()
    driver.hold(A)
    batch_id = driver.hand_in(A)
    driver.order(RESIZE, in_use={A})
    driver.end_load()
    assert driver.device.device_class == LARGE
    back = RESIZE._replace(device_class=SMALL)
    driver.order(back)
    assert driver.device.resizing_to == "", "there would be two copies of A of one class"
    driver.end_batch(batch_id)
    driver.end_frees()
    driver.order(back)
    assert driver.device.resizing_to == SMALL


def test_what_comes_into_use_meanwhile_is_taken_along_if_it_fits() -> None:
    driver = Driver(memory_bytes=50)
    driver.hold(A, B, C)
    driver.end_batch(driver.hand_in(A))
    driver.order(RESIZE, in_use={A})
    driver.now_s = 1.0
    driver.hand_in(B)
    driver.hand_in(C)
    driver.end_load()
    assert driver.loads[3:] == [(A, LARGE), (B, LARGE)], "no room for a second C"
    driver.end_load()
    assert driver.device.ready == (A, B)


def test_a_variant_that_was_used_and_had_no_room_twice_is_no_spare_load_afterwards() -> None:
    driver = Driver(memory_bytes=30)
    driver.hold(A, B)
    driver.end_batch(driver.hand_in(A))
    driver.order(RESIZE)
    driver.now_s = 1.0
    driver.end_batch(driver.hand_in(B), busy_s=1.0)
    driver.end_load()
    driver.end_frees()
    assert driver.device.ready == (A,)
    driver.order(load(B))
    assert not driver.device.is_empty
    assert driver.loads[-1] == (B, LARGE)


@pytest.mark.parametrize(("size", "in_use"), [(15, set[str]()), (inf, {A})])
def test_without_room_for_two_copies_it_stays_what_it_is(size: float, in_use: set[str]) -> None:
    driver = Driver(memory_bytes=24)
    driver.hold(A)
    (noted,) = driver.order(RESIZE, in_use=in_use, sizes={A: size})
    assert isinstance(noted, NoteResize)
    assert (noted.step, noted.device_class) == (ResizeStep.FAILED, LARGE)
    assert driver.device.resizing_to == ""


def test_a_second_copy_takes_what_the_first_one_takes_where_no_size_is_known() -> None:
    driver = Driver(memory_bytes=19)
    driver.hold(A)
    driver.order(RESIZE)
    assert driver.device.resizing_to == ""
    roomy = Driver(memory_bytes=20)
    roomy.hold(A)
    roomy.order(RESIZE)
    assert roomy.device.used_bytes == 20


def test_a_load_that_fails_leaves_it_as_it_was() -> None:
    driver = Driver()
    driver.hold(A, B)
    driver.order(RESIZE)
    driver.end_load()
    failed, *_ = driver.fail_load("no such file")
    assert failed == NoteResize(LARGE, ResizeStep.FAILED, f"{B}: no such file")
    driver.end_frees()
    assert driver.device.ready == (A, B)
    assert (driver.device.device_class, driver.device.used_bytes) == (SMALL, 20)


def test_what_is_unloaded_meanwhile_does_not_come_back() -> None:
    driver = Driver()
    driver.hold(A, B)
    driver.order(RESIZE)
    driver.order(unload(B))
    driver.end_frees()
    driver.end_load()
    driver.end_load()
    driver.end_frees()
    assert driver.device.ready == (A,)
    assert driver.device.used_bytes == 10
    kinds = [c.kind for c in driver.of(ResidencyChange) if c.variant_id == B]
    assert kinds == [ChangeKind.LOADED, ChangeKind.UNLOADED]


def test_queries_of_a_resized_worker_are_chosen_for_anew_and_none_is_lost() -> None:
    world = World()
    world.add_worker("w0", [INT8])
    running, waiting = world.ask(), world.ask()
    report = WorkerReport("w0", "h200", (INT8,))
    world.dispatcher.handle(WorkerReported(report), world.now_s)
    receipt = world.dispatcher.receipt(waiting)
    assert receipt is not None
    assert receipt.device_class == "h200"
    world.finish("w0", after_s=0.010)
    assert running in world.completed
    done = world.dispatcher.receipt(running)
    assert done is not None
    assert done.device_class == "cpu-1", "it ran before"
    assert world.cost_model.observed[-1][0].device_class == "cpu-1"
    world.finish("w0", after_s=0.010)
    assert waiting in world.completed
    assert world.cost_model.observed[-1][0].device_class == "h200"


def test_a_query_is_held_for_a_worker_that_is_started_for_it() -> None:
    world = World()
    assert world.refused[world.ask(latency_ms=9000.0)].reason is Reason.NOTHING_READY
    world.dispatcher.handle(LoadChanged(Load(), {"cpu-1": 5.0}), world.now_s)
    late = world.ask(latency_ms=5000.0)
    assert world.refused[late].reason is Reason.NOTHING_READY, "5 s to start and 0.5 s to load"
    held = world.ask(latency_ms=6000.0)
    assert held not in world.refused
    world.tick(5.2)
    world.add_worker("w0", [INT8])
    world.finish("w0", after_s=0.010)
    assert held in world.completed


def test_a_worker_that_is_there_does_not_have_to_be_started() -> None:
    world = World()
    world.dispatcher.handle(LoadChanged(Load(), {"cpu-1": 5.0}), world.now_s)
    world.add_worker("w0", [])
    assert world.ask(latency_ms=1000.0) not in world.refused
