"""A recording as a world: arrivals and limits as they were, profiles as they were measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.controller.control.messages import VersionsChanged
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import QueryArrived
from modelless.controller.replay import as_world
from modelless.controller.replay.as_world import Arrival, arrivals_in, write_world
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds import world as world_module
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.query_streams import queries
from modelless.controller.sim.worlds.world import load_world
from modelless.variants.registry.versions import Line
from tests.unit.dispatch.world import make_query

from .session import CLOCK, START_S, open_tape, record_device, record_gateway, snapshot

SETTINGS = {
    "gateways": {"device_class": "cpu-1"},
    "policies": {"selection": "cheapest-feasible"},
    "limits": {"max_batch": 8, "default_latency_ms": 5000.0},
}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    known = snapshot(**SETTINGS)
    record_gateway(tmp_path, known, queries=300)
    record_device(tmp_path)
    return tmp_path


def test_arrivals_and_limits_are_those_recorded(recording: Path) -> None:
    told = write_world(recording, recording / "again.yaml")
    file = load_world(recording / "again.yaml")
    recorded = arrivals_in(recording)
    asked = list(queries(file, seed=0))
    assert told["queries"] == len(asked) == len(recorded) == 301
    assert recorded[0].at_s == CLOCK["time_s"]
    for one, (at_s, query) in zip(asked, recorded, strict=True):
        slo, latency_s = one.client.slo, query.deadline_s - query.arrival_s
        assert one.arrival_s == pytest.approx(at_s - recorded[0].at_s, abs=1e-6)
        assert one.task == query.scope
        assert " " not in query.scope  # not an arm of a trial
        assert one.client.latency_s == pytest.approx(min(latency_s, 5.0), rel=1e-4)
        assert (slo.min_accuracy, slo.items) == (query.min_accuracy_percent, query.items)
        assert (slo.priority, slo.tenant) == (query.priority, query.tenant)
        assert slo.when_late == ("serve" if query.serve_late else "refuse")
    assert START_S not in [one.arrival_s for one in asked]


def test_the_world_holds_the_devices_profiles_and_policies_of_then(recording: Path) -> None:
    write_world(recording, recording / "again.yaml")
    world = load_world(recording / "again.yaml").world
    (device,) = world.devices
    assert (device.name, device.count, device.memory_mib) == ("cpu-1", 1, 1024.0)
    assert world.policies.selection == "cheapest-feasible"
    assert world.network.worker_hop_ms == pytest.approx(0.4)  # of the workers' 0.8 ms, each way
    (task,) = world.tasks
    assert task.variants.kind == "written"
    assert len(task.variants.variants) == 3
    figures = simulate(load_world(recording / "again.yaml")).figures()
    assert figures["queries"] == 301
    assert figures["answered"] > 50


def test_writing_that_fails_leaves_the_world_that_was_there(
    recording: Path, full_disk: Callable[[], None]
) -> None:
    names = ("again.yaml", "again.trace.csv")
    for name in names:
        (recording / name).write_text("before")
    before = set(recording.iterdir())
    full_disk()
    with pytest.raises(EnvironmentUnfitError, match="cannot be written"):
        write_world(recording, recording / "again.yaml")
    assert [(recording / name).read_text() for name in names] == ["before"] * 2
    assert set(recording.iterdir()) == before


def test_queries_that_no_batch_can_hold_are_left_out(tmp_path: Path) -> None:
    known = snapshot(**SETTINGS | {"limits": {"max_batch": 2}})
    record_gateway(tmp_path, known, queries=60)
    told = write_world(tmp_path, tmp_path / "again.yaml")
    assert 0 < told["too_large"] < told["queries"]
    assert told["too_large"] + told["queries"] == 61
    items = [one.client.slo.items for one in queries(load_world(tmp_path / "again.yaml"), seed=0)]
    assert len(items) == told["queries"]
    assert max(items) <= 2


def test_no_recording_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--record"):
        write_world(tmp_path, tmp_path / "w.yaml")


def test_a_world_of_settings_without_bounds_can_be_read(tmp_path: Path) -> None:
    known = snapshot(
        **SETTINGS
        | {
            "limits": {"max_queued": 5_000_000},
            "pools": [{"device_class": "cpu-1", "workers": 2, "max_workers": 10**6}],
        }
    )
    for number, variant in enumerate(known.variants.values()):
        low = replace(variant.accuracy, percent=0.1 * number)
        known.variants[variant.id] = replace(variant, accuracy=low)  # type: ignore[index]
    record_gateway(tmp_path, known, queries=20)
    path = tmp_path / f"{'n' * 120}.yaml"
    write_world(tmp_path, path)
    file = load_world(path)
    assert len(file.world.name) == world_module.MOST_LETTERS == as_world.MOST_LETTERS
    assert file.world.limits.max_queued == world_module.MOST_QUEUED == as_world.MOST_QUEUED
    assert file.world.devices[0].max_workers == world_module.MOST_WORKERS == as_world.MOST_WORKERS
    assert len(build_fleet(file).variants) == 3


def test_workers_that_may_be_resized_stay_so(tmp_path: Path) -> None:
    pool = {"device_class": "cpu-1", "max_workers": 2, "max_cores": 3, "sizes": ["cpu-2"]}
    known = snapshot(**SETTINGS | {"gateways": {"device_class": None}, "pools": [pool]})
    two = replace(known.device_classes["cpu-1"], name="cpu-2", threads=2)
    known = known._replace(device_classes={**known.device_classes, "cpu-2": two})
    record_gateway(tmp_path, known, queries=20)
    record_device(tmp_path)
    write_world(tmp_path, tmp_path / "w.yaml")
    small, large = load_world(tmp_path / "w.yaml").world.devices
    assert (small.name, small.count, small.max_workers) == ("cpu-1", 1, 2)
    assert (small.sizes, small.max_cores) == (("cpu-2",), 3)
    assert (large.name, large.count, large.threads) == ("cpu-2", 0, 2)
    assert large.memory_mib == small.memory_mib


def test_scaling_leaves_the_gateways_own_devices(tmp_path: Path) -> None:
    pool = {"device_class": "cpu-1", "workers": 2, "min_workers": 1, "max_workers": 3}
    known = snapshot(**SETTINGS | {"pools": [{**pool, "max_cores": 3}]})
    record_gateway(tmp_path, known, queries=20)
    record_gateway(tmp_path, known, queries=20, name="h")
    write_world(tmp_path, tmp_path / "w.yaml")
    (device,) = load_world(tmp_path / "w.yaml").world.devices
    assert (device.min_workers, device.count, device.max_workers) == (3, 4, 5)
    assert device.max_cores == 5


def test_a_cluster_that_does_not_scale_does_not_in_its_world(tmp_path: Path) -> None:
    known = snapshot(**SETTINGS | {"pools": [{"device_class": "cpu-1", "workers": 2}]})
    record_gateway(tmp_path, known, queries=20)
    write_world(tmp_path, tmp_path / "w.yaml")
    (device,) = load_world(tmp_path / "w.yaml").world.devices
    assert device.fewest_workers == device.count == device.most_workers == 3


def test_queries_of_tasks_without_a_profile_are_left_out(tmp_path: Path) -> None:
    known = snapshot(**SETTINGS)
    record_gateway(tmp_path, known, queries=20)
    tape = open_tape(tmp_path, "gateway", known.document(), "h")
    asked = [make_query(n, START_S + n, scope="texts/any") for n in range(5)]
    for query in asked:
        tape.put((query.arrival_s, QueryArrived(query), []))
    tape.close()
    told = write_world(tmp_path, tmp_path / "w.yaml")
    assert (told["queries"], told["too_large"], told["unmeasured"]) == (21, 0, 5)
    assert told["span_s"] < 4.0
    file = load_world(tmp_path / "w.yaml")
    assert file.world.queries[0].tasks == ("imagenet",)
    assert len(list(queries(file, seed=0))) == 21


def test_a_recording_of_no_profiled_task_is_refused(tmp_path: Path) -> None:
    known = snapshot(**SETTINGS)
    tape = open_tape(tmp_path, "gateway", known.document(), "h")
    tape.put((START_S, QueryArrived(make_query(0, START_S, scope="texts")), []))
    tape.close()
    with pytest.raises(InvalidInputError, match=r"tasks: got \['texts'\]; allowed: .* imagenet"):
        write_world(tmp_path, tmp_path / "w.yaml")


def test_a_version_on_trial_is_left_out(tmp_path: Path) -> None:
    known = snapshot(**SETTINGS)
    first = next(iter(known.variants.values()))
    name = first.id.partition("@")[0]
    again = replace(first, version=2)
    rows = known.cost_inputs.measurements
    again_rows = [replace(row, variant_id=again.id) for row in rows if row.variant_id == first.id]
    inputs = replace(known.cost_inputs, measurements=[*rows, *again_rows])
    known = known._replace(variants={**known.variants, again.id: again}, cost_inputs=inputs)
    record_gateway(tmp_path, known, queries=20)
    tape = open_tape(tmp_path, "control", {})
    service = Service(lines={name: Line(name, 2)})
    tape.put((START_S, VersionsChanged(service, {}, 1.7e9), []))
    tape.close()
    write_world(tmp_path, tmp_path / "w.yaml")
    held = build_fleet(load_world(tmp_path / "w.yaml")).variants
    assert len(held) == 3


def test_a_deadline_that_nobody_named_is_left_blank(recording: Path) -> None:
    own = arrivals_in(recording)[0].query._replace(deadline_s=math.inf)
    written = recording / "t.csv"
    as_world._write_trace(
        written,
        [
            Arrival(0.0, own._replace(arrival_s=0.0, deadline_s=0.25)),
            Arrival(0.0, own._replace(arrival_s=0.0, deadline_s=5.0, has_default_deadline=True)),
        ],
        0.0,
    )
    with written.open(encoding="utf-8", newline="") as file:
        assert [row["latency_ms"] for row in csv.DictReader(file)] == ["250", ""]
