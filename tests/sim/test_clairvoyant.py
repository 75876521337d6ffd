"""Policies that know the future are told it by the simulator, truly and once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.query_streams import arrivals_by_scope, queries
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.policies.seams import Clairvoyant
from modelless.policies.views import ClusterView, Instance

from .worlds import DRIFT, world


class Knowing(LeastRecentlyUsed, Clairvoyant):
    """Writes down what it was told, and whether that came before the first decision."""

    told: ClassVar[list[Mapping[str, NDArray[np.float64]]]] = []
    asked_first: ClassVar[bool] = False

    def reveal(self, arrivals_s: Mapping[str, NDArray[np.float64]]) -> None:
        self.told.append(arrivals_s)

    def rank(self, residents: Sequence[Instance], view: ClusterView) -> Sequence[Instance]:
        if not self.told:
            type(self).asked_first = True
        return super().rank(residents, view)


def drift(eviction: str) -> dict[str, object]:
    """Twelve tasks, room for half of them, and time to load what is missing."""
    (stream,) = DRIFT["queries"]
    return {
        **DRIFT,
        "duration_s": 120,
        "queries": [{**stream, "arrivals": {"kind": "poisson", "rate_per_s": 2}}],
        "devices": [{"name": "cpu-1", "count": 1, "memory_mib": 400}],
        "policies": {"scaling": "on-demand", "eviction": eviction},
    }


def test_all_arrivals_are_revealed_before_the_first_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Knowing, "told", [])
    file = world(**drift(f"{__name__}:Knowing"))
    figures = simulate(file, seed=3).figures()
    (told,) = Knowing.told
    assert not Knowing.asked_first
    assert figures["evictions"] > 0
    assert figures["policy_problems"] == {}
    by_task = {task: tally["queries"] for task, tally in figures["tasks"].items()}
    assert {scope: len(at_s) for scope, at_s in told.items()} == by_task
    assert all(at_s.dtype == np.float64 and (np.diff(at_s) >= 0.0).all() for at_s in told.values())


def test_the_reveal_is_of_the_runs_own_seed() -> None:
    file = world(**drift("lru"))
    first, same, other = (arrivals_by_scope(queries(file, seed)) for seed in (3, 3, 4))
    assert first.keys() == same.keys()
    assert all((first[scope] == same[scope]).all() for scope in first)
    assert any(not np.array_equal(first[scope], other.get(scope, [])) for scope in first)


def test_queries_from_afar_are_revealed_when_they_reach_the_gateway() -> None:
    near = world()
    stream = {**near.world.queries[0].model_dump(), "site": "far"}
    delay = {"between": ["core", "far"], "one_way_ms": 20}
    far = world(queries=[stream], network={"delays": [delay]})
    here, there = (arrivals_by_scope(queries(file, 3))["vision"] for file in (near, far))
    np.testing.assert_allclose(there, here + 0.02)


def test_belady_spends_less_on_loads_than_lru(tmp_path: Path) -> None:
    cold_s = {}
    for eviction in ("belady", "lru"):
        runs = [simulate(world(tmp_path, **drift(eviction)), seed=seed) for seed in (1, 2, 3)]
        cold_s[eviction] = sum(run.cold_start_s for run in runs)
    assert cold_s["belady"] < cold_s["lru"]
