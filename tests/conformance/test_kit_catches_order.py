"""The kit fails who minds an order that means nothing, and who cannot do with odd figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from modelless.policies import testing
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.selection.cheapest_feasible import CheapestFeasible
from modelless.policies.views import (
    Bind,
    Candidates,
    Choice,
    ClusterView,
    Instance,
    QueryView,
    Targets,
)
from modelless.variants.vocabulary import Placement


class TrustsShortlists(CheapestFeasible):
    def on_arrival(self, query: QueryView, candidates: Candidates, rng: Any) -> Choice:
        if candidates.shortlist is not None:
            return Bind(int(candidates.shortlist[0]), Reason.CHEAPEST_FEASIBLE)
        return super().on_arrival(query, candidates, rng)


class AsGiven(LeastRecentlyUsed):
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return list(residents)


class LosesTheUnknown(LeastRecentlyUsed):
    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        return [i for i in super().rank(residents, view) if np.isfinite(i.load_s)]


class HasNoOpinion(LeastRecentlyUsed):
    def admits(self, newcomer: Instance, victims: Sequence[Instance], view: ClusterView) -> Any:
        return None


class WantsTheFirst(Fixed):
    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        first = view.variants[0].variant_id
        return Targets({Placement(first, "cpu-1"): 1}, {}, Reason.FIXED_SIZE)


class Starts(LastValue):
    """Forecasts before it has seen anything."""

    def forecast(self, horizon_s: float) -> Mapping[str, float]:
        return {"imagenet": float("nan"), **super().forecast(horizon_s)}


class KnowsTheFirstOnly(LastValue):
    def observe(self, now_s: float, arrivals_per_s: Mapping[str, float]) -> None:
        super().observe(now_s, dict(list(arrivals_per_s.items())[:1]))


class WakesTheWoken(LastValue):
    def awakenings(self, horizon_s: float) -> Mapping[str, float]:
        return self.forecast(horizon_s)


@pytest.mark.parametrize(
    ("case", "policy", "check", "arguments"),
    [
        (
            testing.SelectionConformance,
            TrustsShortlists,
            "test_a_shortlist_of_everything_changes_nothing",
            (),
        ),
        (
            testing.EvictionConformance,
            AsGiven,
            "test_the_order_of_the_residents_does_not_matter",
            (),
        ),
        (
            testing.EvictionConformance,
            LosesTheUnknown,
            "test_odd_figures_are_ranked_too",
            (np.nan,),
        ),
        (
            testing.EvictionConformance,
            HasNoOpinion,
            "test_says_whether_a_load_is_worth_what_leaves",
            (),
        ),
        (
            testing.ScalingConformance,
            WantsTheFirst,
            "test_the_order_of_the_options_does_not_matter",
            (),
        ),
        (testing.ForecasterConformance, Starts, "test_before_anything_was_seen", ()),
        (
            testing.ForecasterConformance,
            KnowsTheFirstOnly,
            "test_the_order_of_the_scopes_does_not_matter",
            (),
        ),
        (
            testing.ForecasterConformance,
            WakesTheWoken,
            "test_foresees_awakenings_of_what_sleeps_only",
            (),
        ),
    ],
)
def test_a_bad_policy_is_caught(case: Any, policy: Any, check: str, arguments: Any) -> None:
    with pytest.raises(AssertionError):
        getattr(case(), check)(policy(), *arguments)
