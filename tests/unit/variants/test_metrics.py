"""Metrics against other people's implementations, by hand, and at their edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import f1_score, top_k_accuracy_score

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.common.intervals import recommended_sample_size, wilson_percent
from modelless.variants.metrics import Metric, find_metric, score
from modelless.variants.metrics.detection import match, overlaps
from modelless.variants.metrics.metric import standard_error
from modelless.variants.metrics.sequences import edits
from modelless.variants.validation.expected import Boxes
from modelless.variants.vocabulary import Task, TensorSpec


def task(*outputs: TensorSpec, labels: tuple[str, ...] = ()) -> Task:
    """A task with these outputs."""
    return Task("a-task", (TensorSpec("x", "FP32", (-1, 2)),), outputs, "top-1", labels=labels)


CLASSES = task(TensorSpec("scores", "FP32", (-1, 5)))
INDEX = task(TensorSpec("label", "INT64", (-1,)))
NUMBER = task(TensorSpec("y", "FP32", (-1, 1)))
TEXT = task(TensorSpec("steps", "INT64", (-1, 4)), labels=("", "a", "b"))
OBJECTS = task(
    TensorSpec("boxes", "FP32", (-1, -1, 4)),
    TensorSpec("scores", "FP32", (-1, -1)),
    TensorSpec("classes", "INT64", (-1, -1)),
)


def percent(metric: Metric, outputs: dict[str, Any], expected: Sequence[Any]) -> float:
    """What a metric makes of one batch."""
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return metric.percent(metric.evidence(arrays, expected))


# -- classes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_is_that_of_scikit_learn(k: int) -> None:
    rng = np.random.default_rng(k)
    scores, right = rng.random((300, 5), np.float32), rng.integers(5, size=300)
    expected = 100 * top_k_accuracy_score(right, scores, k=k)
    assert percent(find_metric(f"top-{k}", CLASSES), {"scores": scores}, right) == pytest.approx(
        expected
    )


def test_of_equal_scores_the_first_class_counts_as_the_answer() -> None:
    flat = np.zeros((3, 5), np.float32)
    right = find_metric("top-1", CLASSES).evidence({"scores": flat}, [0, 1, 4])
    assert right.tolist() == [True, False, False]
    right = find_metric("top-2", CLASSES).evidence({"scores": flat}, [0, 1, 4])
    assert right.tolist() == [True, True, False]


def test_answers_that_are_no_numbers_are_wrong() -> None:
    scores = np.array([[np.nan] * 5, [np.nan, 1, 0, 0, 0]], np.float32)
    metric = find_metric("top-1", CLASSES)
    assert metric.evidence({"scores": scores}, [0, 1]).tolist() == [False, True]
    assert metric.evidence({"scores": scores}, [0, 0]).tolist() == [False, False]
    assert find_metric("macro-f1", CLASSES).evidence({"scores": scores}, [0, 1]).tolist() == [
        [0, -1],
        [1, 1],
    ]


def test_a_task_may_answer_with_an_index() -> None:
    assert percent(find_metric("top-1", INDEX), {"label": [0, 1, 2, 2]}, [0, 1, 2, 3]) == 75.0
    with pytest.raises(InvalidInputError, match="top-1"):
        find_metric("top-2", INDEX)


def test_macro_f1_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        right, answer = rng.integers(6, size=(2, 40))
        expected = 100 * f1_score(right, answer, average="macro")
        metric = find_metric("macro-f1", INDEX)
        assert percent(metric, {"label": answer}, right) == pytest.approx(expected)


def test_a_metric_that_does_not_fit_the_outputs_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"y FP32 \[-1, 1\]"):
        find_metric("top-1", NUMBER)
    with pytest.raises(InvalidInputError, match="top-1 to top-4"):
        find_metric("top-5", CLASSES)
    for name, of in (("mae", CLASSES), ("map", CLASSES), ("cer", CLASSES)):
        with pytest.raises(InvalidInputError, match="outputs of task"):
            find_metric(name, of)
    with pytest.raises(NotFoundError, match="macro-f1"):
        find_metric("top-0", CLASSES)


# -- numbers ----------------------------------------------------------------------------------


def test_errors_are_told_against_the_best_constant() -> None:
    right = [1.0, 2.0, 3.0, 10.0]
    y = np.array([[1.0], [2.0], [3.0], [6.0]], np.float32)
    mae = find_metric("mae", NUMBER)
    evidence = mae.evidence({"y": y}, right)
    assert mae.figure(evidence) == "MAE 1"
    assert mae.percent(evidence) == pytest.approx(100 * (1 - 4 / 10))  # the median misses by 10
    rmse = find_metric("rmse", NUMBER)
    assert rmse.figure(evidence) == "RMSE 2"
    assert rmse.percent(evidence) == pytest.approx(100 * (1 - 2 / np.std(right)))
    assert find_metric("r2", NUMBER).percent(evidence) == pytest.approx(
        100 * (1 - 4 / np.var(right))
    )


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_errors_at_their_ends(name: str) -> None:
    metric = find_metric(name, NUMBER)
    perfect = metric.evidence({"y": np.array([[1.0], [2.0]])}, [1.0, 2.0])
    assert metric.percent(perfect) == 100.0
    assert metric.percent(metric.evidence({"y": np.array([[9.0], [-9.0]])}, [1.0, 2.0])) == 0.0
    assert metric.percent(metric.evidence({"y": np.array([[1.0], [1.1]])}, [1.0, 1.0])) == 0.0
    with pytest.raises(InvalidInputError, match="finite"):
        metric.evidence({"y": np.array([[np.nan]])}, [1.0])


# -- sequences --------------------------------------------------------------------------------


def test_edits() -> None:
    words = (("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("a", "a", 0))
    for one, other, count in words:
        assert edits([*map(ord, one)], [*map(ord, other)]) == count


def test_sequences_are_judged_without_what_fills_them_up() -> None:
    steps = {"steps": np.array([[1, 0, 2, -1], [1, 1, 1, 1]])}
    expected = [(1, 2), (1, 1, 1)]
    assert percent(find_metric("exact-match", TEXT), steps, expected) == 50.0
    cer = find_metric("cer", TEXT)
    evidence = cer.evidence(steps, expected)
    assert evidence.tolist() == [[0, 2], [1, 3]]
    assert (cer.percent(evidence), cer.figure(evidence)) == (80.0, "CER 20.00%")
    assert percent(cer, steps, [(), ()]) == 0.0


# -- boxes ------------------------------------------------------------------------------------


def boxes(*corners: Sequence[float], classes: Sequence[int] = ()) -> Boxes:
    """Objects, of class 0 unless said otherwise."""
    return Boxes(
        np.array(corners, np.float64).reshape(-1, 4),
        np.array(classes or [0] * len(corners), np.int64),
    )


def detected(*found: tuple[Sequence[float], float, int]) -> dict[str, NDArray[Any]]:
    """One picture's outputs."""
    return {
        "boxes": np.array([[box for box, _, _ in found]], np.float32).reshape(1, -1, 4),
        "scores": np.array([[sure for _, sure, _ in found]], np.float32),
        "classes": np.array([[kind for _, _, kind in found]], np.int64),
    }


def test_overlap() -> None:
    one = np.array([[0, 0, 2, 2], [5, 5, 5, 5]], np.float64)
    other = np.array([[1, 1, 3, 3], [0, 0, 2, 2]], np.float64)
    assert overlaps(one, other).tolist() == [[pytest.approx(1 / 7), 1.0], [0.0, 0.0]]


def test_average_precision_by_hand() -> None:
    metric = find_metric("map", OBJECTS)
    truth = boxes((0, 0, 10, 10), (20, 20, 30, 30))
    right = ((0, 0, 10, 10), 0.9, 0)
    assert percent(metric, detected(right, ((20, 20, 30, 30), 0.8, 0)), [truth]) == 100.0
    # One of two objects: precision 1 up to a recall of one half, 51 of 101 levels.
    assert percent(metric, detected(right), [truth]) == pytest.approx(100 * 51 / 101)
    # A surer false alarm halves the precision; the other class's detection counts for nothing.
    alarm = ((50, 50, 60, 60), 0.95, 0)
    other_class = ((20, 20, 30, 30), 0.99, 1)
    assert percent(metric, detected(right, alarm, other_class), [truth]) == pytest.approx(
        100 * 51 / 101 / 2
    )
    # IoU 0.8 passes seven of the ten thresholds.
    assert percent(metric, detected(((0, 0, 10, 8), 0.9, 0)), [boxes((0, 0, 10, 10))]) == (
        pytest.approx(70.0)
    )
    assert percent(metric, detected(((0, 0, 1, 1), 0.0, 0)), [truth]) == 0.0
    assert percent(metric, detected(right), [boxes()]) == 0.0


def test_an_object_is_found_once() -> None:
    twice = np.array([[0, 0, 10, 10], [0, 0, 10, 10]], np.float64)
    found = match(twice, np.array([0.5, 0.9]), np.array([0, 0]), boxes((0, 0, 10, 10)))
    assert found.scores.tolist() == [0.9, 0.5]
    assert found.is_hit[0].tolist() == [True, False]


# -- intervals --------------------------------------------------------------------------------


def test_proportions_have_wilsons_interval() -> None:
    metric = find_metric("top-1", INDEX)
    found = score(metric, np.arange(200) < 150)
    assert (found.percent, found.count) == (75.0, 200)
    assert (found.low_percent, found.high_percent) == wilson_percent(150, 200)


def test_the_bootstrap_finds_the_standard_error_of_a_mean() -> None:
    sample = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = standard_error(lambda rows: float(sample[rows].mean()), 400)
    assert found == pytest.approx(sample.std() / 20.0, rel=0.15)
    assert standard_error(lambda rows: float(sample[rows].mean()), 1) == 0.0


def test_intervals_cover_what_they_should() -> None:
    rng = np.random.default_rng(0)
    metric = find_metric("macro-f1", INDEX)

    def draw(count: int) -> NDArray[np.int64]:
        right = rng.choice(4, count, p=[0.4, 0.3, 0.2, 0.1])
        answer = np.where(rng.random(count) < 0.2, rng.integers(4, size=count), right)
        return np.stack([right, answer], axis=1)

    truth = metric.percent(draw(1_000_000))
    found = [score(metric, draw(200)) for _ in range(100)]
    hits = sum(each.low_percent <= truth <= each.high_percent for each in found)
    assert 88 <= hits <= 99


def test_an_interval_lies_around_the_mean_average_precision() -> None:
    rng = np.random.default_rng(1)
    metric = find_metric("map", OBJECTS)
    rows = np.empty(60, np.object_)
    for picture in range(60):
        corner = rng.uniform(0, 80, (4, 2))
        truth = np.concatenate([corner, corner + rng.uniform(15, 60, (4, 2))], axis=1)
        kinds = rng.integers(10, size=4)
        near = truth + rng.normal(0, 4, truth.shape)
        rows[picture] = match(near, rng.random(4), kinds, Boxes(truth, kinds))
    found = score(metric, rows)
    below, above = found.percent - found.low_percent, found.high_percent - found.percent
    assert below == pytest.approx(above)
    assert 1.0 < below < 10.0


def test_few_perfect_items_are_no_certainty() -> None:
    cer = find_metric("cer", TEXT)
    found = score(cer, np.array([[0, 4]] * 20))
    assert found.percent == found.high_percent == 100.0
    assert found.low_percent == pytest.approx(wilson_percent(20, 20)[0])
    single = score(cer, np.array([[1, 4]]))
    assert single.low_percent < 75.0 < single.high_percent
    with pytest.raises(InvalidInputError, match="1 or more"):
        score(cer, np.zeros((0, 2)))


@pytest.mark.parametrize(("half_width", "expected"), [(1.0, 90.0), (0.5, 75.0), (5.0, 50.0)])
def test_the_recommended_sample_is_the_smallest(half_width: float, expected: float) -> None:
    count = recommended_sample_size(half_width, expected)
    fewer = count - count // 50
    ends = [wilson_percent(round(expected / 100 * n), n) for n in (fewer, count)]
    widths = [(high - low) / 2 for low, high in ends]
    assert widths[0] > half_width
    assert widths[1] == pytest.approx(half_width, rel=2e-3)


def test_the_recommended_sample_is_the_textbooks() -> None:
    assert recommended_sample_size(5.0) == pytest.approx(385, abs=5)
    assert recommended_sample_size(1.0) == pytest.approx(9604, abs=5)
    assert recommended_sample_size(1.0, confidence=0.99) > 16_000
    for wrong in ((0.0, 50.0, 0.95), (1.0, 101.0, 0.95), (1.0, 50.0, 1.0)):
        with pytest.raises(InvalidInputError):
            recommended_sample_size(*wrong)
