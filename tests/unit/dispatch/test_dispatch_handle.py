"""The dispatcher handles every event, and returns the effects of rare ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import pytest

from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.messages import (
    AccuraciesRevised,
    Advised,
    BatchDone,
    BatchFailed,
    BatchReturned,
    CacheHit,
    CatalogChanged,
    Complete,
    DispatchEvent,
    Execute,
    LoadChanged,
    PolicyFailed,
    QueryArrived,
    QueryCancelled,
    SelectionChanged,
    ShutDown,
    Tick,
    WorkerLost,
    WorkerReport,
    WorkerReported,
)
from modelless.policies.selection.most_accurate_feasible import MostAccurateFeasible
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

from .world import FakeCostModel, World, make_query, make_variant

INT8, NEW = "imagenet/lite0/int8@1", "imagenet/lite2/int8@1"


class Forgetful(MostAccurateFeasible):
    """Loses the plan."""

    def on_plan(self, shares: Mapping[str, Mapping[Placement, float]]) -> None:
        raise KeyError(next(iter(shares)))


def test_a_policy_that_fails_on_a_plan_is_named_in_an_effect() -> None:
    world = World(Forgetful())
    effects = world.dispatcher.handle(Advised({"imagenet": {}}), world.now_s)
    assert effects == [PolicyFailed("Forgetful.on_plan raised KeyError: 'imagenet'")]
    world.add_worker()
    query = world.ask()
    world.finish()
    assert query in world.completed


def test_a_variant_of_a_new_catalog_is_served() -> None:
    world = World(variants={INT8: (0.010, 70.0)})
    variants = {name: make_variant(name, accuracy) for name, accuracy in ((INT8, 70), (NEW, 90))}
    cost_model = FakeCostModel({INT8: 0.010, NEW: 0.030})
    dispatcher = world.dispatcher
    assert dispatcher.handle(CatalogChanged(variants, cost_model), world.now_s) == []
    report = WorkerReport("w0", "cpu-1", (INT8, NEW))
    assert dispatcher.handle(WorkerReported(report), world.now_s) == []
    query = make_query(1, world.now_s, min_accuracy=80.0)
    effects = dispatcher.handle(QueryArrived(query), world.now_s)
    assert effects == [Execute(0, "w0", NEW, (1,))]
    dispatcher.handle(BatchDone(0, 0.030), world.now_s + 0.030)
    assert [placement.variant_id for placement, *_ in cost_model.observed] == [NEW]


def test_a_demoted_variant_counts_for_its_measured_accuracy_until_it_returns() -> None:
    world = World(variants={INT8: (0.010, 90.0), NEW: (0.030, 80.0)})
    world.add_worker()
    dispatcher = world.dispatcher

    def served_by(min_accuracy: float) -> str:
        query = world.ask(min_accuracy=min_accuracy)
        world.finish()
        receipt = dispatcher.receipt(query)
        assert receipt is not None
        return receipt.variant_id

    assert served_by(75.0) == INT8
    dispatcher.handle(AccuraciesRevised({INT8: 60.0}), world.now_s)
    assert served_by(75.0) == NEW
    assert dispatcher.instances.variants[INT8].accuracy.percent == 60.0
    variants = {name: make_variant(name, accuracy) for name, accuracy in ((INT8, 90), (NEW, 80))}
    cost_model = FakeCostModel({INT8: 0.010, NEW: 0.030})
    dispatcher.handle(CatalogChanged(variants, cost_model), world.now_s)
    assert served_by(75.0) == NEW
    dispatcher.handle(AccuraciesRevised({}), world.now_s)
    assert served_by(75.0) == INT8


def test_every_event_is_handled_by_an_empty_dispatcher() -> None:
    events: list[DispatchEvent] = [
        QueryCancelled(1), BatchDone(1, 0.1), BatchFailed(1, worker_lost=False),
        BatchReturned(1, 0.1), WorkerReported(WorkerReport("w0", "cpu-1", ())), WorkerLost("w0"),
        LoadChanged(Load()), Advised({}), CatalogChanged({}, FakeCostModel({})),
        AccuraciesRevised({INT8: 40.0}), Tick(),
            SelectionChanged(MostAccurateFeasible(), None), ShutDown(),
    ]  # fmt: skip
    assert {type(event) for event in events} == {*get_args(DispatchEvent)} - {
        QueryArrived,
        CacheHit,
    }
    world = World()
    assert [world.dispatcher.handle(event, 1.0) for event in events] == [[]] * len(events)
    assert world.dispatcher.open_queries == 0


def test_what_the_cache_answers_is_served_without_demand_or_cost() -> None:
    world = World()
    dispatcher = world.dispatcher
    in_time, late = make_query(1, 1.0, latency_ms=100.0), make_query(2, 0.5, latency_ms=100.0)
    for query in (in_time, late):
        effects = dispatcher.handle(CacheHit(query, INT8), 1.002)
        assert effects == [Complete(query.query_id, 0)]
    assert dispatcher.open_queries == 0
    receipts = [dispatcher.receipt(query_id) for query_id in (1, 2)]
    told = [explain_receipt(receipt) for receipt in receipts if receipt is not None]
    assert [each["outcome"] for each in told] == ["served", "served-late"]
    for each in told:
        assert (each["reason"], each["cached"], each["cost_usd"]) == ("cached", True, 0.0)
        assert (each["variant"], each["worker"], each["attempts"]) == (INT8, None, 0)
    assert told[0]["observed_latency_ms"] == pytest.approx(2.0)
    counters = dispatcher.take_counters()
    assert counters.outcomes == {"served": 1, "served-late": 1}
    assert counters.meters.cache_hits == {"imagenet": 2}
    assert sum(counters.meters.latencies["imagenet"][:-1]) == 2.0
    assert (counters.arrivals, counters.served, counters.unmet) == ({}, {}, {})
