"""Measuring accuracy on real sessions and real data, stopping early, comparing in pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import parser

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.dominated import in_pairs
from modelless.variants.making.session import Session
from modelless.variants.metrics import Score, find_metric
from modelless.variants.metrics.paired import compare_paired, compare_right
from modelless.variants.registry.dominance import Standing, find_dominated
from modelless.variants.registry.outcomes import Outcomes, details_of, latest_outcomes
from modelless.variants.registry.registry import Registry, open_registry
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation import measuring
from modelless.variants.validation.arrays import ArraySet
from modelless.variants.validation.measuring import (
    FEWEST_ITEMS,
    AnsweredBy,
    MeasuredAccuracy,
    measure_accuracy,
)
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
)
from modelless.variants.zoo.fashion_mnist import TASK as FASHION
from modelless.variants.zoo.fashion_mnist import FashionMnist

ROWS = Task(
    "rows",
    (TensorSpec("x", "FP32", (-1, 3)),),
    (TensorSpec("scores", "FP32", (-1, 3)),),
    "top-1",
)


class Echo:
    """Answers with its input, plus noise that depends on the input only."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self.batches: list[int] = []

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        x = inputs["x"]
        self.batches.append(len(x))
        return {"scores": x + self.noise * np.sin(1e4 * x * [1.0, 2.0, 3.0])}


def rows(count: int, seed: int = 0) -> ArraySet:
    """Items whose class is the largest of their three numbers."""
    x = np.random.default_rng(seed).random((count, 3), np.float32)
    digest = hashlib.sha256(x.tobytes()).hexdigest()
    return ArraySet("rows", ROWS, {"x": x}, x.argmax(axis=1).tolist(), lambda: digest)


TOP_1 = find_metric("top-1", ROWS)


# -- measuring --------------------------------------------------------------------------------


def test_what_is_right_is_counted_and_says_on_what() -> None:
    items = rows(250)
    told: list[tuple[int, int, Score | None]] = []
    session = Echo()
    found = measure_accuracy(session, items, TOP_1, on_progress=lambda *args: told.append(args))
    assert found.accuracy == Accuracy(
        100.0,
        "top-1",
        Provenance.MEASURED,
        f"rows (sha256 {items.sha256[:12]})",
        pytest.approx(98.49, abs=0.01),
        100.0,
        250,
    )
    assert session.batches == [32] * 7 + [26]
    assert [done for done, _, _ in told] == [*range(32, 250, 32), 250]
    assert {total for _, total, _ in told} == {250}


def test_runs_are_of_the_same_items_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    items = rows(300)
    whole = measure_accuracy(Echo(0.5), items, TOP_1)
    monkeypatch.setattr(measuring, "BATCH", 7)
    part = measure_accuracy(Echo(0.5), items, TOP_1, sample=120)
    assert part.accuracy.sample_count == 120
    assert 0 < part.accuracy.percent < 100
    assert (whole.evidence[:120] == part.evidence).all()


def test_it_stops_when_it_is_sure_enough() -> None:
    items = rows(5000)
    found = measure_accuracy(Echo(0.3), items, TOP_1, precision_percent=3.0)
    assert FEWEST_ITEMS <= found.score.count < 2000
    assert found.score.half_width_percent <= 3.0
    everything = measure_accuracy(Echo(0.3), items, TOP_1, precision_percent=0.1)
    assert everything.score.count == 5000
    few = measure_accuracy(Echo(), items, TOP_1, precision_percent=49.0)
    assert few.score.count >= FEWEST_ITEMS


@pytest.mark.parametrize(
    ("options", "said"),
    [({"sample": 0}, "sample"), ({"precision_percent": 0.0}, "precision")],
)
def test_options_out_of_range_are_refused(options: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        measure_accuracy(Echo(), rows(10), TOP_1, **options)


def test_agreement_takes_another_variants_answers_for_right() -> None:
    items = rows(400)
    agreement = find_metric("agreement", ROWS)
    reference = Echo(0.3)
    same = measure_accuracy(Echo(0.3), AnsweredBy(items, reference, ROWS, "echo"), agreement)
    assert (same.accuracy.percent, same.accuracy.metric) == (100.0, "agreement")
    assert "answers of echo to rows" in same.accuracy.source
    other = measure_accuracy(Echo(), AnsweredBy(items, reference, ROWS, "echo"), agreement)
    assert other.accuracy.percent == measure_accuracy(Echo(0.3), items, TOP_1).accuracy.percent


def test_fashion_mnist_is_as_accurate_as_the_zoo_says() -> None:
    entry = FashionMnist()
    images, labels = entry.test_split()
    items = ArraySet("test", FASHION, {"image": images}, labels.tolist(), lambda: "of the test")
    built = next(iter(entry.build(lambda *_: None)))
    session = Session(built.onnx_bytes)

    class Loaded:
        def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
            return session.run(inputs)

    found = measure_accuracy(Loaded(), items, find_metric("top-1", FASHION)).accuracy
    known = built.accuracy
    assert (found.percent, found.sample_count) == (pytest.approx(known.percent), 10_000)
    assert found.low_percent == pytest.approx(known.low_percent, abs=1e-3)
    assert found.high_percent == pytest.approx(known.high_percent, abs=1e-3)


# -- pairs ------------------------------------------------------------------------------------


def test_mcnemar_by_hand() -> None:
    one = np.array([True] * 90 + [True] * 9 + [False] * 1)
    other = np.array([True] * 90 + [False] * 9 + [True] * 1)
    found = compare_right(one, other)
    assert found.percent == 8.0
    assert found.p_value == pytest.approx(2 * (1 + 10) / 2**10)  # at most 1 of 10, both ways
    assert found.is_significant
    assert 0.0 < found.low_percent < 8.0 < found.high_percent
    back = compare_right(other, one)
    assert (back.percent, back.p_value) == (-8.0, pytest.approx(found.p_value))


def test_no_difference_seen_is_no_proof_of_none() -> None:
    found = compare_right(np.ones(50, np.bool_), np.ones(50, np.bool_))
    assert (found.percent, found.p_value) == (0.0, 1.0)
    assert found.low_percent < -1.0 < 1.0 < found.high_percent


def test_pairs_tell_apart_what_intervals_cannot() -> None:
    rng = np.random.default_rng(0)
    one = rng.random(2000) < 0.9
    other = one & (rng.random(2000) >= 0.012)  # wrong on 1.2 % more
    means = [find_metric("top-1", ROWS).percent(each) for each in (one, other)]
    assert 0.5 < means[0] - means[1] < 2.0
    assert compare_right(one, other).is_significant


def test_other_metrics_are_compared_by_the_bootstrap() -> None:
    number = Task(
        "n", (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),), "mae"
    )
    mae = find_metric("mae", number)
    rng = np.random.default_rng(1)
    right = rng.normal(size=200)
    good, bad = (np.stack([right, right + rng.normal(0, s, 200)], axis=1) for s in (0.1, 0.2))
    found = compare_paired(mae, good, bad)
    assert found.percent > 0
    assert found.is_significant
    assert found.low_percent <= found.percent <= found.high_percent
    same = compare_paired(mae, good, good)
    assert (same.percent, same.p_value) == (0.0, 1.0)
    with pytest.raises(InvalidInputError, match="as many of each"):
        compare_paired(mae, good, bad[:10])


# -- the store --------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry with two variants of ``rows``."""
    echo = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        echo (float[N, 3] x) => (float[N, 3] scores) { scores = Identity (x) }"""
    )
    with closing(open_registry(tmp_path)) as found:
        found.add_task(ROWS)
        found.add_model(Model("rows", "echo", "tiny"))
        for name in ("a", "b"):
            found.register_variant(
                task="rows",
                model="echo",
                name=name,
                precision=Precision.FP32,
                engine=Engine.ONNXRUNTIME_CPU,
                accuracy=Accuracy(50.0, "top-1", Provenance.PUBLISHED, "a page"),
                artifact=echo.SerializeToString(),
            )
        yield found


def keep(registry: Registry, variant_id: str, found: MeasuredAccuracy) -> None:
    """Store what was measured, as the command does."""
    registry.revise_accuracy(variant_id, found.accuracy, "measured", details_of(found, TOP_1))


def test_outcomes_are_kept_with_the_accuracy_that_holds(registry: Registry) -> None:
    one, other = "rows/echo/a@1", "rows/echo/b@1"
    items = rows(500)
    better, worse = (measure_accuracy(Echo(noise), items, TOP_1) for noise in (0.3, 0.32))
    keep(registry, one, better)
    assert latest_outcomes(registry.store, [one, other]).keys() == {one}
    keep(registry, other, worse)
    found = latest_outcomes(registry.store, [one, other])
    assert (found[one].is_right == better.evidence).all()
    assert found[one].compare(found[other]) == compare_right(better.evidence, worse.evidence)
    part = measure_accuracy(Echo(0.32), items, TOP_1, sample=100)
    keep(registry, other, part)
    shorter = found[one].compare(latest_outcomes(registry.store, [other])[other])
    assert shorter is not None
    assert shorter.count == 100
    keep(registry, other, measure_accuracy(Echo(0.32), rows(500, seed=1), TOP_1))
    assert found[one].compare(latest_outcomes(registry.store, [other])[other]) is None
    registry.revise_accuracy(one, better.accuracy, "by hand")
    assert one not in latest_outcomes(registry.store, [one])


def test_dominance_is_judged_in_pairs_where_there_are_some(registry: Registry) -> None:
    rng = np.random.default_rng(0)
    right = rng.random(2000) < 0.9
    items = rows(2000)
    found = measure_accuracy(Echo(), items, TOP_1)
    standings = {}
    for name, is_right in (("a", right), ("b", right & (rng.random(2000) >= 0.01))):
        percent = 100.0 * float(is_right.mean())
        accuracy = Accuracy(percent, "top-1", Provenance.MEASURED, "s", percent - 1, percent + 1)
        measured = MeasuredAccuracy(accuracy, found.score, is_right, found.set_sha256, 2000)
        keep(registry, f"rows/echo/{name}@1", measured)
        standings[name] = Standing(f"rows/echo/{name}@1", accuracy, {}, {})
    outcomes = latest_outcomes(registry.store, [each.variant_id for each in standings.values()])
    a, b = standings["a"], standings["b"]
    assert (in_pairs({})(a, b), in_pairs(outcomes)(a, b)) == (False, True)
    assert not in_pairs(outcomes)(b, a)


def outcomes_of(is_right: NDArray[np.bool_], seed: int = 0) -> Outcomes:
    return Outcomes("top-1", "a set", seed, is_right)


def test_the_same_on_enough_items_may_dominate() -> None:
    accuracy = Accuracy(90.0, "top-1", Provenance.MEASURED, "s", 88.0, 92.0)
    quick, slow = (
        Standing(name, accuracy, {1: (p50_s, p50_s, p50_s)}, {1: 1})
        for name, p50_s in (("z", 0.001), ("a", 0.002))
    )
    right = np.arange(400) % 10 > 0
    one_other = right.copy()
    one_other[[0, 1]] = one_other[[1, 0]]  # as many are right, but not the same
    for theirs, expected in (
        (outcomes_of(right), {"a": "z"}),
        (outcomes_of(one_other), {}),
        (outcomes_of(right, seed=1), {}),
        (outcomes_of(right[:299]), {}),
    ):
        judge = in_pairs({"z": outcomes_of(right), "a": theirs})
        assert find_dominated([quick, slow], judge) == expected
        assert find_dominated([slow, quick], judge) == expected
