"""Predictive scaling: the forecast with headroom, over what batches within the deadlines yield."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.predictive import Predictive
from modelless.policies.testing.options import DEVICE_CLASSES
from modelless.policies.views import ClusterView, Demand, VariantFacts
from modelless.variants.vocabulary import Placement
from tests.builders import make_cluster_view, make_facts, make_workers

SMALL, LARGE = Placement("t/small/v@1", "cpu-1"), Placement("t/large/v@1", "cpu-1")


def facts(name: str, accuracy: float, batch_s: Sequence[float]) -> VariantFacts:
    """A variant on cpu-1, from the latencies of batches of 1, 2, ... items."""
    return make_facts(f"t/{name}/v@1", accuracy, {"cpu-1": batch_s})


VARIANTS = (facts("small", 60, (0.01, 0.015, 0.02, 0.025)), facts("large", 80, (0.1, 0.16)))


def cluster(
    demands: Sequence[Demand] = (), workers: int = 2, variants: Sequence[VariantFacts] = VARIANTS
) -> ClusterView:
    return make_cluster_view(DEVICE_CLASSES, make_workers({"cpu-1": workers}), variants, demands)


def workers_for(
    policy: Predictive, demands: Sequence[Demand], forecast: Mapping[str, float]
) -> int:
    return policy.targets(cluster(demands, workers=1), forecast).workers["cpu-1"]


@pytest.mark.parametrize(
    ("limit_s", "forecast", "wanted"),
    [
        (1.0, 50.0, 4),  # large, in batches of two: 80 ms an item
        (0.25, 50.0, 5),  # two take more than half of the limit: 100 ms
        (0.12, 50.0, 5),  # even one does, but it is quick enough
        (0.05, 1000.0, 7),  # small, batches of 4: 6.25 ms
        (0.03, 1000.0, 8),  # small, batches of 2: 7.5 ms
    ],
)
def test_batches_within_half_the_limit(limit_s: float, forecast: float, wanted: int) -> None:
    policy = Predictive(headroom=1.0)
    assert workers_for(policy, [Demand("t", limit_s, 0.0, 1.0)], {"t": forecast}) == wanted


def test_headroom_and_items() -> None:
    demands = [Demand("t", 1.0, 0.0, 1.0, items=2.0)]
    assert workers_for(Predictive(headroom=1.5), demands, {"t": 50.0}) == 12


def test_the_cheapest_serves_if_that_is_preferred_and_accurate_enough() -> None:
    policy = Predictive(headroom=1.0, prefer="cheapest")
    assert workers_for(policy, [Demand("t", 1.0, 0.0, 1.0)], {"t": 400.0}) == 3
    assert workers_for(policy, [Demand("t", 1.0, 70.0, 1.0)], {"t": 50.0}) == 4


def test_the_forecast_is_divided_as_demand_was() -> None:
    demands = [Demand("t", 0.05, 0.0, 30.0), Demand("t", 1.0, 70.0, 10.0)]
    targets = Predictive(headroom=1.0).targets(cluster(demands), {"t": 100.0})
    assert targets.workers == {"cpu-1": 3}  # 75 x 6.25 ms + 25 x 80 ms
    assert targets.instances == {LARGE: 2, SMALL: 1}
    assert list(targets.instances) == [LARGE, SMALL], "what is needed most comes first"
    assert targets.reason is Reason.FORECAST


def test_before_anything_came_the_fleet_is_left_alone_and_filled() -> None:
    targets = Predictive().targets(cluster(), {})
    assert targets.workers == {}
    assert targets.instances == {SMALL: 2, LARGE: 2}
    assert targets.reason is Reason.FIXED_SIZE


def test_fewer_workers_only_after_the_delay() -> None:
    policy = Predictive(headroom=1.0, downscale_delay_s=30.0)
    view = cluster([Demand("t", 1.0, 0.0, 1.0)], workers=4)
    wanted = {
        now_s: policy.targets(replace(view, now_s=now_s), {"t": rate}).workers["cpu-1"]
        for now_s, rate in ((0.0, 1.0), (10.0, 100.0), (31.0, 1.0), (40.0, 1.0), (41.0, 1.0))
    }
    assert wanted == {0.0: 4, 10.0: 8, 31.0: 8, 40.0: 8, 41.0: 1}
    assert policy.targets(replace(view, now_s=0.0), {"t": 1.0}).workers == {"cpu-1": 4}


@pytest.mark.parametrize(
    ("rate", "wanted"), [(math.nan, 8), (math.inf, 1_000_000), (-5.0, 1), (0.0, 1)]
)
def test_forecasts_that_are_no_numbers(rate: float, wanted: int) -> None:
    demands = [Demand("t", 1.0, 0.0, 100.0)]
    assert workers_for(Predictive(headroom=1.0), demands, {"t": rate}) == wanted


def test_what_nothing_can_serve_needs_nothing() -> None:
    assert workers_for(Predictive(), [Demand("t", 1.0, 99.0, 9.0)], {"t": 1e6}) == 1
    assert workers_for(Predictive(), [Demand("elsewhere", 1.0, 0.0, 9.0)], {}) == 1


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"headroom": 0.9}, "headroom"),
        ({"prefer": "best"}, "prefer"),
        ({"max_batch": 0}, "max_batch"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}: got"):
        Predictive(**settings)  # type: ignore[arg-type]
