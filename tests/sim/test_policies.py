"""Policies that misbehave cost queries, not the run; late binding and scaling work."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.sim.run import simulate
from modelless.controller.sim.summary import Summary
from modelless.controller.sim.worlds.world import parse_world

from . import policies
from .books import Books, read
from .worlds import DRIFT, document, world


def run(tmp_path: Path, **changes: Any) -> tuple[Books, dict[str, Any]]:
    """The books and the figures of a run of the small world, balanced."""
    file = parse_world(document(**changes), tmp_path)
    summary = simulate(file, log=tmp_path / "log.parquet")
    books = Books(file, tmp_path / "log.parquet")
    books.check(summary.figures())
    return books, summary.figures()


def named(policy: type) -> str:
    return f"{policies.__name__}:{policy.__name__}"


def test_a_policy_that_raises_costs_its_queries_only(tmp_path: Path) -> None:
    books, figures = run(tmp_path, policies={"selection": named(policies.Raising)}, duration_s=4)
    failed = [row for row in books.rows if row["reason"] == "policy-failed"]
    assert {row["query_id"] % 7 for row in failed} == {0}
    assert figures["violations"]["policy-failed"] == len(failed) > 50
    assert figures["good"] > 400
    assert any("RuntimeError: seven" in problem for problem in figures["policy_problems"])


def test_nonsense_is_refused_and_told(tmp_path: Path) -> None:
    _, figures = run(tmp_path, policies={"selection": named(policies.Nonsense)}, duration_s=1)
    assert figures["violations"] == {"policy-failed": figures["queries"]}
    assert any("bound row 10000" in problem for problem in figures["policy_problems"])


def test_a_policy_that_only_waits_ends_all_the_same(tmp_path: Path) -> None:
    _, figures = run(tmp_path, policies={"selection": named(policies.Lazy)}, duration_s=1)
    assert figures["violations"] == {"deadline-passed": figures["queries"]}


def test_a_policy_that_never_returns_ends_its_run_by_name(tmp_path: Path) -> None:
    file = parse_world(
        document(policies={"selection": named(policies.Endless)}, limits={"policy_s": 0.7}),
        tmp_path,
    )
    summary = Summary(0, "world")
    handler = signal.getsignal(signal.SIGALRM)
    rest_s, _ = signal.setitimer(signal.ITIMER_REAL, 200.0)
    try:
        with pytest.raises(InvalidInputError, match=r"Endless\.on_idle \(.*, line \d+\)"):
            simulate(file, log=tmp_path / "log.parquet", summary=summary)
        assert 100.0 < signal.getitimer(signal.ITIMER_REAL)[0] < 200.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest_s)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert len(read(tmp_path / "log.parquet")) == summary.total.queries > 0


def test_in_a_thread_nobody_watches(tmp_path: Path) -> None:
    file = parse_world(document(duration_s=0.5, limits={"policy_s": 0.1}), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(simulate, file).result().total.queries > 0


def test_what_waits_for_ever_is_refused_after_the_drain(tmp_path: Path) -> None:
    _, figures = run(
        tmp_path,
        policies={"selection": named(policies.Lazy)},
        duration_s=0.5,
        limits={"drain_s": 1, "default_latency_ms": 3_600_000},
        queries=[{"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 40}}],
    )
    assert figures["violations"] == {"shutting-down": figures["queries"]}


def test_late_binding_runs(tmp_path: Path) -> None:
    books, figures = run(tmp_path, policies={"selection": named(policies.Late)}, duration_s=3)
    assert figures["good"] > 200
    assert {row["reason"] for row in books.ran} == {"deferred"}


def test_a_scaling_policy_that_raises_leaves_things_as_they_are(tmp_path: Path) -> None:
    books, figures = run(tmp_path, policies={"scaling": named(policies.RaisingScaling)})
    assert any("RaisingScaling raised" in problem for problem in figures["policy_problems"])
    assert any(row["action"] == "policy-problem" for row in books.control)
    assert figures["good"] > 1000


def test_scaling_starts_and_stops_workers(tmp_path: Path) -> None:
    device = {"name": "cpu-1", "count": 2, "min_workers": 1, "max_workers": 3, "start_s": 1.5}
    books, figures = run(
        tmp_path,
        devices=[{**device, "memory_mib": 400}],
        tasks=[{"name": "vision", "variants": {"kind": "ladder", "count": 3}}],
        policies={"scaling": named(policies.Growing)},
    )
    at_s = {row["worker"]: row["at_s"] for row in books.control if row["action"] == "worker-up"}
    assert at_s == {"cpu-1/0": 0.0, "cpu-1/1": 0.0, "cpu-1/2": 1.5}
    gone = [row for row in books.control if row["action"] == "worker-gone"]
    assert len(gone) == 2
    assert all(row["at_s"] >= 5.0 for row in gone)
    assert figures["rent_usd"] == pytest.approx(0.05 / 3600 * _alive_s(books, figures))


def test_eviction_nonsense_is_made_good(tmp_path: Path) -> None:
    changes = {**DRIFT, "policies": {"eviction": named(policies.Backwards)}}
    _, figures = run(tmp_path, **changes)
    assert figures["evictions"] > 0
    assert any("permutation" in problem for problem in figures["policy_problems"])


def test_unknown_policies_and_settings_are_refused() -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        simulate(world(policies={"selection": "best-of-all"}))
    with pytest.raises(InvalidInputError, match=r"most-accurate-feasible\.quantil"):
        simulate(world(policies={"selection": {"policy": "most-accurate-feasible", "quantil": 1}}))


def _alive_s(books: Books, figures: dict[str, Any]) -> float:
    up = {row["worker"]: row["at_s"] for row in books.control if row["action"] == "worker-up"}
    down = {row["worker"]: row["at_s"] for row in books.control if row["action"] == "worker-gone"}
    end_s = float(figures["end_s"])
    return sum(float(down.get(name, end_s)) - float(since_s) for name, since_s in up.items())


def test_how_good_plans_are_is_in_the_figures_and_in_the_control_log(tmp_path: Path) -> None:
    policy = {"policy": "proteus", "interval_s": 1.0}
    books, figures = run(tmp_path, policies={"scaling": policy}, duration_s=4)
    plans = [row for row in books.control if row["action"] == "plan"]
    assert figures["plans"]["count"] == len(plans) >= 4
    assert figures["plans"]["proven"] == len(plans)
    assert figures["plans"]["worst_gap"] <= 1e-4
    assert {row["reason"].split(",")[-1].strip() for row in plans} <= {
        "solved to optimality", "proven the best",
    }  # fmt: skip
    _, figures = run(tmp_path, duration_s=1)
    assert figures["plans"] is None
