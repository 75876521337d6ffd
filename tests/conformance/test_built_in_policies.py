"""Every built-in policy passes the conformance kit, whatever is added to the table."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.policies import testing
from modelless.policies.discovery import BUILT_IN, build_policy, find_policy
from modelless.policies.seams import (
    BatchingPolicy,
    EvictionPolicy,
    Forecaster,
    PlacementPolicy,
    ScalingPolicy,
    SelectionPolicy,
)

CASES: dict[type, type] = {
    SelectionPolicy: testing.SelectionConformance,
    BatchingPolicy: testing.BatchingConformance,
    ScalingPolicy: testing.ScalingConformance,
    PlacementPolicy: testing.PlacementConformance,
    EvictionPolicy: testing.EvictionConformance,
    Forecaster: testing.ForecasterConformance,
}

DECLARATIONS: dict[str, dict[str, Any]] = {
    "cheapest-feasible": {"looser_deadline_never_costs_more": True},
    "best-value": {"trades_deadlines": True},
    "infaas": {"keeps_deadlines": False},  # latency without the queue must fit, as in the source
    "most-accurate-feasible": {"looser_deadline_never_less_accurate": True},
    "round-robin": {"keeps_deadlines": False},
    "random": {"keeps_deadlines": False},
    "static": {
        "keeps_deadlines": False,
        "looser_deadline_never_costs_more": True,
        "looser_deadline_never_less_accurate": True,
    },
    "clipper": {"keeps_deadlines": False, "looser_deadline_never_less_accurate": True},
    "model-switching": {"keeps_deadlines": False, "looser_deadline_never_less_accurate": True},
    "multi-factor": {"keeps_deadlines": False},  # a queue is load, one factor of four
    "predicted-latency": {"keeps_deadlines": False},  # what misses the limit least is served
    "route-balance": {"keeps_deadlines": False},
    "workload-variant": {"fits_memory": False},
    "fixed": {"fits_memory": False, "keeps_pools": False},
    "ongoing-requests": {"fits_memory": False, "keeps_pools": False},
    "predictive": {"fits_memory": False, "keeps_pools": False},
    "one-variant": {"fits_memory": False},  # each task has a variant, whatever there is room for
    "expected-value": {"keeps_pools": False},
    "aimd": {"keeps_deadlines": False},
    "nexus": {"never_idles": False},
    "planned-shares": {"keeps_deadlines": False},
    "proteus-batching": {"never_idles": False},
}
"""The declarations of policies that differ from the defaults; see the cases."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "cheapest-feasible": [{"quantile": "p50"}],
    "most-accurate-feasible": [
        {"batching": {"policy": "earliest-deadline-first", "min_gain": 0.2}}
    ],
    "earliest-deadline-first": [{"min_gain": 0.5}],
    "round-robin": [{"batching": {"policy": "nexus"}}],
    "static": [{"variant": "most-accurate"}],
    "clipper": [{"mode": "high-throughput"}],
    "clockwork": [{"variant": "most-accurate"}],
    "multi-factor": [{"quality": 0.7, "load": 0.0, "quantile": "p50"}],
    "predicted-latency": [{"headroom": "most", "explore": 0.5}],
    "route-balance": [{"quality": 5.0, "cost": 0.0}],
    "workload-variant": [{"interval_s": 0.0, "queue": 2.0, "spare_queue": 1.0}],
    "slack-fit": [{"buckets": 1}],
    "model-switching": [{"period_s": 0.5, "utilisation": 1.0, "calm_periods": 1}],
    "aimd": [{"step": 2.0, "backoff": 0.5, "objective_s": 0.05}],
    "expected-value": [{"pools": {"down_after_s": 0.0, "zero_after_s": 5.0}}],
    "fixed": [{"workers": {"cpu-1": 3}, "keep_dominated": False}],
    "infaas": [{"quantile": "p50", "accelerators": ["gpu-1"]}, {"objective": "accuracy"}],
    "infaas-autoscaler": [
        {"cpu_patience_s": 0.0, "worker_patience_s": None},
        {"objective": "accuracy"},
    ],
    "one-variant": [{"prefer": "fastest"}],
    "ongoing-requests": [{"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}],
    "predictive": [{"prefer": "cheapest", "headroom": 2.0}],
    "ewma": [{"half_life_s": 1.0}],
    "holt-winters": [{"season_s": 30.0, "season_bins": 6}],
    "lag-quantile": [{"quantile": 0.5, "lags_s": [1.0], "horizon_s": 2.0}],
    "planned-shares": [{"batching": "earliest-deadline-first"}],
    "proteus-batching": [{"batch_sizes": [1, 3], "max_wait_s": 0.01}],
    "proteus": [{"time_limit_s": 0.0}, {"interval_s": 0.0, "batch_sizes": [1]}],
    "infadapter": [{"interval_s": 0.0, "cost_weight": 0.5, "most_variants": 2}],
    "lemonade": [{"weights": {"imagenet": 3.0}}],
    "modelmesh": [{"churn_age_s": 0.0}, {"churn_age_s": 1e6}],
    "miss-cost": [{"half_lives_s": [60.0], "lost_query_s": 0.0, "view_s": 0.5}],
    "on-demand": [{"preload": False, "loads_per_worker": 0.5}],
    "unserved-demand": [{"utilisation": 1.0, "preload": False}],
}
"""Settings to check besides the defaults, by ``make test-all``."""


def make_case(seam: type, name: str, settings: dict[str, Any], number: int) -> type:
    def policy(self: object) -> Any:
        return build_policy(seam, {"policy": name, **settings}, clairvoyant=True)

    title = "".join(part.capitalize() for part in name.split("-"))
    members = {"policy": pytest.fixture(policy), **DECLARATIONS.get(name, {})}
    if number:
        members["pytestmark"] = pytest.mark.slow
    return type(f"Test{title}{number or ''}", (CASES[seam],), members)


for _seam, _names in BUILT_IN.items():
    for _name in _names:
        for _number, _settings in enumerate([{}, *SETTINGS.get(_name, [])]):
            _case = make_case(_seam, _name, _settings, _number)
            assert _case.__name__ not in globals(), f"two policies called {_name}"
            globals()[_case.__name__] = _case


def test_there_is_a_case_for_every_seam() -> None:
    assert set(CASES) == set(BUILT_IN)


def test_the_declarations_are_of_policies_and_words_that_exist() -> None:
    for name, words in DECLARATIONS.items():
        (seam,) = [seam for seam, names in BUILT_IN.items() if name in names]
        assert all(hasattr(CASES[seam], word) for word in words)
    assert set(SETTINGS) <= {name for names in BUILT_IN.values() for name in names}


@pytest.mark.parametrize(
    ("seam", "name"), [(seam, name) for seam, names in BUILT_IN.items() for name in names]
)
def test_every_built_in_policy_is_one_file_with_its_idea_told(seam: type, name: str) -> None:
    policy = find_policy(seam, name)
    assert policy.__doc__
    assert find_policy(seam, f"{policy.__module__}:{policy.__qualname__}") is policy
    assert not hasattr(policy, "__wrapped__")
