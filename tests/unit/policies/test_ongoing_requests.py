"""Ray Serve's rule: ongoing requests over a target, averaged, with delays and factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.scaling.ongoing_requests import OngoingRequests
from modelless.policies.testing.options import DEVICE_CLASSES, make_cluster
from modelless.policies.views import ClusterView
from tests.builders import make_cluster_view, make_workers


def cluster(now_s: float, open_queries: int, workers: Mapping[str, int]) -> ClusterView:
    queries = {"t": open_queries - open_queries // 3, "t/m": open_queries // 3}
    return make_cluster_view(
        DEVICE_CLASSES, make_workers(workers), now_s=now_s, open_queries=queries
    )


def prompt(**settings: float) -> OngoingRequests:
    """Without delays and averages, unless said."""
    defaults = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0, "look_back_period_s": 0.1}
    return OngoingRequests(**{**defaults, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("open_queries", "present", "wanted"),
    [(8, 4, 4), (9, 4, 5), (20, 4, 10), (2, 4, 1), (0, 4, 1), (3, 1, 2)],
)
def test_open_queries_over_the_target_rounded_up(
    open_queries: int, present: int, wanted: int
) -> None:
    targets = prompt().targets(cluster(0.0, open_queries, {"cpu-1": present}), {})
    assert targets.workers == {"cpu-1": wanted}
    assert targets.reason is Reason.DEMAND


def test_factors_go_only_part_of_the_way() -> None:
    up = prompt(upscaling_factor=0.5).targets(cluster(0.0, 40, {"cpu-1": 10}), {})
    assert up.workers == {"cpu-1": 15}
    down = prompt(downscaling_factor=0.5).targets(cluster(0.0, 4, {"cpu-1": 10}), {})
    assert down.workers == {"cpu-1": 6}
    crawl = prompt(downscaling_factor=0.01).targets(cluster(0.0, 4, {"cpu-1": 10}), {})
    assert crawl.workers == {"cpu-1": 9}, "a small factor does not hold it up for ever"


def test_more_and_fewer_are_asked_for_after_their_delays() -> None:
    policy = OngoingRequests(upscale_delay_s=5.0, downscale_delay_s=8.0, look_back_period_s=0.1)
    asked = [(second, 20 if second < 7 else 2) for second in range(20)]
    wanted = [
        policy.targets(cluster(float(second), count, {"cpu-1": 4}), {}).workers["cpu-1"]
        for second, count in asked
    ]
    assert wanted == [4] * 5 + [10] * 10 + [1] * 5


def test_a_break_starts_the_delay_anew() -> None:
    policy = OngoingRequests(upscale_delay_s=3.0, look_back_period_s=0.1)
    counts = [20, 20, 20, 8, 20, 20, 20, 20]
    wanted = [
        policy.targets(cluster(float(second), count, {"cpu-1": 4}), {}).workers["cpu-1"]
        for second, count in enumerate(counts)
    ]
    assert wanted == [4] * 7 + [10]


def test_open_queries_are_averaged_over_the_look_back_period() -> None:
    policy = prompt(look_back_period_s=3.0)
    for second, count in enumerate([0, 0, 8]):
        policy.targets(cluster(float(second), count, {"cpu-1": 1}), {})
    targets = policy.targets(cluster(3.0, 8, {"cpu-1": 1}), {})
    assert targets.workers == {"cpu-1": 2}  # (0 + 0 + 8 + 8) / 4 / 2
    targets = policy.targets(cluster(5.0, 8, {"cpu-1": 1}), {})
    assert targets.workers == {"cpu-1": 4}


def test_a_clock_that_jumps_back_does_no_harm() -> None:
    policy = OngoingRequests(upscale_delay_s=5.0, look_back_period_s=30.0)
    for now_s in (1000.0, 1001.0, 0.0, 1.0, 2.0, 3.0, 4.0):
        assert policy.targets(cluster(now_s, 20, {"cpu-1": 4}), {}).workers == {"cpu-1": 4}
    assert policy.targets(cluster(5.0, 20, {"cpu-1": 4}), {}).workers == {"cpu-1": 10}


def test_classes_keep_their_shares_of_the_fleet() -> None:
    view = cluster(0.0, 24, {"cpu-1": 4, "gpu-1": 2})
    assert prompt().targets(view, {}).workers == {"cpu-1": 8, "gpu-1": 4}
    only = OngoingRequests(upscale_delay_s=0.0, device_classes=["cpu-1"])
    assert only.targets(view, {}).workers == {"cpu-1": 8}


def test_every_worker_holds_what_fixed_would_hold() -> None:
    view = make_cluster(np.random.default_rng(0), 30, 6)
    view = replace(view, open_queries={"imagenet": 100})
    assert prompt().targets(view, {}).instances == Fixed().targets(view, {}).instances


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_ongoing_requests", 0.0),
        ("upscale_delay_s", -1.0),
        ("downscaling_factor", float("inf")),
        ("look_back_period_s", float("nan")),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}: got"):
        prompt(**{field: value})
