"""Arrivals are what their source says: rate, spread, popularity; scaled, streamed, reproducible."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise, takewhile
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.randomness import stream
from modelless.controller.sim.worlds.arrivals import Arrival, ArrivalsSettings
from modelless.controller.sim.worlds.query_streams import Asked, queries
from modelless.controller.sim.worlds.world import parse_world
from modelless.policies.views import QueryView

from .worlds import world

SETTINGS: TypeAdapter[ArrivalsSettings] = TypeAdapter(ArrivalsSettings)
SYNTHETIC: list[dict[str, Any]] = [
    {"kind": "poisson", "rate_per_s": 50},
    {"kind": "gamma", "rate_per_s": 50, "cv": 3},
    {"kind": "gamma", "rate_per_s": 50, "cv": 0.3},
    {"kind": "bursts", "low_per_s": 10, "high_per_s": 210, "mean_low_s": 4, "mean_high_s": 1},
    {"kind": "diurnal", "mean_per_s": 50, "swing": 1, "period_s": 100},
    {"kind": "flash-crowd", "base_per_s": 50, "peak_per_s": 50, "at_s": 10},
]


def source(settings: dict[str, Any], scale: float = 1.0, seed: int = 1) -> Iterator[Arrival]:
    """The arrivals that ``settings`` describe."""
    checked = SETTINGS.validate_python(settings)
    return checked.arrivals(Path(), scale, stream(seed, "test"), inf)


def until(end_s: float, settings: dict[str, Any], scale: float = 1.0) -> list[float]:
    """Their times up to ``end_s``."""
    return [at_s for at_s, _ in takewhile(lambda a: a[0] < end_s, source(settings, scale))]


def asked(folder: Path, **stream_settings: Any) -> Iterator[Asked]:
    """The queries of a world with one stream."""
    tasks = [{"name": "t", "copies": 6, "variants": {"kind": "ladder"}}]
    entry = {"tasks": ["t-*"], **stream_settings}
    return queries(world(folder, tasks=tasks, queries=[entry], duration_s=10_000), 1)


@pytest.mark.parametrize("settings", SYNTHETIC, ids=lambda s: f"{s['kind']}{s.get('cv', '')}")
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_rates_and_order(settings: dict[str, Any], scale: float) -> None:
    times = until(1000.0, settings, scale)
    assert times == sorted(times)
    assert len(times) / 1000.0 == pytest.approx(50 * scale, rel=0.12)


@pytest.mark.parametrize(("cv", "slack"), [(0.3, 0.05), (1.0, 0.05), (3.0, 0.1)])
def test_gaps_are_as_spread_as_asked(cv: float, slack: float) -> None:
    times = until(800.0, {"kind": "gamma", "rate_per_s": 50, "cv": cv})
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=slack)


def test_the_day_has_its_peak_and_its_night() -> None:
    times = np.array(until(1000.0, SYNTHETIC[4]))
    phase = times % 100.0
    peak = ((phase < 10) | (phase > 90)).sum()
    night = ((phase > 40) & (phase < 60)).sum()
    assert peak > 20 * night


def test_the_crowd_comes_once() -> None:
    settings = {"kind": "flash-crowd", "base_per_s": 10, "peak_per_s": 500, "at_s": 50}
    counts = np.histogram(until(150.0, settings), bins=15, range=(0, 150))[0]
    assert counts[:5].max() < 160
    assert counts[5:7].max() > 4000
    assert counts[-1] < 1000


def test_bursts_are_bursty() -> None:
    counts = np.histogram(until(1000.0, SYNTHETIC[3]), bins=1000, range=(0, 1000))[0]
    assert counts.var() / counts.mean() > 20


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 3.7])
def test_recorded_arrivals_are_thinned_or_repeated(scale: float, tmp_path: Path) -> None:
    recorded = sorted(np.random.default_rng(0).uniform(0, 100, 4000).tolist())
    path = tmp_path / "t.csv"
    path.write_text("arrival_s\n" + "\n".join(map(str, recorded)), encoding="utf-8")
    times = until(1e9, {"kind": "trace", "path": str(path)}, scale)
    assert times == sorted(times)
    assert len(times) == pytest.approx(4000 * scale, rel=0.05)
    if scale == 1.0:
        assert times == recorded


def test_tasks_of_a_trace_are_kept(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,task\n0,t-3\n0.5,t-1\n", encoding="utf-8")
    found = list(asked(tmp_path, arrivals={"kind": "trace", "path": "t.csv"}))
    assert [(query.arrival_s, query.task) for query in found] == [(0.0, "t-3"), (0.5, "t-1")]


def test_streams_of_rates_become_tasks(tmp_path: Path) -> None:
    rows = ["start_s,stream,rate_per_s,more", "0,a,30,x", "0,b,10,x", "50,a,0,x"]
    (tmp_path / "r.csv").write_text("\n".join(rows), encoding="utf-8")
    settings = {"kind": "rates", "path": "r.csv", "window_s": 50}
    found = list(asked(tmp_path, arrivals=settings))
    first = Counter(query.task for query in found if query.arrival_s < 50)
    second = Counter(query.task for query in found if query.arrival_s >= 50)
    assert first["t-0"] == pytest.approx(1500, rel=0.1)
    assert first["t-1"] == pytest.approx(500, rel=0.2)
    assert set(second) == {"t-1"}
    assert found[-1].arrival_s < 100


def test_time_can_be_compressed_and_moved(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s\n0\n60\n120\n", encoding="utf-8")
    settings = {"kind": "trace", "path": "t.csv"}
    found = asked(tmp_path, arrivals=settings, time_scale=60, start_s=5)
    assert [query.arrival_s for query in found] == [5.0, 6.0, 7.0]


def test_a_trace_may_be_cut(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s\n0\n60\n120\n", encoding="utf-8")
    settings = {"kind": "trace", "path": "t.csv", "from_s": 30}
    found = asked(tmp_path, arrivals=settings, time_scale=60)
    assert [query.arrival_s for query in found] == [0.5, 1.5]
    with pytest.raises(InvalidInputError, match=r"at 121 s \(from_s\) or later"):
        list(asked(tmp_path, arrivals={**settings, "from_s": 121}))


def test_popularity_is_zipf_and_drifts(tmp_path: Path) -> None:
    steady = {"kind": "poisson", "rate_per_s": 100}
    counts = Counter(query.task for query in islice(asked(tmp_path, arrivals=steady), 20_000))
    assert counts["t-0"] / counts["t-1"] == pytest.approx(2.0, rel=0.1)
    assert counts["t-0"] / counts["t-5"] == pytest.approx(6.0, rel=0.15)
    drifting = {"drift_every_s": 10, "drift_swaps": 3}
    found = list(islice(asked(tmp_path, arrivals=steady, popularity=drifting), 20_000))
    tops = [
        Counter(query.task for query in found if at_s <= query.arrival_s < at_s + 10)
        for at_s in range(0, 200, 10)
    ]
    assert len({top.most_common(1)[0][0] for top in tops}) > 2


def test_slos_come_by_weight(tmp_path: Path) -> None:
    slos = [{"weight": 3, "tenant": "a"}, {"weight": 1, "tenant": "b"}]
    settings = {"kind": "poisson", "rate_per_s": 100}
    found = islice(asked(tmp_path, arrivals=settings, slos=slos), 20_000)
    counts = Counter(query.client.slo.tenant for query in found)
    assert counts["a"] / counts["b"] == pytest.approx(3.0, rel=0.08)


def test_streams_do_not_depend_on_each_other(tmp_path: Path) -> None:
    first = {"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 5}}
    other = {"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 7}, "site": "far"}
    network = {"delays": [{"between": ["core", "far"], "one_way_ms": 1}]}
    alone = [q.arrival_s for q in queries(world(queries=[first]), 3)]
    both = list(queries(world(queries=[first, other], network=network), 3))
    assert [q.arrival_s for q in both if q.client.site == "core"] == alone
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(both))


def test_memory_does_not_grow_with_the_trace() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        for _ in islice(source(SYNTHETIC[0]), count):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(10)
    assert peak(60_000) < 1.5 * peak(5_000) + 10_000


def test_a_trace_may_name_each_querys_limits(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "arrival_s,task,latency_ms,min_accuracy,max_cost_usd,tenant,priority,items,when_late\n"
        "0.5,a,40,70,,careful,3,2,serve\n"
        "0.7,a/rung-01,,,0.001,,,,\n"
    )
    document = {
        "devices": [{"name": "cpu-1"}],
        "tasks": [{"name": "a", "variants": {"kind": "ladder"}}],
        "queries": [{"tasks": ["a"], "arrivals": {"kind": "trace", "path": "t.csv"}}],
        "limits": {"default_latency_ms": 900},
    }
    first, second = queries(parse_world(document, tmp_path), seed=1)
    slo = first.client.slo
    assert (first.arrival_s, first.task, first.client.latency_s) == (0.5, "a", 0.04)
    assert (slo.min_accuracy, slo.tenant, slo.priority, slo.items) == (70.0, "careful", 3, 2)
    assert (second.task, second.client.latency_s) == ("a/rung-01", 0.9)
    assert second.client.slo.max_cost_usd == 0.001
    assert (slo.when_late, second.client.slo.when_late) == ("serve", "refuse")

    (tmp_path / "t.csv").write_text("arrival_s,items\n0.5,9\n")
    with pytest.raises(InvalidInputError, match=r"items at arrival_s 0\.5: got 9; allowed: 1 to 8"):
        list(queries(parse_world(document, tmp_path), seed=1))
    (tmp_path / "t.csv").write_text("arrival_s,priority\n0.5,high\n")
    with pytest.raises(InvalidInputError, match="line 2: priority: got 'high'"):
        list(queries(parse_world(document, tmp_path), seed=1))


def test_columns_that_nobody_reads_may_be_called_as_they_like(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,task,,,note,note\n0.5,a,,,x,y\n", encoding="utf-8")
    document = {
        "devices": [{"name": "cpu-1"}],
        "tasks": [{"name": "a", "variants": {"kind": "ladder"}}],
        "queries": [{"tasks": ["a"], "arrivals": {"kind": "trace", "path": "t.csv"}}],
    }
    (only,) = queries(parse_world(document, tmp_path), seed=1)
    assert (only.arrival_s, only.task) == (0.5, "a")
    path.write_text("arrival_s,task,task\n0.5,a,a\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"columns: got \['task'\]; allowed: each column"):
        list(queries(parse_world(document, tmp_path), seed=1))


def test_policies_see_whose_deadline_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,latency_ms\n0.5,40\n0.7,\n", encoding="utf-8")
    document = {
        "devices": [{"name": "cpu-1"}],
        "tasks": [{"name": "a", "variants": {"kind": "ladder"}}],
        "queries": [{"tasks": ["a"], "arrivals": {"kind": "trace", "path": "t.csv"}}],
    }
    views = [
        QueryView(1, one.task, 0.0, 1.0, *one.client.limits)  # type: ignore[arg-type]
        for one in queries(parse_world(document, tmp_path), seed=1)
    ]
    assert [view.has_default_deadline for view in views] == [False, True]
