"""The trial is fair: nothing judged was seen, all get the same, figures are what they say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.evaluation import hold_out
from modelless.profiler.cost_model.evaluation.baselines import BASELINES
from modelless.profiler.cost_model.evaluation.hold_out import (
    MODELLESS,
    Holdout,
    HoldoutCase,
    MethodScore,
    evaluate,
    plan_cases,
)
from modelless.profiler.cost_model.unmeasured.device_predictor import Prediction
from modelless.profiler.cost_model.unmeasured.features import sort_rows
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.measure.table import TableRow

from .worlds import FloatArray, IntArray, latencies_ms, multiples, row, varied

METHODS = [MODELLESS, *BASELINES]


def scores_of(
    rows: Sequence[TableRow],
    training: Sequence[TableRow] | None = None,
    holdout: Sequence[str] = (),
    shots: Sequence[int] = (0, 5),
    seeds: int = 1,
) -> list[MethodScore]:
    trials = plan_cases(rows, training, [Holdout.of(text) for text in holdout])
    return [score for trial in trials for score in evaluate(trial, shipped_prior(), shots, seeds)]


def figures(scores: Sequence[MethodScore]) -> dict[tuple[str, str, int, str], list[float]]:
    """All that was found out, by what it is about; NaN for None."""
    return {
        (one.source, one.device, one.shots, one.method): [
            math.nan if value is None else value
            for value in asdict(one).values()
            if not isinstance(value, str)
        ]
        for one in scores
    }


def assert_alike(first: Sequence[MethodScore], second: Sequence[MethodScore], rel: float) -> None:
    here, there = figures(first), figures(second)
    assert here.keys() == there.keys()
    for key, values in here.items():
        # Nothing is nearer to 0 than rounding of per cents.
        assert values == pytest.approx(there[key], rel=rel, abs=1e-9, nan_ok=True), key


class Spy:
    """Stands in for the predictor and a baseline, and notes what they were given."""

    calls: ClassVar[list[tuple[str, list[int], list[float], list[int]]]] = []

    def __init__(self, *args: object) -> None:
        self.wanted: Sequence[TableRow] = args[2] if args[0] is PRIOR else args[1]  # type: ignore[assignment]

    def note(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> FloatArray:
        self.calls.append((type(self).__name__, shots.tolist(), latency_ms.tolist(), rows.tolist()))
        return latencies_ms(self.wanted)[rows]


PRIOR = shipped_prior()


class Oracle(Spy):
    """Knows all, within half."""

    def predict(self, shots: IntArray, latency_ms: FloatArray, rows: IntArray) -> Prediction:
        truth_ms = self.note(shots, latency_ms, rows)
        return Prediction(truth_ms, truth_ms / 2.0, truth_ms * 2.0)


class Half(Spy):
    """Says half of the truth by every name."""

    def predict(
        self, _: str, shots: IntArray, latency_ms: FloatArray, rows: IntArray
    ) -> FloatArray:
        return self.note(shots, latency_ms, rows) / 2.0


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    Spy.calls.clear()
    monkeypatch.setattr(hold_out, "DevicePredictor", Oracle)
    monkeypatch.setattr(hold_out, "Baselines", Half)
    monkeypatch.setattr(hold_out, "BASELINES", ("half", "again"))
    yield Spy.calls
    Spy.calls.clear()


def test_shots_are_the_same_for_all_and_never_judged(spies: list[Any]) -> None:
    rows = varied(devices=2, models=15)
    scores_of(rows, shots=(0, 1, 5, 14), seeds=3)
    assert len(spies) == 2 * 4 * 3 * 3
    ordered = sort_rows(rows)
    wanted = {device: [one for one in ordered if one.device == device] for device in ("d0", "d1")}
    for number in range(0, len(spies), 3):
        drawn = [call[1:] for call in spies[number : number + 3]]
        assert drawn[0] == drawn[1] == drawn[2]
        given, seen_ms, judged = drawn[0]
        assert sorted(given + judged) == list(range(15))
        device = "d0" if number < len(spies) / 2 else "d1"
        assert seen_ms == [wanted[device][shot].latency_ms for shot in given]


def test_shots_are_those_of_the_sampler(spies: list[Any]) -> None:
    shown: list[list[float]] = []

    def last(_: object, latency_ms: FloatArray, count: int, seed: int) -> IntArray:
        shown.append(latency_ms.tolist())
        return np.arange(len(latency_ms))[::-1][:count]

    (trial,) = plan_cases(varied(devices=1, models=15), None, [])
    evaluate(trial, PRIOR, (3,), 2, sampler=last)
    true_ms = latencies_ms(trial.wanted).tolist()
    assert [len(each) for each in shown] == [8, 8]  # of half of the items
    for number, each in enumerate(shown):
        assert [call[2] for call in spies[3 * number : 3 * number + 3]] == [each[-3:]] * 3
        assert {true_ms[shot] for shot in spies[3 * number][1]} == set(each[-3:])


@pytest.mark.parametrize("count", [1, 5, 20, 30])
def test_no_row_of_a_measured_item_is_judged(spies: list[Any], count: int) -> None:
    rows = [replace(one, batch=batch) for one in varied(1, 12) for batch in (1, 2, 4)]
    (trial,) = plan_cases(rows, None, [])
    evaluate(trial, PRIOR, (count,), 3)
    assert len(spies) == 9
    for _, given, _, judged in spies:
        assert len(given) == count
        assert judged
        measured = {trial.wanted[number].model for number in given}
        assert not measured & {trial.wanted[number].model for number in judged}
        unmeasured = [one for one in trial.wanted if one.model not in measured]
        assert len(judged) == len(unmeasured)


def test_seeds_draw_other_shots(spies: list[Any]) -> None:
    scores_of(varied(devices=1, models=40), shots=(5,), seeds=6)
    assert len({tuple(call[1]) for call in spies}) == 6


def test_figures_are_what_they_are_called(spies: list[Any]) -> None:
    by_method = {one.method: one for one in scores_of(varied(devices=1, models=15), shots=(3,))}
    own, half = by_method[MODELLESS], by_method["half"]
    assert (own.points, own.seeds, own.shots, own.device) == (12, 1, 3, "d0")
    assert (own.mape_percent, own.median_error_percent, own.within_10_percent) == (0.0, 0.0, 100.0)
    assert own.rank_correlation == pytest.approx(1.0)
    assert own.band_coverage_percent == 100.0
    assert own.band_width == pytest.approx(4.0)
    assert half.mape_percent == half.median_error_percent == pytest.approx(50.0)
    assert half.within_10_percent == 0.0
    assert half.rank_correlation == pytest.approx(1.0)
    assert half.band_coverage_percent is None


def test_a_number_of_shots_that_leaves_nothing_to_judge_is_left_out() -> None:
    rows = multiples({"a": 1.0, "b": 2.0}, models=6)
    found = {one.shots for one in scores_of(rows, shots=(0, 5, 6, 7, 50))}
    assert found == {0, 5}


def test_one_row_is_judged_unseen_and_has_no_rank() -> None:
    scores = scores_of([row(), row(device="b")], shots=(0, 1))
    assert [(one.device, one.shots, one.points) for one in scores] == [
        (device, 0, 1) for device in "ab" for _ in METHODS
    ]
    assert {one.rank_correlation for one in scores} == {None}


def test_equal_latencies_have_no_rank() -> None:
    scores = scores_of(multiples({"a": 1.0, "b": 1.0}, latency_ms=5.0))
    assert {one.rank_correlation for one in scores} == {None}
    json.dumps([one.document() for one in scores], allow_nan=False)


@pytest.mark.parametrize(
    "rows",
    [
        [row()],
        [row(), row(model="other")],
        multiples({"a": 1.0, "b": 2.0})[:21],
        multiples({"a": 1e-3, "b": 1e6}),
        varied(devices=3, models=8),
        multiples({"a": 1.0, "b": 2.0}, gmacs=None, params_m=None, resolution_px=None),
    ],
)
def test_every_figure_is_finite_or_none(rows: list[TableRow]) -> None:
    scores = scores_of(rows, shots=(0, 1, 5), seeds=2)
    json.dumps([one.document() for one in scores], allow_nan=False)
    for one in scores:
        assert one.mape_low_percent <= one.mape_percent <= one.mape_high_percent * (1 + 1e-9)
        assert 0.0 <= one.within_10_percent <= 100.0
        assert one.rank_correlation is None or -1.0 <= one.rank_correlation <= 1.0 + 1e-9


def test_the_same_seed_gives_the_same() -> None:
    rows = varied(devices=3, models=25)
    first, second = (scores_of(rows, shots=(0, 5), seeds=2) for _ in range(2))
    assert first == second


PROGRAM = """
import json
from tests.unit.profiler.cost_model.unmeasured.test_evaluation import scores_of
from tests.unit.profiler.cost_model.unmeasured.worlds import varied
print(json.dumps([one.document() for one in scores_of(varied(devices=2, models=12))]))
"""


def test_another_process_finds_the_same(pytestconfig: pytest.Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    there = [MethodScore(**document) for document in json.loads(done.stdout)]
    assert_alike(scores_of(varied(devices=2, models=12)), there, 1e-9)


def test_the_order_of_rows_does_not_matter() -> None:
    rows = varied(devices=3, models=25)
    mixed = [rows[number] for number in np.random.default_rng(1).permutation(len(rows))]
    assert_alike(scores_of(rows), scores_of(mixed), 1e-6)


def test_the_order_of_devices_does_not_matter_to_medians() -> None:
    rows = varied(devices=3, models=25)
    tables = [[one for one in rows if one.device == device] for device in ("d2", "d0", "d1")]
    first, second = (
        {
            (one.device, one.shots): one.mape_percent
            for one in scores_of(some)
            if one.method == MODELLESS
        }
        for some in (rows, [one for table in tables for one in table])
    )
    assert first == pytest.approx(second, rel=1e-6)


def test_the_same_rows_twice_are_the_same_rows() -> None:
    rows = varied(devices=3, models=20)
    assert_alike(scores_of(rows), scores_of(rows + rows), 1e-6)


def test_what_is_judged_is_never_in_training() -> None:
    rows = varied(devices=3, models=20)
    (first, *_) = plan_cases(rows, list(rows), [])
    assert not set(first.wanted) & set(first.training)


@pytest.mark.parametrize(
    ("holdout", "devices"),
    [
        ([], ["a", "b", "c"]),
        (["device=b"], ["b"]),
        (["device=b", "device=c"], ["b", "c"]),
        (["family=family-1"], ["a", "b", "c"]),
        (["device=b", "family=family-1"], ["a", "b", "c"]),
        (["source=lab"], ["a", "b", "c"]),
    ],
)
def test_what_is_held_out_is_in_no_training(holdout: list[str], devices: list[str]) -> None:
    rows = multiples({"a": 1.0, "b": 2.0, "c": 3.0})
    parts = [Holdout.of(text) for text in holdout]
    trials = plan_cases(rows, None, parts)
    assert [trial.wanted[0].device for trial in trials] == devices
    for trial in trials:
        assert not set(trial.wanted) & set(trial.training)
        assert len({one.device for one in trial.wanted}) == 1
        for part in parts:
            assert not any(part.holds(one) for one in trial.training)
    if not holdout:
        assert all(len(trial.training) == 40 for trial in trials)
        assert all(
            trial.wanted[0].device not in {t.device for t in trial.training} for trial in trials
        )


def test_a_device_of_two_sources_is_two_devices() -> None:
    rows = [*multiples({"a": 1.0}), *multiples({"a": 2.0}, source="other")]
    trials = plan_cases(rows, None, [])
    assert [(one.wanted[0].source, len(one.wanted), len(one.training)) for one in trials] == [
        ("lab", 20, 20),
        ("other", 20, 20),
    ]


def test_with_training_nothing_of_the_tables_is_learned_from() -> None:
    rows = multiples({"new": 2.0})
    known = multiples({"a": 1.0, "b": 3.0}, seed=5)
    (trial,) = plan_cases(rows, known, [])
    assert set(trial.training) == set(known)
    assert set(trial.wanted) == set(rows)


def test_a_holdout_holds_for_training_tables_too() -> None:
    (trial,) = plan_cases(
        multiples({"x": 1.0}), multiples({"x": 1.0, "y": 2.0}), [Holdout.of("device=x")]
    )
    assert {one.device for one in trial.training} == {"y"}


@pytest.mark.parametrize(
    "value", ["QCS8550 (Proxy)", "a=b", "=", "[red]", "ü ☃", "x" * 5000, "'\""]
)
def test_values_of_holdouts_are_taken_as_they_are(value: str) -> None:
    holdout = Holdout.of(f"device={value}")
    assert (holdout.part, holdout.value) == ("device", value)
    rows = [row(), row(device=value)]
    (trial,) = plan_cases(rows, None, [holdout])
    assert (trial.wanted, trial.training) == ([rows[1]], [rows[0]])


@pytest.mark.parametrize(
    "text", ["", "device", "device=", "=x", "latency_ms=3", "Device=x", "batch=1", " device=x"]
)
def test_what_is_no_holdout_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--holdout.*one of device="):
        Holdout.of(text)


def test_a_holdout_of_nothing_tells_what_there_is() -> None:
    with pytest.raises(InvalidInputError, match=r"'d9'; allowed: one of d0, d1"):
        plan_cases(varied(devices=2), None, [Holdout.of("device=d9")])


def test_latencies_that_are_judged_change_only_the_judging() -> None:
    rows = varied(devices=3, models=20)
    trial = plan_cases(rows, None, [])[0]
    seen: list[FloatArray] = []
    for factor in (1.0, 3.0):
        given = [4, 7, 9, 13, 16]
        measured = {trial.wanted[number].model for number in given}
        judged = sum(one.model not in measured for one in trial.wanted)
        wanted = [
            one if number in given else replace(one, latency_ms=factor * one.latency_ms)
            for number, one in enumerate(trial.wanted)
        ]
        with pytest.MonkeyPatch.context() as patch:
            judge = hold_out.judge

            def note(predicted_ms: FloatArray, *rest: Any) -> Any:
                seen[-1:] = [np.concatenate([seen[-1], predicted_ms])]
                return judge(predicted_ms, *rest)  # noqa: B023

            patch.setattr(hold_out, "judge", note)
            seen.append(np.empty(0))
            patch.setattr(hold_out, "_open_rows", lambda items, *_: np.arange(len(items)))
            case = HoldoutCase(trial.training, wanted)
            evaluate(case, PRIOR, (5,), 1, sampler=lambda *_: np.array([4, 7, 9, 13, 16]))
    assert len(seen[0]) == judged * len(METHODS)
    np.testing.assert_array_equal(seen[0], seen[1])


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    trial = plan_cases(varied(devices=2), None, [])[0]
    evaluate(trial, PRIOR, (0, 3), 2, lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
