"""Queries for which nothing is ready: held for a load that could end in time, else refused."""

from __future__ import annotations

import pytest

from modelless.controller.dispatch.limits import DispatchLimits
from modelless.controller.dispatch.messages import AskForLoad, QueryArrived
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from tests.unit.dispatch.some_policies import LateBinding
from tests.unit.dispatch.world import World, make_query

INT8 = "imagenet/lite0/int8@1"
FP32 = "imagenet/lite2/fp32@1"
LOAD_S = 0.5  # in ``FakeCostModel``


@pytest.mark.parametrize("policy", [MostAccurateFeasible, LateBinding])
def test_a_query_waits_for_the_load_and_is_served(policy: type[SelectionPolicy]) -> None:
    world = World(policy())
    world.add_worker("w0", [])
    query = world.ask(latency_ms=1000.0)
    assert query not in world.refused
    assert world.dispatcher.queued == 1
    world.tick(LOAD_S)
    world.add_worker("w0", [INT8])
    assert world.running["w0"].query_ids == (query,)
    world.finish("w0", after_s=0.010)
    assert query in world.completed


def test_a_query_whose_deadline_no_load_could_meet_is_refused_at_once() -> None:
    world = World()
    world.add_worker("w0", [])
    assert world.refused[world.ask(latency_ms=LOAD_S * 1e3)].reason is Reason.NOTHING_READY
    accurate = world.ask(latency_ms=LOAD_S * 1e3 + 30.0, min_accuracy=79.0)  # its variant: 40 ms
    assert world.refused[accurate].reason is Reason.NOTHING_READY
    hopeless = world.ask(latency_ms=10_000.0, min_accuracy=99.0)
    assert world.refused[hopeless].reason is Reason.NOTHING_READY


def test_a_query_held_in_vain_is_refused_at_its_deadline() -> None:
    world = World()
    world.add_worker("w0", [])
    query = world.ask(latency_ms=1000.0)
    world.tick(0.9)
    assert query not in world.refused
    world.tick(0.1)
    assert world.refused[query].reason is Reason.NOTHING_READY
    assert world.refused[query].retry_after_s is not None


def test_what_is_not_accurate_enough_is_not_what_lacks_a_profile() -> None:
    world = World()
    world.add_worker("w0", [INT8])
    query = world.ask(latency_ms=1000.0, min_accuracy=79.0)
    world.tick(1.0)
    assert "with min_accuracy 79 or more is loaded yet" in world.refused[query].message


def test_a_query_without_a_deadline_is_not_held_for_ever() -> None:
    world = World(limits=DispatchLimits(max_hold_s=5.0))
    world.add_worker("w0", [])
    query = world.ask()
    world.tick(4.9)
    assert query not in world.refused
    world.tick(0.2)
    assert world.refused[query].reason is Reason.NOTHING_READY


def test_the_first_query_to_wait_for_a_load_asks_for_it() -> None:
    world = World()
    world.add_worker("w0", [])

    def asked(now_s: float, **limits: object) -> list[AskForLoad]:
        query = make_query(len(world.asked) + 1, now_s, **limits)  # type: ignore[arg-type]
        world.asked[query.query_id] = query
        effects = world.dispatcher.handle(QueryArrived(query), now_s)
        return [effect for effect in effects if isinstance(effect, AskForLoad)]

    now_s = world.now_s
    assert asked(now_s, latency_ms=1000.0) == [AskForLoad("imagenet", 0.0)]
    assert asked(now_s, latency_ms=2000.0) == [], "it waits for the same"
    accurate = AskForLoad("imagenet", 79.0)
    assert asked(now_s, latency_ms=1000.0, min_accuracy=79.0) == [accurate]
    assert asked(now_s, latency_ms=10.0, min_accuracy=72.0) == [], "it is refused: no load helps"
    world.cancel(1)
    assert asked(now_s, latency_ms=1000.0) == [], "one still waits"
    world.cancel(3)
    assert asked(now_s, latency_ms=1000.0, min_accuracy=79.0) == [accurate], "none waited any more"


def test_what_is_held_counts_as_unmet_once_and_leaves_room_in_the_queue() -> None:
    world = World(limits=DispatchLimits(max_queued=8))
    world.add_worker("w0", [])
    for _ in range(2):
        world.ask(latency_ms=1000.0)
    one_more = world.ask(latency_ms=1000.0)
    assert world.refused[one_more].reason is Reason.NOTHING_READY
    world.tick(0.1)
    world.add_worker("w1", [])
    assert world.dispatcher.queued == 2
    assert world.dispatcher.take_counters().unmet == {"imagenet": 3}
    held = {("imagenet", 1.0, 0.0): [2, 2]}
    assert world.dispatcher.held == held, "a report that is lost loses no query that still waits"


def test_a_held_query_can_be_cancelled() -> None:
    world = World()
    world.add_worker("w0", [])
    query = world.ask(latency_ms=1000.0)
    world.cancel(query)
    world.add_worker("w0", [FP32])
    assert world.running == {}
    assert world.dispatcher.queued == 0


def test_what_was_deferred_is_held_when_all_that_could_serve_it_goes() -> None:
    world = World(LateBinding())
    world.add_worker("w0", [INT8])
    running, deferred = world.ask(), world.ask(latency_ms=2000.0)
    world.add_worker("w0", [])
    assert deferred not in world.refused
    world.finish("w0", after_s=0.010)
    assert running in world.completed
    world.add_worker("w0", [FP32])
    assert world.running["w0"].query_ids == (deferred,)


@pytest.mark.parametrize("policy", [BestValue, LateBinding])
def test_deferred_queries_whose_only_accurate_variant_goes_away_are_not_stranded(
    policy: type[SelectionPolicy],
) -> None:
    """Something else of their scope is still ready, but not accurate enough for them."""
    world = World(policy())
    world.add_worker("w0", [INT8, FP32])
    world.ask(latency_ms=10_000.0)
    held = world.ask(latency_ms=10_000.0, min_accuracy=79.0)  # time enough for a load
    refused = world.ask(latency_ms=LOAD_S * 1e3, min_accuracy=79.0)
    usual = world.ask(latency_ms=10_000.0)
    world.dispatcher.take_counters()
    world.add_worker("w0", [INT8])
    assert world.refused[refused].reason is Reason.TOO_INACCURATE
    assert {held, usual} <= world.open_ids
    assert world.dispatcher.take_counters().unmet == {"imagenet": 1}  # so scaling sees it
    world.finish()
    assert world.running["w0"].query_ids == (usual,)
    world.finish()
    assert not world.running
    world.add_worker("w0", [INT8, FP32])
    assert world.running["w0"].query_ids == (held,)
    assert world.running["w0"].variant_id == FP32


def test_nothing_is_held_for_an_accuracy_that_nothing_has() -> None:
    world = World()
    world.add_worker("w0", [INT8])
    assert world.refused[world.ask(min_accuracy=99.0)].reason is Reason.TOO_INACCURATE
    assert world.dispatcher.take_counters().unmet == {}
