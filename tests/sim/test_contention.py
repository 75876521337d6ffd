"""In a simulated world whose devices disturb each other the cost model comes to predict well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.controller.sim import engine
from modelless.controller.sim.run import simulate
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

from .worlds import world


class Watched(ServingCostModel):
    """Keeps for each outcome what was profiled and what was predicted before it was told."""

    rows: list[tuple[float, ...]]
    made: list[Watched] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.blind = ServingCostModel(*arguments, **named)
        self.rows = []
        self.made.append(self)

    def observe(
        self, placement: Placement, batch: int, load: Load, latency_s: float, size: int = 0
    ) -> bool:
        told = self.estimate((placement,), batch, load)
        profiled = self.blind.estimate((placement,), batch, Load())
        quantiles = (profiled.p50_s[0], told.p50_s[0], told.p90_s[0], told.p99_s[0])
        self.rows.append((*map(float, quantiles), latency_s))
        return super().observe(placement, batch, load, latency_s, size)


def test_the_error_falls_under_ten_percent_within_200_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each busy neighbour adds 30 %, and about three of four are busy."""
    monkeypatch.setattr(engine, "ServingCostModel", Watched)
    monkeypatch.setattr(Watched, "made", [])
    file = world(
        tmp_path,
        duration_s=90,
        devices=[{"name": "c", "count": 4, "per_host": 4, "contention": 0.3}],
        tasks=[
            {"name": "vision", "variants": {"kind": "ladder", "count": 3, "latency_ms": [9, 40]}}
        ],
        queries=[
            {
                "tasks": ["vision"],
                "arrivals": {"kind": "poisson", "rate_per_s": 100},
                "slos": [{"latency_ms": 300}],
            }
        ],
    )
    simulate(file)
    (model,) = Watched.made
    profiled_s, p50_s, p90_s, p99_s, seen_s = np.array(model.rows).T
    assert len(seen_s) > 2000
    assert np.median(np.abs(profiled_s / seen_s - 1.0)) > 0.3
    assert np.median(np.abs(p50_s / seen_s - 1.0)[200:]) < 0.1
    assert 100.0 * np.mean(seen_s <= p90_s) == pytest.approx(90.0, abs=1.5)
    assert 100.0 * np.mean(seen_s <= p99_s) == pytest.approx(99.0, abs=0.7)
    assert model.drifts() == ()


def test_learning_online_brings_more_queries_in_time_than_the_profile_alone(tmp_path: Path) -> None:
    """Seven neighbours add 56 % in all, of which the profiles know nothing."""

    def attained(learns: bool) -> float:
        file = world(
            tmp_path,
            duration_s=20,
            learn_online=learns,
            devices=[{"name": "c", "count": 8, "per_host": 8, "contention": 0.08}],
            tasks=[
                {
                    "name": "vision",
                    "variants": {"kind": "ladder", "count": 8, "latency_ms": [4, 48]},
                }
            ],
            queries=[
                {
                    "tasks": ["vision"],
                    "arrivals": {"kind": "poisson", "rate_per_s": 200},
                    "slos": [{"latency_ms": 60}, {"latency_ms": 120}],
                }
            ],
        )
        total = simulate(file).total
        return total.good / total.queries

    corrected, as_profiled = attained(True), attained(False)
    assert corrected > 0.97
    assert corrected > as_profiled + 0.05
