"""Worlds whose items differ in size: devices take the time of the size, and dispatch knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.sim import engine
from modelless.controller.sim.bound.problem import arrivals_by_kind
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import WorldFile, parse_world
from modelless.profiler.cost_model.size_model import SizeModel
from modelless.profiler.measure.measurement import Measurement

SIZES = {"least": 1000, "most": 40_000, "step": 1000}


def variant(name: str, accuracy: float, ms: float) -> dict[str, Any]:
    """A variant that takes ``ms`` for 10,000 numbers, and half of that for each further item."""
    points = [
        {"device": "cpu-1", "batch": batch, "size": size,
         "p50_ms": ms * size / 10_000 * (0.5 + 0.5 * batch)}
        for size in (1000, 10_000, 40_000)
        for batch in (1, 8)
    ]  # fmt: skip
    return {"model": name, "accuracy": accuracy, "memory_mib": 50, "points": points}


def world(**changes: Any) -> WorldFile:
    """300 queries a second, of which two devices can serve half with the slow variant."""
    document = {
        "name": "sizes",
        "seed": 3,
        "duration_s": 16,
        "devices": [{"name": "cpu-1", "count": 2, "memory_mib": 400}],
        "limits": {"max_batch": 8},
        "tasks": [
            {
                "name": "lines",
                "variants": {
                    "kind": "written",
                    "variants": [variant("slow", 90.0, 10.0), variant("quick", 80.0, 2.5)],
                },
            }
        ],
        "queries": [
            {
                "tasks": ["lines"],
                "sizes": SIZES,
                "arrivals": {"kind": "poisson", "rate_per_s": 300},
                "slos": [{"latency_ms": 100}],
                **changes,
            }
        ],
    }
    return parse_world(document, Path())


def test_sizes_are_drawn_as_the_world_says() -> None:
    sizes = np.array([each.size for each in islice(queries(world(), 3), 2000)])
    assert (sizes % 1000 == 0).all()
    assert (sizes.min(), sizes.max()) == (1000, 40_000)
    assert np.median(sizes) == pytest.approx((1000 * 40_000) ** 0.5, rel=0.1)


def test_the_middle_size_is_typical() -> None:
    fleet = build_fleet(world())
    assert {row.elements for row in fleet.measurements} == {10_000}
    assert {row.elements for row in fleet.sized} == {1000, 10_000, 40_000}


@pytest.mark.slow
def test_padding_makes_batches_where_they_pay_and_not_where_they_do_not() -> None:
    """Lines of 48 x 64 to 48 x 2400: a further item of a batch takes a share of the first."""

    def figures(share: float, *, padded: bool) -> Mapping[str, Any]:
        points = [
            {"device": "cpu-1", "batch": batch, "size": 144 * width,
             "p50_ms": width / 18.0 * (1.0 - share + share * batch)}
            for width in (64, 2400)
            for batch in (1, 8)
        ]  # fmt: skip
        sizes = {"least": 144 * 64, "most": 144 * 2400, "step": 144, "padded": padded}
        arrivals = {"kind": "poisson", "rate_per_s": 60}
        file = world(sizes=sizes, arrivals=arrivals, slos=[{"latency_ms": 1000}])
        document = file.world.model_dump()
        recogniser = {"model": "m", "accuracy": 90.0, "memory_mib": 50, "points": points}
        document["tasks"][0]["variants"]["variants"] = [recogniser]
        return simulate(parse_world(document, Path())).figures()

    alone, together = figures(0.3, padded=False), figures(0.3, padded=True)
    assert together["mean_batch"] > 2.0 > 1.1 > alone["mean_batch"]
    assert together["attainment"] > alone["attainment"] + 0.2
    alone, together = figures(1.0, padded=False), figures(1.0, padded=True)
    assert alone["attainment"] > together["attainment"]


@pytest.mark.slow
def test_dispatch_that_knows_sizes_serves_more_and_better(monkeypatch: pytest.MonkeyPatch) -> None:
    knows = simulate(world()).figures()

    def forget(_: Sequence[Measurement]) -> SizeModel:
        return SizeModel([])

    monkeypatch.setattr(engine, "SizeModel", forget)
    knows_not = simulate(world()).figures()
    assert knows["queries"] == knows_not["queries"]
    assert knows["attainment"] > 0.99 > 0.97 > knows_not["attainment"]
    assert knows["mean_accuracy"] > knows_not["mean_accuracy"] + 1.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sizes": {"least": 9, "most": 8}}, "ascending order"),
        ({"sizes": {"least": 0, "most": 8}}, "least"),
        ({"sizes": {"least": 1, "most": 8, "step": 2}}, "ascending order"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        world(**changes)


def test_points_have_sizes_or_none_has() -> None:
    file = world()
    (task,) = file.world.tasks
    point = task.variants.variants[0].points[0]  # type: ignore[union-attr]
    object.__setattr__(point, "size", 0)
    with pytest.raises(InvalidInputError, match=r"variants.0.points: size.*of all or of none"):
        build_fleet(file)


def test_there_is_no_bound_for_items_of_different_sizes() -> None:
    with pytest.raises(InvalidInputError, match=r"queries.0.sizes"):
        arrivals_by_kind(world(), 3)
