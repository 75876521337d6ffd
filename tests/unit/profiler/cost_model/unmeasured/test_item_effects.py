"""How an item fares elsewhere: from other devices only, and unknown where nobody ran it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelless.profiler.cost_model.unmeasured.features import NameCodes, encode, item_latency_log
from modelless.profiler.cost_model.unmeasured.item_effects import ItemEffects
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import FloatArray, multiples, row


def marks(training: list[TableRow], wanted: list[TableRow]) -> tuple[FloatArray, FloatArray]:
    vocabulary, roofline = NameCodes(), shipped_prior().roofline
    points = encode(training, vocabulary, roofline)
    elsewhere = ItemEffects(points, item_latency_log(training) - points.roofline_log)
    marked = elsewhere.add_to(encode(wanted, vocabulary, roofline))
    return marked.item_effect, marked.has_item_effect


def test_an_item_that_is_slow_for_its_size_is_marked_so() -> None:
    training = multiples({"a": 1.0, "b": 3.0})
    slow = [
        replace(one, latency_ms=5.0 * one.latency_ms) if one.model == "net3" else one
        for one in training
    ]
    wanted = [replace(one, device="new") for one in training[:20]]
    values, known = marks(slow, wanted)
    assert known.all()
    assert int(np.argmax(values)) == 3
    assert values[3] > marks(training, wanted)[0][3] + 1.0


def test_what_ran_nowhere_else_is_not_known() -> None:
    training = multiples({"a": 1.0})
    values, known = marks(training, [*training, row(device="b", model="unheard of")])
    assert not known.any()
    assert not values.any()


def test_another_resolution_and_another_source_are_other_items() -> None:
    training = multiples({"a": 1.0})
    wanted = [
        replace(training[0], device="b"),
        replace(training[0], device="b", resolution_px=32),
        replace(training[0], device="b", source="other"),
    ]
    assert marks(training, wanted)[1].tolist() == [1.0, 0.0, 0.0]


def test_the_order_of_training_rows_does_not_matter() -> None:
    training = multiples({"a": 1.0, "b": 3.0, "c": 0.1}, seed=2)
    wanted = [replace(one, device="new") for one in training[:20]]
    mixed = [training[number] for number in np.random.default_rng(0).permutation(len(training))]
    np.testing.assert_allclose(marks(training, wanted)[0], marks(mixed, wanted)[0], atol=1e-9)


def test_how_fast_a_device_is_says_nothing_of_its_items() -> None:
    wanted = [replace(one, device="new") for one in multiples({"a": 1.0})]
    slow, _ = marks(multiples({"a": 1.0, "b": 1000.0}), wanted)
    fast, _ = marks(multiples({"a": 1.0, "b": 0.001}), wanted)
    np.testing.assert_allclose(slow, fast, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_anything_to_learn_from(count: int) -> None:
    training = multiples({"a": 1.0})[:count]
    values, known = marks(training, multiples({"b": 1.0}))
    assert np.isfinite(values).all()
    assert int(known.sum()) == count
