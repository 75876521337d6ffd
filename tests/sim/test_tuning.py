"""Settings searched in the simulator: what is varied, what judges, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelless.common.errors import InvalidInputError
from modelless.controller.config import load_settings
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import WorldFile, load_world, parse_world
from modelless.controller.usecases.simulation import tuning
from modelless.controller.usecases.simulation.tuning import Bound, bounds_of, tune
from modelless.policies.discovery import BUILT_IN, build_policy
from modelless.policies.systems import SEAMS
from tests.unit.replay.session import record_device, record_gateway, snapshot

pytest.importorskip("optuna", reason="tuning is NOT TESTED: Optuna is not installed")


def world(tmp_path: Path, **changes: Any) -> Path:
    """Twenty seconds of a recorded rush, on two devices and four variants."""
    trace = tmp_path / "trace.csv"
    rows = [f"{n / 40:.3f},vision,300" for n in range(800)]
    trace.write_text("\n".join(["arrival_s,task,latency_ms", *rows]) + "\n")
    variants = {
        "kind": "ladder", "count": 4, "latency_ms": [15, 90], "accuracy": [60, 80],
        "memory_mib": [15, 60],
    }  # fmt: skip
    document = {
        "name": "rush",
        "duration_s": 20.0,
        "devices": [{"name": "cpu-1", "count": 2, "memory_mib": 512}],
        "tasks": [{"name": "vision", "variants": variants}],
        "queries": [{"tasks": ["vision"], "arrivals": {"kind": "trace", "path": "trace.csv"}}],
        **changes,
    }
    file = tmp_path / "world.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_it_proposes_what_is_cheaper_where_it_was_not_searched(tmp_path: Path) -> None:
    output = tmp_path / "tuned.yaml"
    policies = {"selection": {"policy": "best-value", "target_utilisation": 1.9}}
    found = tune(
        world(tmp_path, policies=policies), objective="cost", subject_to=["attainment>=0.9"],
        trials=12, seeds=1, output=output,
    )  # fmt: skip
    assert found["proposed"] is not None, found["verdict"]
    assert found["gain"]["low"] > 0.0
    judged = found["found"]["judged"]
    assert judged["attainment"] >= 0.9
    assert judged["cost"] < found["in_charge"]["judged"]["cost"] * (1.0 - tuning.NEAR)
    assert "accuracy" in found["verdict"]
    assert load_settings(output).policies.selection == found["proposed"]["selection"]
    assert found["in_charge"]["policies"]["selection"] == policies["selection"]


def test_it_says_that_nothing_is_better(tmp_path: Path) -> None:
    output = tmp_path / "tuned.yaml"
    found = tune(
        world(tmp_path),
        objective="rent",
        subject_to=["accuracy>=77"],
        trials=4,
        seeds=1,
        output=output,
    )
    assert found["proposed"] is None
    assert found["verdict"].startswith("Keep the settings in charge")
    assert not output.exists()


def test_a_real_recording_is_tuned(tmp_path: Path) -> None:
    known = snapshot(
        gateways={"device_class": "cpu-1"}, policies={"selection": "cheapest-feasible"},
        limits={"max_batch": 8, "default_latency_ms": 5000.0},
    )  # fmt: skip
    record_gateway(tmp_path, known, queries=300)
    record_device(tmp_path)
    before = sorted(tmp_path.iterdir())
    found = tune(tmp_path, objective="cost", subject_to=["attainment>=0.1"], trials=3, seeds=1)
    assert found["trials"] == 3
    assert found["in_charge"]["policies"]["selection"] == {"policy": "cheapest-feasible"}
    assert sorted(tmp_path.iterdir()) == before


def test_a_recording_is_searched_in_its_first_half_and_judged_in_its_second(
    tmp_path: Path,
) -> None:
    file = tuning._world_of(world(tmp_path), tmp_path)
    halves = tuning._halves(file)
    streams = [half.world.queries[0].arrivals for half in halves]
    assert [
        (each.from_s, half.world.duration_s) for each, half in zip(streams, halves, strict=True)
    ] == [  # type: ignore[union-attr]
        (0.0, 10.0),
        (10.0, 10.0),
    ]
    drawn = parse_world(
        {
            **yaml.safe_load((tmp_path / "world.yaml").read_text()),
            "queries": [{"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 1}}],
        },
        tmp_path,
    )
    assert tuning._halves(drawn) == (drawn, drawn)


def test_the_halves_part_the_queries_whenever_streams_begin_and_however_quick_their_time(
    tmp_path: Path,
) -> None:
    trace = {"kind": "trace", "path": "trace.csv"}
    streams = [
        {"tasks": ["vision"], "arrivals": {**trace, "from_s": 2.0}, "time_scale": 1.5},
        {"tasks": ["vision"], "arrivals": trace, "start_s": 5.0},
        {"tasks": ["vision"], "arrivals": trace, "start_s": 12.0},
    ]
    whole = load_world(world(tmp_path, queries=streams, duration_s=16.0))
    halves = tuning._halves(whole)
    assert [len(half.world.queries) for half in halves] == [2, 3]
    asked = [
        after_s + one.arrival_s
        for after_s, half in zip((0.0, 8.0), halves, strict=True)
        for one in queries(half, seed=0)
    ]
    assert asked == pytest.approx([one.arrival_s for one in queries(whole, seed=0)])
    late = load_world(world(tmp_path, queries=[{**streams[1], "start_s": 10.0}]))
    assert tuning._halves(late) == (late, late)


def test_each_half_has_the_faults_of_its_time(tmp_path: Path) -> None:
    slow = {"kind": "worker-slows", "worker": "cpu-1/0", "factor": 2.0}
    faults = [
        {**slow, "at_s": 1.0, "until_s": 3.0},
        {**slow, "at_s": 8.0, "until_s": 13.0},
        {**slow, "at_s": 14.0, "until_s": 30.0},
        {"kind": "worker-dies", "worker": "cpu-1/1", "at_s": 9.0},
        {"kind": "worker-dies", "worker": "cpu-1/0", "at_s": 11.0, "back_s": 12.0},
    ]
    first, second = tuning._halves(load_world(world(tmp_path, faults=faults)))

    def times(half: WorldFile) -> list[tuple[float, float | None]]:
        told = [fault.model_dump() for fault in half.world.faults]
        return [(each["at_s"], each.get("until_s", each.get("back_s"))) for each in told]

    assert times(first) == [(1.0, 3.0), (8.0, 13.0), (9.0, None)]
    assert times(second) == [(0.0, 3.0), (4.0, 20.0), (0.0, None), (1.0, 2.0)]


@pytest.mark.parametrize(
    ("seam", "name"), [(seam, name) for seam, kind in SEAMS.items() for name in BUILT_IN[kind]]
)
def test_whatever_is_tried_is_taken(seam: str, name: str) -> None:
    for place, varied in tuning._space({seam: {"policy": name}}):
        for value in varied.values or (varied.low, varied.value, varied.high):
            setting = place.partition(".")[2]
            build_policy(SEAMS[seam], {"policy": name, setting: value}, clairvoyant=True)


def test_bounds_are_read() -> None:
    (most, least) = bounds_of(["cost<=2.5", " attainment >= 0.99 "])
    assert (most, least) == (Bound("cost", 1, 2.5), Bound("attainment", -1, 0.99))
    assert most.excess({"cost": 3.0}) == 0.5
    assert least.excess({"attainment": 1.0}) < 0.0
    assert [str(each) for each in (most, least)] == ["cost<=2.5", "attainment>=0.99"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"subject_to": ["attainment=0.99"]}, "FIGURE>=NUMBER"),
        ({"subject_to": ["beauty>=1"]}, "figures: cost, rent"),
        ({"objective": "beauty"}, "objective"),
        ({"output": "."}, "not there yet"),
        ({"output": "nowhere/tuned.yaml"}, "--output: got 'nowhere/tuned.yaml'; allowed: a file"),
    ],
)
def test_refusals(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        tune(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("gain", "after", "is_other", "worth", "says"),
    [
        ((0.2, 0.1, 0.3), 0.995, True, True, "Better: what was found is 20.0% better"),
        ((0.01, 0.005, 0.015), 0.995, True, False, "within 2 % of the best found"),
        ((0.2, -0.1, 0.5), 0.995, True, False, "may be chance"),
        ((0.2, 0.1, 0.3), 0.98, True, False, "breaks attainment>=0.99"),
        ((0.0, 0.0, 0.0), 0.995, False, False, "found none that are better"),
    ],
)
def test_the_verdict(
    gain: tuple[float, float, float], after: float, is_other: bool, worth: bool, says: str
) -> None:
    interval = dict(zip(("mean", "low", "high"), gain, strict=True))
    told = tuning._verdict(
        interval, {"attainment": 0.995}, {"attainment": after}, bounds_of(["attainment>=0.99"]),
        is_other=is_other,
    )  # fmt: skip
    assert told[0] is worth
    assert says in told[1]


def test_what_restores_a_bound_is_better_whatever_it_costs() -> None:
    told = tuning._verdict(
        {"mean": -0.1, "low": -0.2, "high": 0.0}, {"attainment": 0.9}, {"attainment": 0.995},
        bounds_of(["attainment>=0.99"]), is_other=True,
    )  # fmt: skip
    assert told[0]
    assert "which the settings in charge break" in told[1]


@pytest.mark.parametrize(("gain_low", "worth"), [(0.1, True), (-0.1, False)])
def test_what_breaks_a_bound_no_more_than_the_settings_in_charge_is_better_if_it_surely_gains(
    gain_low: float, worth: bool
) -> None:
    told = tuning._verdict(
        {"mean": 0.2, "low": gain_low, "high": 0.5}, {"attainment": 0.9}, {"attainment": 0.98},
        bounds_of(["attainment>=0.99"]), is_other=True,
    )  # fmt: skip
    assert told[0] is worth
    assert ("but no more than the settings in charge" in told[1]) is worth
