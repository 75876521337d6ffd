"""Random worlds: the same from the same seed, within the stated ranges, and fit to be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modelless.controller.sim.bound.capacity import demand_of
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.random_worlds import DrawnWorld, RandomSet, draw_world
from modelless.controller.sim.worlds.variants import WrittenVariant, WrittenVariants
from modelless.controller.sim.worlds.world import WorldFile, load_world

from .worlds import world

RANGES: dict[str, tuple[float, float]] = {
    "load": (0.3 * 0.8, 2.0 * 1.2),
    "peak over mean": (1.0, 20.0),
    "duration, s": (30.0, 900.0),
    "workers": (1, 60),
    "device classes": (1, 4),
    "tasks": (1, 100),
    "variants a task": (1, 12),
    "memory share": (0.05, 1.0),
    "load time, s": (0.005, 60.0),
    "shortest limit, ms": (5.0, 60_000.0),
    "longest limit, ms": (5.0, 60_000.0),
    "profile error": (0.0, 0.3),
    "contention": (0.0, 0.1),
    "growing pools": (0, 4),
    "fault count": (0, 3),
    "tenants": (1, 10),
    "streams": (1, 4),
    "priorities": (1, 4),
}
KINDS = {"poisson", "gamma", "bursts", "diurnal", "flash-crowd"}


def document_of(drawn: DrawnWorld) -> dict[str, Any]:
    """The world as it is written to a file."""
    told: dict[str, Any] = drawn.world.model_dump(mode="json", exclude_defaults=True)
    return told


def variants_of(drawn: DrawnWorld) -> list[WrittenVariant]:
    """All variants of a world."""
    every = [task.variants for task in drawn.world.tasks]
    return [each for told in every if isinstance(told, WrittenVariants) for each in told.variants]


def check_ranges(drawn: DrawnWorld) -> None:
    """Everything lies where the module says."""
    for name, (low, high) in RANGES.items():
        assert low <= drawn.features[name] <= high, (drawn.world.name, name)
    told, span_s = drawn.world, drawn.features["duration, s"]
    assert span_s >= 9.9 * drawn.features["load time, s"]
    assert sum(max(each.count, each.max_workers or 0) for each in told.devices) <= 60
    for variant in variants_of(drawn):
        assert 0.001 <= variant.load_s <= 60.0
        assert 0.0 < variant.accuracy <= 95.0
        assert all(0.7 - 1e-3 <= ratio <= 1.3 + 1e-3 for ratio in variant.true_ratios.values())
    for stream in told.queries:
        assert stream.arrivals.kind in KINDS
        for slo in stream.slos:
            assert slo.latency_ms is not None
            assert 5.0 <= slo.latency_ms <= 60_000.0


def test_the_same_seed_draws_the_same_world() -> None:
    first, again = draw_world(4, 7), draw_world(4, 7)
    assert document_of(first) == document_of(again)
    assert first.features == again.features
    assert document_of(draw_world(5, 7)) != document_of(first)
    assert document_of(draw_world(4, 8)) != document_of(first)


def test_worlds_to_develop_on_and_to_judge_by_are_others() -> None:
    def figures(which: RandomSet) -> set[str]:
        worlds = (document_of(draw_world(1, number, which)) for number in range(12))
        return {str((told["seed"], told["duration_s"], told["tasks"])) for told in worlds}

    develop, judge = figures("develop"), figures("judge")
    assert len(develop) == len(judge) == 12
    assert not develop & judge


def test_what_was_drawn_lies_in_the_stated_ranges() -> None:
    for number in range(12):
        check_ranges(draw_world(2, number))


@pytest.mark.slow
def test_every_decade_and_every_kind_comes_up() -> None:
    drawn = [draw_world(3, number, "judge") for number in range(300)]
    for each in drawn:
        check_ranges(each)
    for name, low, high in (
        ("load", 0.35, 1.8), ("workers", 1, 45), ("tasks", 1, 80), ("memory share", 0.08, 0.95),
        ("load time, s", 0.02, 20.0), ("shortest limit, ms", 10.0, 2000.0),
        ("duration, s", 50.0, 700.0), ("profile error", 0.0, 0.28), ("tenants", 1, 10),
        ("variants a task", 1.0, 9.0), ("peak over mean", 1.1, 5.0),
    ):  # fmt: skip
        values = [each.features[name] for each in drawn]
        assert min(values) <= low, name
        assert max(values) >= high, name
    assert {stream.arrivals.kind for each in drawn for stream in each.world.queries} == KINDS
    assert {fault.kind for each in drawn for fault in each.world.faults} == {
        "worker-dies", "worker-slows", "load-fails", "site-cut"
    }  # fmt: skip
    for name, least, most in (
        ("growing pools", 0.1, 0.35), ("fault count", 0.15, 0.35), ("profile error", 0.5, 0.7),
        ("cold start", 0.1, 0.3), ("swaps", 0.2, 0.45), ("impossible limits", 0.1, 0.4),
        ("minimum accuracies", 0.5, 0.95), ("highest costs", 0.3, 0.7), ("contention", 0.3, 0.5),
    ):  # fmt: skip
        share = sum(each.features[name] > 0 for each in drawn) / len(drawn)
        assert least <= share <= most, name


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_world_runs_from_its_file(number: int, tmp_path: Path) -> None:
    drawn = draw_world(6, number, queries=400)
    path = tmp_path / "drawn.yaml"
    path.write_text(yaml.safe_dump(document_of(drawn)), encoding="utf-8")
    file = load_world(path)
    assert file.world == drawn.world
    summary = simulate(file)
    assert 100 <= summary.figures()["queries"] <= 1600
    assert not summary.figures()["policy_problems"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2, 14))
def test_many_worlds_run(number: int) -> None:
    drawn = draw_world(6, number, queries=400)
    assert simulate(WorldFile(drawn.world, Path())).figures()["queries"] >= 50


def test_the_load_is_that_of_the_busiest_twentieth() -> None:
    drawn = draw_world(8, 3)
    file = WorldFile(drawn.world, Path())
    demand = demand_of(file, drawn.features["duration, s"] / 20.0, only_possible=True)
    assert demand.load == drawn.features["load"]
    total = demand.mean_per_s * drawn.features["duration, s"]
    assert total == pytest.approx(10_000, rel=0.5)


def test_pieces_of_traces_are_cut_and_stretched(tmp_path: Path) -> None:
    times_s = np.cumsum(np.random.default_rng(1).exponential(2.0, 3000))
    path = tmp_path / "trace.csv"
    np.savetxt(path, times_s, header="arrival_s", comments="")
    others, drawn = 0, []
    for number in range(20):
        found = draw_world(9, number, queries=1000, traces={str(path): times_s})
        kinds = {stream.arrivals.kind for stream in found.world.queries}
        if kinds == {"trace"}:
            drawn.append(found)
        others += "trace" not in kinds
    assert others
    for each in drawn:
        span_s = each.features["duration, s"]
        arrivals = [asked.arrival_s for asked in queries(WorldFile(each.world, Path()), 1)]
        assert len(arrivals) == pytest.approx(1000, rel=0.2)
        assert min(arrivals) < 0.1 * span_s
        assert max(arrivals) > 0.9 * span_s
    assert drawn


def test_profiles_may_be_wrong() -> None:
    def latency_ms(ratios: dict[tuple[str, str], float] | None = None, **more: Any) -> float:
        point = {"device": "cpu", "p50_ms": 20}
        written = {"model": "m", "accuracy": 70, "points": [point], **more}
        told = simulate(
            world(
                devices=[{"name": "cpu", "count": 4}],
                tasks=[{"name": "t", "variants": {"kind": "written", "variants": [written]}}],
                queries=[{"tasks": ["t"], "arrivals": {"kind": "poisson", "rate_per_s": 20}}],
            ),
            true_ratios=ratios,
        )
        p50_ms: float = told.figures()["latency_ms"]["p50"]
        return p50_ms

    wrong_ms = latency_ms(true_ratios={"cpu": 1.3})
    assert wrong_ms == pytest.approx(1.3 * latency_ms(), rel=0.03)
    further = {("t/m/v@1", "cpu"): 1.5}
    assert latency_ms(further) == pytest.approx(1.5 * latency_ms(), rel=0.03)
    assert latency_ms(further, true_ratios={"cpu": 1.3}) == pytest.approx(1.5 * wrong_ms, rel=0.03)
