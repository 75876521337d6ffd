"""The measured cost model: interpolation, caches, and learning from what is seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.serving_model import BatchCurves, ServingCostModel
from modelless.profiler.cost_model.size_model import SizeModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

IDLE = Load()
BUSY = Load(busy_neighbours=1.0)


def measured(make: Any, variant: str, points: dict[int, float], **changes: Any) -> list[Any]:
    return [
        make.measurement(
            variant_id=variant,
            batch=batch,
            p50_s=p50_s,
            p90_s=1.1 * p50_s,
            p99_s=1.3 * p50_s,
            **changes,
        )
        for batch, p50_s in points.items()
    ]


@pytest.fixture
def model(make: Any) -> ServingCostModel:
    return ServingCostModel(
        [
            *measured(make, "a", {1: 0.010, 2: 0.018, 4: 0.030, 8: 0.060}),
            *measured(make, "b", {1: 0.100}),
            *measured(make, "c", {1: 0.005, 4: 0.011}, device_class="cpu-2"),
        ]
    )


A, B, C = Placement("a", "cpu-1"), Placement("b", "cpu-1"), Placement("c", "cpu-2")
UNKNOWN = Placement("a", "cpu-2")


@pytest.mark.parametrize(
    ("batch", "a_s", "b_s", "c_s"),
    [
        (1, 0.010, 0.100, 0.005),
        (2, 0.018, 0.200, 0.007),
        (3, 0.024, 0.300, 0.009),
        (8, 0.060, 0.800, 0.019),
        (16, 0.120, 1.600, 0.035),
    ],
)
def test_linear_between_points_and_beyond(
    model: ServingCostModel, batch: int, a_s: float, b_s: float, c_s: float
) -> None:
    estimates = model.estimate((A, B, C), batch, IDLE)
    assert estimates.p50_s == pytest.approx([a_s, b_s, c_s])
    assert estimates.p90_s == pytest.approx(1.1 * estimates.p50_s)
    assert estimates.p99_s == pytest.approx(1.3 * estimates.p50_s)
    assert estimates.load_s == pytest.approx([0.3] * 3)


def test_the_unknown_is_infinitely_slow(model: ServingCostModel) -> None:
    estimates = model.estimate([UNKNOWN, A, Placement("nothing", "cpu-1")], 1, BUSY)
    for column in (estimates.p50_s, estimates.p99_s, estimates.memory_bytes, estimates.load_s):
        assert np.isinf(column).tolist() == [True, False, True]
    model.observe(UNKNOWN, 1, IDLE, 0.1)
    assert model.correction(UNKNOWN) == 1.0
    assert model.coverage() == ()


def test_an_empty_model_knows_nothing() -> None:
    model = ServingCostModel([])
    assert np.isinf(model.estimate([A], 1, IDLE).p50_s).all()
    assert model.estimate([], 1, IDLE).p50_s.shape == (0,)


def test_a_batch_below_one_is_refused(model: ServingCostModel) -> None:
    with pytest.raises(InvalidInputError, match="batch"):
        model.estimate([A], 0, IDLE)


def test_the_trusted_then_the_newest_measurement_counts(make: Any) -> None:
    when = make.measurement().measured_at
    rows = [
        *measured(make, "a", {1: 0.020}, measured_at=when.replace(year=2027), trusted=False),
        *measured(make, "a", {1: 0.012}, measured_at=when.replace(year=2026)),
        *measured(make, "a", {1: 0.010}),
    ]
    for order in (rows, rows[::-1]):
        assert ServingCostModel(order).estimate([A], 1, IDLE).p50_s[0] == 0.012


@given(
    points=st.dictionaries(st.integers(1, 64), st.floats(1e-5, 10.0), min_size=1, max_size=6),
    tails=st.lists(st.floats(1.0, 3.0), min_size=12, max_size=12),
    batch=st.integers(1, 200),
)
def test_latency_never_falls_with_the_batch_and_quantiles_stay_in_order(
    make: Any, points: dict[int, float], tails: list[float], batch: int
) -> None:
    rows = []
    for i, (b, s) in enumerate(points.items()):
        p90_s = s * tails[2 * i]
        p99_s = p90_s * tails[2 * i + 1]
        rows.append(make.measurement(variant_id="a", batch=b, p50_s=s, p90_s=p90_s, p99_s=p99_s))
    model = ServingCostModel(rows)
    here, more = (model.estimate((A,), b, IDLE) for b in (batch, batch + 1))
    for name in ("p50_s", "p90_s", "p99_s", "memory_bytes"):
        assert getattr(here, name)[0] <= getattr(more, name)[0] * (1 + 1e-12)
    assert here.p50_s[0] <= here.p90_s[0] <= here.p99_s[0] < math.inf
    for b, s in points.items():
        assert model.estimate((A,), b, IDLE).p50_s[0] >= s * (1 - 1e-12)


def test_a_flat_ending_does_not_promise_free_batches() -> None:
    curves = BatchCurves([1, 2, 4], np.array([[[1.0]], [[3.0]], [[3.0]]]))
    assert curves.at(4)[0, 0] == 3.0
    assert curves.at(7)[0, 0] == pytest.approx(5.0)


def test_answers_are_shared_read_only_and_renewed(model: ServingCostModel) -> None:
    placements = (A, C)
    first = model.estimate(placements, 2, IDLE)
    assert model.estimate(placements, 2, IDLE) is first
    with pytest.raises(ValueError, match="read-only"):
        first.p50_s[0] = 0.0
    model.observe(A, 2, IDLE, 0.036)
    second = model.estimate(placements, 2, IDLE)
    assert second.p50_s[0] > first.p50_s[0] == 0.018
    assert second.p50_s[1] == first.p50_s[1]


def test_a_list_may_change_between_calls(model: ServingCostModel) -> None:
    placements = [A, B]
    assert model.estimate(placements, 1, IDLE).p50_s.tolist() == [0.010, 0.100]
    placements.reverse()
    assert model.estimate(placements, 1, IDLE).p50_s.tolist() == [0.100, 0.010]


def test_caches_are_bounded(model: ServingCostModel) -> None:
    for batch in range(1, 400):
        placements = tuple(Placement("a", "cpu-1") for _ in range(2))
        assert model.estimate(placements, batch, Load(batch / 7)).p50_s.shape == (2,)
    assert len(model._tables) <= 64
    assert len(model._sequences) <= 64
    assert len(model._answers) <= 128


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7, 4.0])
def test_the_correction_finds_a_constant_factor(model: ServingCostModel, factor: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        batch = int(rng.integers(1, 12))
        truth = model.estimate((A,), batch, IDLE).p50_s[0] / model.correction(A) * factor
        model.observe(A, batch, IDLE, float(truth * rng.lognormal(0.0, 0.05)))
    assert model.correction(A) == pytest.approx(factor, rel=0.05)
    shared = math.log(model.correction(B))  # its class has shown so much
    assert abs(shared) < 0.02 or 0.0 < shared / math.log(factor) < 1.0
    assert model.correction(C) == 1.0


@pytest.mark.parametrize(
    "latency_s", [math.nan, math.inf, -math.inf, 0.0, -0.01, 1e-9, 1e6, 0.010 / 51, 0.010 * 51]
)
def test_what_cannot_be_true_changes_nothing(model: ServingCostModel, latency_s: float) -> None:
    placements = (A,)
    before = model.estimate(placements, 1, IDLE)
    model.observe(A, 1, IDLE, latency_s)
    assert model.estimate(placements, 1, IDLE) is before
    assert model.coverage()[0].ignored == 1


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.floats())
def test_the_correction_stays_bounded_whatever_is_seen(
    make: Any, latencies_s: list[float], busy: float
) -> None:
    model = ServingCostModel(measured(make, "a", {1: 0.01}))
    for latency_s in latencies_s:
        model.observe(A, 1, Load(busy), latency_s)
    assert 0.05 <= model.correction(A) <= 20.0
    for load in (IDLE, BUSY, Load(busy)):
        assert 0.0 < model.estimate((A,), 1, load).p50_s[0] < math.inf


def test_one_outlier_moves_a_known_placement_little(model: ServingCostModel) -> None:
    for _ in range(50):
        model.observe(A, 1, IDLE, 0.010)
    model.observe(A, 1, IDLE, 0.40)
    assert model.correction(A) == pytest.approx(1.0, abs=0.06)


def test_neighbours_count_only_once_learned(model: ServingCostModel) -> None:
    def ratio(placement: Placement) -> float:
        busy, idle = (model.estimate((placement,), 1, load).p50_s[0] for load in (BUSY, IDLE))
        return float(busy / idle)

    assert ratio(A) == 1.0
    for _ in range(200):
        model.observe(A, 1, IDLE, 0.010)
        model.observe(A, 1, BUSY, 0.014)
    assert ratio(A) == pytest.approx(1.4, rel=0.03)
    assert model.correction(A) == pytest.approx(1.0, rel=0.03)
    assert 1.3 < ratio(B) <= ratio(A)  # same device class
    assert ratio(C) == 1.0


class TestSizes:
    """Items of 100 numbers take 10 ms, of 900 numbers 90 ms; ``a`` is profiled at both."""

    @pytest.fixture
    def model(self, make: Any) -> ServingCostModel:
        rows = [
            *measured(make, "a", {1: 0.010, 2: 0.020}, shape="x=100"),
            *measured(make, "a", {1: 0.090, 2: 0.180}, shape="x=900"),
        ]
        alike = measured(make, "b", {1: 0.050})
        return ServingCostModel([*rows[:2], *alike], sizes=SizeModel(rows))

    def p50_s(self, model: ServingCostModel, size: int, batch: int = 1) -> list[float]:
        return [round(each, 6) for each in model.estimate((A, B), batch, IDLE, size).p50_s.tolist()]

    def test_latency_is_by_size_where_sizes_were_measured(self, model: ServingCostModel) -> None:
        assert self.p50_s(model, 0) == self.p50_s(model, 100) == [0.010, 0.050]
        assert self.p50_s(model, 500) == [0.050, 0.050]
        assert self.p50_s(model, 500, batch=2)[0] == 0.100
        assert self.p50_s(model, 0) == [0.010, 0.050]

    def test_wide_items_that_take_what_they_should_change_nothing(
        self, model: ServingCostModel
    ) -> None:
        for _ in range(100):
            model.observe(A, 1, IDLE, 0.090, 900)
        assert self.p50_s(model, 100) == [0.010, 0.050]
        assert model.correction(A) == pytest.approx(1.0)

    def test_what_wide_items_teach_holds_for_narrow_ones(self, model: ServingCostModel) -> None:
        for _ in range(100):
            model.observe(A, 1, IDLE, 0.108, 900)
        assert self.p50_s(model, 100)[0] == pytest.approx(0.012, rel=0.02)
