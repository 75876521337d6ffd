"""``modelless top``: figures of what happened between two statuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.api.v2_reply import render_json
from modelless.controller.usecases import top
from modelless.controller.usecases.top import figures_of

from .conftest import Run
from .servers import STATUS, Server, running

SMALL, LARGE = "pixels/mean/small@1", "pixels/mean/large@1"


def status_at(
    up_s: float, served: int, late: int, refused: int, small: int, cost_usd: float
) -> dict[str, Any]:
    """A status at that time, with counts since the start."""
    ends = {"served": served, "served-late": late, "refused": refused, "cancelled": 3}
    return {
        **copy.deepcopy(STATUS),
        "up_s": up_s,
        "began_s": 1000.0,
        "served_by_variant": {SMALL: small, LARGE: served + late - small},
        "statistics": {"outcomes": {"pixels": ends}, "device_cost_usd": cost_usd},
    }


BEFORE = status_at(10.0, 100, 10, 5, 60, 1.0)
AFTER = status_at(14.0, 190, 12, 13, 90, 1.01)


def test_figures_are_of_the_interval() -> None:
    figures = figures_of(BEFORE, AFTER, {SMALL: 60.0, LARGE: 90.0})
    assert figures["tasks"]["pixels"] == {
        "served": 90, "served_late": 2, "refused": 8, "queries_per_s": 25.0,
        "attainment_percent": 90.0,
    }  # fmt: skip
    assert figures["mean_accuracy_percent"] == pytest.approx((30 * 60.0 + 62 * 90.0) / 92)
    assert figures["cost_usd_per_hour"] == pytest.approx(9.0)
    assert figures["queued"] == 2
    assert figures["variants"][SMALL]["queries_per_s"] == pytest.approx(7.5)


def test_nothing_served_has_no_attainment_and_no_accuracy() -> None:
    figures = figures_of(BEFORE, {**BEFORE, "up_s": 12.0}, {SMALL: 60.0})
    assert figures["tasks"]["pixels"]["attainment_percent"] is None
    assert figures["mean_accuracy_percent"] is None
    assert figures["queries_per_s"] == 0.0


def test_a_control_loop_that_began_anew_counts_from_zero() -> None:
    anew = {**status_at(2.0, 8, 0, 2, 8, 0.001), "began_s": 2000.0}
    figures = figures_of(AFTER, anew, {})
    assert figures["tasks"]["pixels"]["attainment_percent"] == 80.0
    assert figures["queries_per_s"] == 5.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose status changes from one look to the next."""
    looks = iter([BEFORE, AFTER])
    with running() as server:
        server.answers["/modelless/status"] = render_json(next(looks))

        def sleep(_: float) -> None:
            server.answers["/modelless/status"] = render_json(next(looks))

        monkeypatch.setattr(top.time, "sleep", sleep)
        yield server


def test_one_look_for_people(run: Run, server: Server, profiled: Path) -> None:
    done = run("top", "--url", server.url, "--once")
    assert done.code == 0, done.err
    assert "25.0 queries/s, 2 waiting" in done.out
    assert "90.0 %" in done.out
    assert "9.000 USD/h" in done.out


def test_one_look_for_programs(run: Run, server: Server) -> None:
    done = run("top", "--url", server.url, "--once", "--json")
    assert done.document["tasks"]["pixels"]["attainment_percent"] == 90.0


def test_nothing_is_up(run: Run) -> None:
    done = run("top", "--once")
    assert done.code == 1
    assert "modelless up" in done.err
