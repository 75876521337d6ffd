"""Which variant and worker a query gets, and what it is told when it gets none."""

from __future__ import annotations

import math

import pytest

from modelless.controller.dispatch.messages import Execute, LoadChanged
from modelless.policies.reasons import Reason
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.policies.views import Reject
from modelless.variants.estimates import Load

from .some_policies import Scripted
from .world import LADDER, World

INT8, FP32, LITE2 = LADDER


def test_without_limits_the_most_accurate_serves() -> None:
    world = World()
    world.add_worker()
    query = world.ask()
    assert world.running["w0"].variant_id == LITE2
    assert world.reason_of(query) is Reason.MOST_ACCURATE_FEASIBLE


def test_without_limits_the_cheapest_serves() -> None:
    world = World(CheapestFeasible())
    world.add_worker()
    query = world.ask()
    assert world.running["w0"].variant_id == INT8
    assert world.reason_of(query) is Reason.CHEAPEST_FEASIBLE


@pytest.mark.parametrize(
    ("latency_ms", "min_accuracy", "expected"),
    [(30.0, 0.0, FP32), (15.0, 0.0, INT8), (100.0, 79.0, LITE2), (48.1, 0.0, LITE2)],
)
def test_the_most_accurate_that_is_in_time_at_p99(
    latency_ms: float, min_accuracy: float, expected: str
) -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=latency_ms, min_accuracy=min_accuracy)
    assert world.running["w0"].variant_id == expected


@pytest.mark.parametrize(("quantile", "fits_ms"), [("p50", 10.1), ("p90", 11.1), ("p99", 12.1)])
def test_the_quantile_that_must_fit_is_a_setting(quantile: str, fits_ms: float) -> None:
    for latency_ms, fits in ((fits_ms, True), (fits_ms - 0.2, False)):
        world = World(CheapestFeasible(quantile))
        world.add_worker()
        world.ask(latency_ms=latency_ms)
        assert bool(world.running) is fits


def test_a_narrower_scope_narrows_the_choice() -> None:
    world = World()
    world.add_worker()
    world.ask(scope="imagenet/lite0")
    assert world.running["w0"].variant_id == FP32
    world.finish()
    world.ask(scope="imagenet/lite0/int8")
    assert world.running["w0"].variant_id == INT8
    world.finish()
    world.ask(scope="imagenet/lite0/int8@1")
    assert world.running["w0"].variant_id == INT8


@pytest.mark.parametrize(
    "scope", ["imagenet/lite0/int8@2", "imagenet/lite", "image", "imagenet/lite0/int8@1/more"]
)
def test_a_scope_of_nothing_is_refused(scope: str) -> None:
    world = World()
    world.add_worker()
    query = world.ask(scope=scope)
    assert world.refused[query].reason is Reason.NOTHING_READY
    assert scope in world.refused[query].message
    assert world.refused[query].retry_after_s


def test_nothing_ready_is_counted_as_unmet() -> None:
    world = World()
    query = world.ask()
    assert world.refused[query].reason is Reason.NOTHING_READY
    assert world.dispatcher.take_counters().unmet == {"imagenet": 1}
    assert world.dispatcher.take_counters().unmet == {}


def test_loaded_but_never_profiled_says_so() -> None:
    world = World(variants={"imagenet/lite0/int8@1": (math.inf, 70.0)})
    world.add_worker()
    query = world.ask()
    assert world.refused[query].reason is Reason.NOTHING_READY
    assert "profile" in world.refused[query].message


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"min_accuracy": 81.0}, Reason.TOO_INACCURATE),
        ({"latency_ms": 5.0}, Reason.TOO_SLOW),
        ({"max_cost_usd": 1e-9}, Reason.TOO_DEAR),
        ({"latency_ms": 15.0, "min_accuracy": 79.0}, Reason.LIMITS_CONFLICT),
    ],
)
def test_limits_that_cannot_be_met_whatever_the_load(
    limits: dict[str, float], reason: Reason
) -> None:
    world = World()
    world.add_worker()
    for _ in range(2):  # idle, and with a batch running
        query = world.ask(**limits)
        assert world.refused[query].reason is reason
        assert world.refused[query].retry_after_s is None
        assert "nearest feasible" in world.refused[query].message
        if not world.running:
            world.ask()


def test_limits_that_only_the_queue_cannot_meet() -> None:
    world = World()
    world.add_worker()
    world.ask()
    query = world.ask(latency_ms=15.0)
    assert world.refused[query].reason is Reason.QUEUE_TOO_LONG
    assert "40 ms" in world.refused[query].message
    assert world.refused[query].retry_after_s == pytest.approx(0.050)


def test_time_lost_on_the_way_here_counts_as_queueing() -> None:
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=15.0)
    world.finish()
    early = world.asked[query]
    world.now_s = early.arrival_s + 0.010
    late = world.send(early._replace(query_id=99))
    assert world.refused[late].reason is Reason.QUEUE_TOO_LONG


@pytest.mark.parametrize("items", [0, -1, 9, 1000])
def test_a_query_of_too_many_items_is_told_to_be_several(items: int) -> None:
    world = World()
    world.add_worker()
    query = world.ask(items=items)
    assert world.refused[query].reason is Reason.BAD_ITEM_COUNT
    assert "allowed: 1 to 8" in world.refused[query].message
    assert world.refused[query].retry_after_s is None


def test_many_items_take_longer_and_count() -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=50.0, items=4)  # at p99 lite2 would take 120 ms, fp32 60, int8 30
    assert world.running["w0"].variant_id == INT8
    assert world.expected_s(world.running["w0"]) == pytest.approx(0.025)


def test_predicted_waits_grow_with_the_queue_and_the_load_shifts_to_quicker_variants() -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=100.0)  # runs now
    chosen, waits = [], []
    for _ in range(5):
        waits.append(world.predicted_wait_s("w0"))
        query = world.ask(latency_ms=100.0)
        chosen.append(world.variant_of(query))
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.040)
    assert waits[1] == pytest.approx(0.080)
    assert chosen[0] == LITE2
    speeds = [LADDER[name][0] for name in chosen if name]
    assert speeds == sorted(speeds, reverse=True)
    assert chosen[1] == INT8
    assert world.refused  # and at last nothing is in time


def test_the_wait_goes_back_to_nothing_when_the_queue_is_gone() -> None:
    """Whatever the cost model says meanwhile."""
    world = World()
    world.add_worker()
    for _ in range(6):
        world.ask(latency_ms=1000.0)
    assert world.predicted_wait_s("w0") == pytest.approx(0.240)
    world.cost_model.latency_s[LITE2] = 0.001
    world.dispatcher.handle(LoadChanged(world.instances.load), world.now_s)
    assert world.predicted_wait_s("w0") == pytest.approx(0.240)
    while world.running:
        world.finish()
        assert world.predicted_wait_s("w0") >= 0.0
    assert world.predicted_wait_s("w0") == 0.0


def test_a_variant_that_leaves_takes_its_backlog_with_it() -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=1000.0)
    slow = [world.ask(latency_ms=500.0) for _ in range(3)]
    quick = world.ask(latency_ms=1000.0, scope="imagenet/lite0/int8")
    assert world.predicted_wait_s("w0") == pytest.approx(0.170)
    world.add_worker("w0", [INT8, FP32])
    assert {world.variant_of(query) for query in slow} == {FP32}
    assert world.variant_of(quick) == INT8
    assert world.predicted_wait_s("w0") == pytest.approx(0.040 + 3 * 0.020 + 0.010)


def test_a_batch_that_overruns_pushes_the_queue_back() -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=1000.0)
    world.ask(latency_ms=1000.0)
    world.now_s += 0.100  # it should have been done 60 ms ago
    assert world.predicted_wait_s("w0") == pytest.approx(0.040)


def test_the_least_busy_worker_gets_the_query() -> None:
    world = World()
    for worker in ("w0", "w1", "w2"):
        world.add_worker(worker)
    for _ in range(6):
        world.ask(latency_ms=1000.0)
    assert set(world.running) == {"w0", "w1", "w2"}
    assert [world.predicted_wait_s(worker) for worker in ("w0", "w1", "w2")] == pytest.approx(
        [0.080] * 3
    )


def test_between_idle_workers_the_nearer_one_wins() -> None:
    world = World()
    world.add_worker("a-far", hop_s=0.005)
    world.add_worker("b-near")
    world.ask(latency_ms=1000.0)
    assert set(world.running) == {"b-near"}
    world.ask(latency_ms=1000.0)
    assert set(world.running) == {"a-far", "b-near"}


def test_the_hop_is_part_of_the_estimate() -> None:
    world = World()
    world.add_worker("far", hop_s=0.010)
    assert world.variant_of(world.ask(latency_ms=20.0)) == ""
    assert world.variant_of(world.ask(latency_ms=22.1)) == INT8
    world.add_worker("near")
    receipt = world.dispatcher.receipt(world.ask(latency_ms=20.0))
    assert receipt is not None
    assert receipt.worker_id == "near"
    assert receipt.predicted_latency_s == pytest.approx(0.010)


def test_a_busy_near_worker_and_an_idle_far_one() -> None:
    """The wait that is predicted is the wait of a worker that exists, hop and all."""
    world = World(CheapestFeasible())
    world.add_worker("near", [INT8])
    world.add_worker("far", [INT8], hop_s=0.004)
    world.ask(latency_ms=1000.0)
    assert set(world.running) == {"near"}
    receipt = world.dispatcher.receipt(world.ask(latency_ms=1000.0))
    assert receipt is not None
    assert receipt.worker_id == "far"
    assert receipt.predicted_latency_s == pytest.approx(0.014)


def test_device_classes_are_rows_of_their_own() -> None:
    world = World(CheapestFeasible())
    world.cost_model.speed["h200"] = 10.0
    world.add_worker("cpu", device_class="cpu-1")
    world.add_worker("gpu", device_class="h200")
    assert world.variant_of(world.ask(latency_ms=1000.0)) == INT8
    assert set(world.running) == {"cpu"}  # 0.05 USD an hour beats 3.50, ten times as quick
    world.ask(latency_ms=6.0)
    assert set(world.running) == {"cpu", "gpu"}


def test_the_cost_model_is_told_what_was_observed() -> None:
    world = World()
    world.add_worker()
    world.dispatcher.handle(LoadChanged(Load(2.0)), world.now_s)
    world.ask(latency_ms=1000.0, items=2)
    world.finish(after_s=0.070)
    ((placement, batch, load, busy_s),) = world.cost_model.observed
    assert (placement.variant_id, placement.device_class) == (LITE2, "cpu-1")
    assert (batch, load.busy_neighbours, busy_s) == (2, 2.0, 0.070)


def test_refreshed_estimates_decide() -> None:
    world = World()
    world.add_worker()
    for _ in range(5):
        assert world.variant_of(world.ask(latency_ms=100.0)) == LITE2
        world.finish()
    world.cost_model.latency_s[LITE2] = 0.200
    assert world.variant_of(world.ask(latency_ms=100.0)) == LITE2  # not asked again yet
    world.finish()
    world.dispatcher.handle(LoadChanged(world.instances.load), world.now_s)
    assert world.variant_of(world.ask(latency_ms=100.0)) == FP32


def test_estimates_are_asked_for_once_and_not_for_each_query() -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=1000.0)
    calls = world.cost_model.calls
    for _ in range(10):
        world.ask(latency_ms=1000.0)
    assert world.cost_model.calls == calls


def test_a_query_is_executed_at_once_by_an_idle_worker() -> None:
    """A lone query never waits for a batch to fill."""
    world = World()
    world.add_worker()
    query = world.ask(latency_ms=1000.0)
    assert world.executed == [Execute(0, "w0", LITE2, (query,))]
    assert world.dispatcher.queued == 0
    assert world.dispatcher.open_queries == 1


def test_a_policy_may_reject_for_reasons_of_its_own() -> None:
    world = World(Scripted(arrival=lambda query, candidates: Reject(Reason.QUEUE_TOO_LONG)))
    world.add_worker()
    query = world.ask()
    assert world.refused[query].reason is Reason.QUEUE_TOO_LONG


def test_the_accuracy_ladder_of_the_default_policy_is_by_name_between_equals() -> None:
    twins = {"imagenet/a/x@1": (0.010, 70.0), "imagenet/b/x@1": (0.010, 70.0)}
    for order in (list(twins), list(reversed(twins))):
        for policy in (MostAccurateFeasible(), CheapestFeasible()):
            world = World(policy, twins)
            world.add_worker("w0", order)
            world.ask()
            assert world.running["w0"].variant_id == "imagenet/a/x@1"
