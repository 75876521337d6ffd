"""Exploration: what is drawn, how probable that was, and that all else stays as it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.explanations import explain_receipt
from modelless.controller.dispatch.exploration import Exploration
from modelless.controller.dispatch.receipts import Receipt
from modelless.policies.reasons import Reason
from modelless.policies.seams import SelectionPolicy
from modelless.policies.selection.best_value.best_value import BestValue
from modelless.policies.selection.cheapest_feasible import CheapestFeasible

from .world import LADDER, World

INT8, FP32, LITE2 = LADDER


def exploring(selection: SelectionPolicy, share: float, seed: int = 0) -> World:
    world = World(selection)
    world.dispatcher = Dispatcher(
        world.instances,
        selection,
        np.random.default_rng(seed),
        world.limits,
        exploration=Exploration(share, np.random.default_rng((seed, 1))),
    )
    world.add_worker()
    return world


def served(world: World, queries: int, **limits: object) -> list[Receipt]:
    found = []
    for _ in range(queries):
        query = world.ask(**limits)
        while world.running:
            world.finish()
        receipt = world.dispatcher.receipt(query)
        assert receipt is not None
        assert receipt.outcome == "served"
        found.append(receipt)
    return found


def test_a_share_is_bound_to_what_meets_the_limits_with_its_probability() -> None:
    receipts = served(exploring(CheapestFeasible(), 0.5), 400, latency_ms=60.0, min_accuracy=72.0)
    chosen = Counter(receipt.variant_id for receipt in receipts)
    assert set(chosen) == {FP32, LITE2}
    assert chosen[LITE2] / 400 == pytest.approx(0.25, abs=0.08)
    for receipt in receipts:
        first = receipt.first_choice
        assert first is not None
        assert (first.variant_id, first.device_class) == (receipt.variant_id, "cpu-1")
        assert first.explored == (receipt.variant_id == LITE2)
        assert first.propensity == pytest.approx(0.25 if first.explored else 0.75)
        told = explain_receipt(receipt)
        assert told["first_choice"]["propensity"] == first.propensity
        assert told["reason"] == ("at-random" if first.explored else "cheapest-feasible")
        assert [row["variant"] for row in told["candidates"] if row["chosen"]] == [
            receipt.variant_id
        ]


def test_a_query_that_a_policy_defers_may_only_have_the_drawn_variant() -> None:
    receipts = served(exploring(BestValue(), 0.5), 200, latency_ms=300.0, min_accuracy=72.0)
    explored = [each for each in receipts if each.first_choice and each.first_choice.explored]
    assert 60 < len(explored) < 140
    assert {each.variant_id for each in explored} == {FP32, LITE2}
    for receipt in receipts:
        first = receipt.first_choice
        assert first is not None
        assert first.device_class == ""
        assert first.variant_id == (receipt.variant_id if first.explored else "")
        assert first.propensity == pytest.approx(0.25 if first.explored else 0.5)
        assert len(explain_receipt(receipt)["candidates"]) == 3


def test_an_explored_query_is_free_once_its_variant_is_gone() -> None:
    world = exploring(BestValue(), 0.999999)
    blocker = world.ask(latency_ms=1000.0, min_accuracy=78.0)
    waiting = world.ask(latency_ms=1000.0, min_accuracy=78.0)
    receipt = world.dispatcher.receipt(waiting)
    assert receipt is not None
    assert receipt.standing is not None
    assert receipt.standing.scope == LITE2
    assert world.running["w0"].query_ids == (blocker,)
    world.add_worker("w1")
    world.lose("w0")
    while world.running:
        world.finish(next(iter(world.running)))
    assert receipt.outcome == "served"
    assert receipt.first_choice is not None
    assert receipt.first_choice.variant_id == LITE2


def test_what_nothing_can_serve_is_not_explored() -> None:
    world = exploring(CheapestFeasible(), 0.999999)
    receipt = world.dispatcher.receipt(world.ask(latency_ms=1.0))
    assert receipt is not None
    assert receipt.outcome == "refused"
    assert receipt.reason is Reason.TOO_SLOW
    assert receipt.first_choice is not None
    assert receipt.first_choice.propensity == 1.0
    assert not receipt.first_choice.explored


def test_without_a_share_receipts_say_nothing_of_it() -> None:
    world = World(CheapestFeasible())
    world.add_worker()
    (receipt,) = served(world, 1)
    assert receipt.first_choice is None
    assert "first_choice" not in explain_receipt(receipt)
