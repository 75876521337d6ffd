"""Latency by size: at what was measured, between, and beyond."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.profiler.cost_model.size_model import SizeEstimate, SizeModel
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import Placement
from tests.unit.profiler.conftest import make_measurement


@pytest.fixture
def row() -> Any:
    """Makes a measurement of an item of so many elements; p90 and p99 are 1.1 and 1.5 times p50."""

    def measure(size: int, ms: float, batch: int = 1) -> Measurement:
        p50_s = ms / 1e3
        return make_measurement(
            variant_id="t/m/v@1", device_class="cpu-1", shape=f"x={size}", batch=batch,
            p50_s=p50_s, p90_s=1.1 * p50_s, p99_s=1.5 * p50_s, mean_s=p50_s,
        )  # fmt: skip

    return measure


def estimate(rows: list[Measurement], size: int, batch: int = 1) -> SizeEstimate:
    found = SizeModel(rows).estimate(Placement("t/m/v@1", "cpu-1"), batch, size)
    assert found is not None
    return found


def test_a_measured_point_is_what_was_measured(row: Any) -> None:
    found = estimate([row(100, 1.0), row(200, 3.0), row(200, 10.0, batch=4)], 200)
    assert (found.p50_s, found.low_s, found.high_s) == (3e-3, 3e-3, 3e-3)
    assert (found.p90_s, found.p99_s) == pytest.approx((3.3e-3, 4.5e-3))
    assert not found.is_extrapolated
    assert estimate([row(100, 1.0), row(200, 3.0), row(200, 10.0, batch=4)], 200, 4).p50_s == 1e-2


def test_between_two_sizes_the_band_reaches_from_one_to_the_other(row: Any) -> None:
    found = estimate([row(100, 1.0), row(200, 3.0)], 150)
    assert (found.p50_s, found.low_s, found.high_s) == pytest.approx((2e-3, 1e-3, 3e-3))
    assert (found.p90_s, found.p99_s) == pytest.approx((3.3e-3, 4.5e-3))
    assert not found.is_extrapolated


def test_sizes_that_predict_each_other_narrow_the_band(row: Any) -> None:
    rows = [row(100, 1.0), row(200, 2.0), row(300, 3.3), row(400, 4.4)]
    found = estimate(rows, 250)
    assert found.p50_s == pytest.approx(2.65e-3)
    assert 0.0 < found.high_s - found.p50_s < 0.2e-3
    # 300 from 200 and 400 is 3.2, 3 % less; 200 from 100 and 300 is 2.15, 7.5 % more.
    assert found.high_s / found.p50_s == pytest.approx(1.075)


def test_beyond_the_sizes_the_band_opens(row: Any) -> None:
    rows = [row(100, 1.0), row(200, 3.0)]
    above, below = estimate(rows, 400), estimate(rows, 50)
    assert (above.p50_s, above.low_s, above.high_s) == pytest.approx((7e-3, 3e-3, 12e-3))
    assert (below.p50_s, below.low_s, below.high_s) == pytest.approx((0.25e-3, 0.25e-3, 1e-3))
    assert above.is_extrapolated
    assert below.is_extrapolated


def test_a_single_size_grows_in_proportion(row: Any) -> None:
    found = estimate([row(100, 2.0)], 300)
    assert (found.p50_s, found.low_s, found.high_s) == pytest.approx((6e-3, 2e-3, 18e-3))
    found = estimate([row(100, 2.0)], 50)
    assert (found.p50_s, found.low_s, found.high_s) == pytest.approx((1e-3, 0.5e-3, 2e-3))


def test_what_was_not_measured_is_not_known(row: Any) -> None:
    model = SizeModel([row(100, 1.0), make_measurement(variant_id="t/m/w@1")])
    assert model.sizes(Placement("t/m/v@1", "cpu-1")) == (100,)
    assert model.sizes(Placement("t/m/w@1", "cpu-1")) == ()
    assert model.estimate(Placement("t/m/w@1", "cpu-1"), 1, 100) is None
    assert model.estimate(Placement("t/m/v@1", "cpu-2"), 1, 100) is None


@given(
    points=st.dictionaries(st.integers(1, 5000), st.floats(0.1, 500.0), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 20_000), min_size=2, max_size=2),
    batch=st.integers(1, 16),
)
def test_latency_never_falls_as_items_grow(
    points: dict[int, float], sizes: list[int], batch: int
) -> None:
    rows = [
        make_measurement(
            variant_id="t/m/v@1", device_class="cpu-1", shape=f"x={size}", batch=each,
            p50_s=ms * each / 1e3, p90_s=1.2 * ms * each / 1e3, p99_s=2 * ms * each / 1e3,
            mean_s=ms * each / 1e3,
        )
        for size, ms in points.items()
        for each in (1, 8)
    ]  # fmt: skip
    small, large = (estimate(rows, size, batch) for size in sorted(sizes))
    assert small.p50_s <= large.p50_s * (1 + 1e-9)
    for found in (small, large):
        assert found.low_s <= found.p50_s <= found.high_s
        assert found.p50_s <= found.p90_s * (1 + 1e-9) <= found.p99_s * (1 + 2e-9)
