"""Shots that are chosen: by what they tell, and by nothing that was not measured yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelless.profiler.cost_model.evaluation.hold_out import (
    SAMPLERS,
    sample_at_random,
    sample_by_choice,
)
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import FloatArray, IntArray, latencies_ms, multiples, parted

BOTH = pytest.mark.parametrize("name", SAMPLERS)


class Grouped:
    """Rows of three groups, of each of which one measurement tells all; notes what it is shown."""

    def __init__(self, latency_ms: FloatArray) -> None:
        self.groups = np.arange(len(latency_ms)) % 3
        self.latency_ms = latency_ms
        self.most_rows = 0

    def covariance(
        self, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> tuple[FloatArray, float]:
        np.testing.assert_array_equal(latency_ms, self.latency_ms[shots])
        assert not set(shots.tolist()) & set(rows.tolist())
        self.most_rows = max(self.most_rows, len(rows))
        is_open = ~np.isin(self.groups[rows], self.groups[shots])
        is_same = self.groups[rows][:, None] == self.groups[rows]
        return np.where(is_same & is_open, 1.0, 0.01 * np.eye(len(rows))), 0.01


def learner(rows: int) -> Grouped:
    return Grouped(np.arange(1.0, rows + 1.0))


@BOTH
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_so_many_rows_are_taken_once_each(name: str, count: int) -> None:
    known = learner(30)
    shots = SAMPLERS[name](known.covariance, known.latency_ms, count, 0)
    assert len(set(shots.tolist())) == len(shots) == count
    assert set(shots.tolist()) <= set(range(30))


@BOTH
def test_a_seed_gives_the_same_again_and_another_does_not(name: str) -> None:
    known = learner(300)
    drawn = [
        SAMPLERS[name](known.covariance, known.latency_ms, 5, seed).tolist()
        for seed in (0, 0, 1, 2, 3)
    ]
    assert drawn[0] == drawn[1]
    assert len({tuple(shots) for shots in drawn}) == 4


@pytest.mark.parametrize("seed", range(5))
def test_what_tells_most_of_the_rest_comes_next(seed: int) -> None:
    known = learner(30)
    shots = sample_by_choice(known.covariance, known.latency_ms, 3, seed)
    assert set(known.groups[shots].tolist()) == {0, 1, 2}


def test_few_chosen_shots_are_the_first_of_many() -> None:
    known = learner(30)
    few, many = (
        sample_by_choice(known.covariance, known.latency_ms, count, 4) for count in (3, 12)
    )
    np.testing.assert_array_equal(few, many[:3])


def test_a_choice_among_many_rows_stays_cheap() -> None:
    known = learner(2000)
    sample_by_choice(known.covariance, known.latency_ms, 4, 0)
    assert known.most_rows == 100


def steeper(power: float, seed: int) -> tuple[list[TableRow], list[TableRow]]:
    """(two devices, another that suffers from large models more, or less, than these do)."""
    rows = multiples({"a": 1.0, "b": 2.0, "new": 3.0}, models=40, seed=seed)
    training, wanted = parted(rows, "new")
    return training, [
        replace(one, latency_ms=one.latency_ms * (one.gmacs or 1.0) ** power) for one in wanted
    ]


@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_chosen_shots_tell_more_than_random_ones(power: float) -> None:
    training, wanted = steeper(power, 1)
    true_ms = latencies_ms(wanted)
    predictor = DevicePredictor(shipped_prior(), training, wanted)

    def error(name: str, seed: int) -> float:
        shots = np.sort(SAMPLERS[name](predictor.covariance, true_ms, 4, seed))
        rest = np.setdiff1d(np.arange(len(wanted)), shots)
        found_ms = predictor.predict(shots, true_ms[shots], rest).median_ms
        return float(np.abs(found_ms / true_ms[rest] - 1.0).mean())

    errors = {name: np.mean([error(name, seed) for seed in range(6)]) for name in SAMPLERS}
    assert errors["chosen"] < 0.75 * errors["random"], errors


def test_latencies_that_were_not_taken_change_no_choice() -> None:
    training, wanted = steeper(0.5, 1)
    true_ms = latencies_ms(wanted)
    predictor = DevicePredictor(shipped_prior(), training, wanted)
    shots = sample_by_choice(predictor.covariance, true_ms, 6, 0)
    other_ms = true_ms * np.exp(np.random.default_rng(0).normal(size=len(true_ms)))
    other_ms[shots] = true_ms[shots]
    np.testing.assert_array_equal(sample_by_choice(predictor.covariance, other_ms, 6, 0), shots)


def test_latencies_that_were_taken_count_in_what_comes_next() -> None:
    training, wanted = steeper(0.5, 1)
    true_ms = latencies_ms(wanted)
    predictor = DevicePredictor(shipped_prior(), training, wanted)
    flat_ms = np.full(len(true_ms), 5.0)
    chosen, other = (
        sample_by_choice(predictor.covariance, each, 8, 0) for each in (true_ms, flat_ms)
    )
    assert chosen.tolist() != other.tolist()


def test_random_shots_are_drawn_as_ever() -> None:
    """Figures that were published stay comparable."""
    shots = sample_at_random(learner(20).covariance, np.ones(20), 5, 3)
    expected = np.random.default_rng([3, 5]).permutation(20)[:5]
    np.testing.assert_array_equal(shots, expected)
