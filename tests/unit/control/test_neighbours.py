"""How much the devices of one host slow each other down."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from modelless.controller.control.messages import MemberReport
from modelless.controller.control.neighbours import NeighbourSlowdowns, busy_neighbours
from modelless.policies.views import Instance, WorkerState
from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.cost_model.slowdowns import Bottleneck, PairRun, Slowdowns
from modelless.variants.vocabulary import Placement
from tests.unit.cli.tiny import measurement

CALM, THIRSTY = Placement("calm", "cpu-1"), Placement("thirsty", "cpu-1")
KINDS = {CALM: Bottleneck.COMPUTE_BOUND, THIRSTY: Bottleneck.MEMORY_BOUND}
SLOWDOWNS = {(CALM, CALM): 1.0, (CALM, THIRSTY): 1.1, (THIRSTY, CALM): 1.2, (THIRSTY, THIRSTY): 2.0}
PAIRS = [
    PairRun(
        placement=own,
        kind=KINDS[own],
        neighbour=other,
        neighbour_kind=KINDS[other],
        alone_s=0.01,
        beside_s=0.01 * slowdown,
        repeats=9,
        trusted=True,
        measured_at=datetime(2025, 1, 1, tzinfo=UTC),
        fingerprint="here",
    )
    for (own, other), slowdown in SLOWDOWNS.items()
]


def report(
    name: str, *held: str, busy_share: float | None = 0.0, host: str = "here"
) -> MemberReport:
    state = None
    if busy_share is not None:
        instances = tuple(Instance(name, variant, 1, 0.1, 0.0, 1) for variant in held)
        state = WorkerState(name, "cpu-1", 1 << 30, instances, busy_share)
    return MemberReport(name, True, state, host=host)


def slowdowns(*reports: MemberReport, own: int = 0) -> Mapping[str, float]:
    """On the device of one of the members, beside the others."""
    rows = [
        measurement("calm", 1, 10.0, memory_bytes=1_000_000),
        measurement("thirsty", 1, 10.0, memory_bytes=80_000_000),
    ]
    model = ServingCostModel(rows, pair_runs=PAIRS)
    known = NeighbourSlowdowns(model.slowdowns, ["calm", "thirsty"])
    found = known.slowdowns(reports[own], reports)
    assert known.slowdowns(reports[own], reports) == found
    return found


def test_neighbours_are_the_other_devices_of_the_host() -> None:
    reports = [
        report("a", busy_share=0.9),
        report("b", busy_share=0.5),
        report("c", busy_share=0.25),
        report("d", busy_share=1.0, host="elsewhere"),
        report("no device", busy_share=None),
    ]
    assert busy_neighbours(reports[0], reports) == 0.75
    assert busy_neighbours(reports[3], reports) == 0.0
    assert busy_neighbours(reports[4], reports) == pytest.approx(1.65)


def test_what_the_others_hold_slows_what_is_placed_beside_them() -> None:
    reports = [
        report("a", "thirsty"),
        report("b", "thirsty"),
        report("c", "calm", "thirsty"),
        report("d"),
        report("e", "thirsty", host="elsewhere"),
    ]
    found = slowdowns(*reports)
    assert found["thirsty"] == pytest.approx(2.0 * (1.2 * 2.0) ** 0.5)
    assert found["calm"] == pytest.approx(1.1 * 1.1**0.5)
    assert slowdowns(*reports, own=4) == {}


def test_without_pair_runs_no_worker_is_preferred() -> None:
    reports = [report("a"), report("b", "thirsty")]
    assert NeighbourSlowdowns(Slowdowns(), ["calm", "thirsty"]).slowdowns(reports[0], reports) == {}
