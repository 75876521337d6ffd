"""Replay: recorded sessions give the very same effects again; what differs is found."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from modelless import __version__
from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.config import parse_settings
from modelless.controller.control.messages import ControlEvent
from modelless.controller.device.messages import Event as DeviceEvent
from modelless.controller.dispatch.messages import DispatchEvent
from modelless.controller.replay.codec import decode
from modelless.controller.replay.replay import replay, tapes_in
from modelless.controller.replay.tape import Recorded, TapeReader
from modelless.policies.discovery import BUILT_IN
from modelless.policies.seams import ScalingPolicy, SelectionPolicy

from .session import open_tape, record_control, record_device, record_gateway, snapshot

NEEDS_SETTINGS = {"static": {"policy": "static", "variant": "imagenet/lite0/int8@1"}}
SELECTION = [NEEDS_SETTINGS.get(name, name) for name in BUILT_IN[SelectionPolicy]]
SCALING = list(BUILT_IN[ScalingPolicy])


@pytest.mark.parametrize("selection", SELECTION, ids=str)
def test_every_selection_policy_replays_to_identical_effects(
    selection: str | dict[str, Any], tmp_path: Path
) -> None:
    record_gateway(tmp_path, snapshot(policies={"selection": selection}, seed=3))
    (tape,) = tapes_in(tmp_path)
    done = replay(tape)
    assert done.difference is None
    assert done.ending == "end"
    assert done.inputs > 350
    assert done.effects > 250


@pytest.mark.parametrize("selection", ["best-value", "cheapest-feasible"])
def test_exploration_replays_to_identical_effects(selection: str, tmp_path: Path) -> None:
    known = snapshot(policies={"selection": selection, "explore": 0.3}, seed=3)
    record_gateway(tmp_path, known)
    (tape,) = tapes_in(tmp_path)
    assert replay(tape).difference is None
    with_none = tmp_path / "none"
    with_none.mkdir()
    record_gateway(with_none, snapshot(policies={"selection": selection}, seed=3))
    (other,) = tapes_in(with_none)
    effects = [[item[2] for item in TapeReader(each).items()] for each in (tape, other)]
    assert effects[0] != effects[1]


@pytest.mark.parametrize("scaling", SCALING)
def test_every_scaling_policy_replays_to_identical_effects(scaling: str, tmp_path: Path) -> None:
    record_control(tmp_path, parse_settings({"policies": {"scaling": scaling}}))
    (tape,) = tapes_in(tmp_path)
    done = replay(tape)
    assert done.difference is None
    assert done.what == "control"
    assert done.inputs > 200
    assert done.effects > 100


def test_a_device_replays_to_identical_effects(tmp_path: Path) -> None:
    for seed in range(5):
        folder = tmp_path / str(seed)
        record_device(folder, seed=seed)
        (tape,) = tapes_in(folder)
        done = replay(tape)
        assert (done.what, done.name, done.difference, done.ending) == ("device", "w", None, "end")
        assert done.inputs == 600
        assert done.effects > 300


def test_another_process_with_other_hashes_gives_the_same(tmp_path: Path) -> None:
    for number, selection in enumerate(SELECTION):
        known = snapshot(policies={"selection": selection})
        record_gateway(tmp_path, known, queries=120, name=str(number))
    for scaling in SCALING:
        settings = parse_settings({"policies": {"scaling": scaling}})
        record_control(tmp_path, settings, ticks=10)
    record_device(tmp_path)
    command = [sys.executable, "-m", "modelless.controller.cli", "replay", str(tmp_path), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    told = json.loads(done.stdout)
    assert [tape["difference"] for tape in told["tapes"]] == [None] * len(SELECTION + SCALING + [1])
    assert done.returncode == 0


def test_what_a_policy_s_module_prints_is_no_part_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BUILT_IN[SelectionPolicy]["cheapest-feasible"].replace(":", " import ")
    module = tmp_path / "noisy_replayed.py"
    module.write_text(f"from {source}\nprint('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    selection = "noisy_replayed:CheapestFeasible"
    record_gateway(tmp_path, snapshot(policies={"selection": selection}), queries=20)
    command = [sys.executable, "-m", "modelless.controller.cli", "replay", str(tmp_path), "--json"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert json.loads(done.stdout)["identical"], done.stderr
    assert "imported" in done.stderr


class Counter:
    """A machine of another kind: events and effects that no dispatcher has."""

    total = 0

    def handle(self, event: Added, _: float) -> list[Total]:
        self.total += sum(event.counts.values())
        return [Total(self.total)]


class Added(NamedTuple):
    """An event whose mapping has keys other than text."""

    counts: Mapping[tuple[str, float], int]


class Total(NamedTuple):
    """The counter's effect."""

    total: int


def test_any_machine_is_recorded(tmp_path: Path) -> None:
    tape = open_tape(tmp_path, "counter", {})
    recorded = Recorded(Counter(), tape)
    events = [Added({("a", 0.1): 2, ("b", math.inf): 3}), Added({}), Added({("c", 1.0): 1})]
    effects = [recorded.handle(event, 0.5 * number) for number, event in enumerate(events)]
    tape.close()
    assert effects == [[Total(5)], [Total(5)], [Total(6)]]
    assert recorded.total == 6
    items = list(TapeReader(tape.path).items())
    assert [now_s for now_s, _, _ in items] == [0.0, 0.5, 1.0]
    assert [event[0] for _, event, _ in items] == ["Added"] * 3
    assert [decode(Added, event[1:]) for _, event, _ in items] == events
    assert [told for _, _, told in items] == [[["Total", 5]], [["Total", 5]], [["Total", 6]]]


CUTTING = {"CatalogChanged", "PoliciesChanged", "SelectionChanged"}
"""Before these a tape ends: its header says what it began with."""


def test_a_session_has_every_event_that_can_be_recorded(tmp_path: Path) -> None:
    record_gateway(tmp_path, snapshot())
    record_control(tmp_path, parse_settings({}))
    record_device(tmp_path)
    kinds = (ControlEvent, DeviceEvent, DispatchEvent)
    for tape, event_type in zip(tapes_in(tmp_path), kinds, strict=True):
        names = {event[0] for _, event, _ in TapeReader(tape).items()}
        assert names == {kind.__name__ for kind in get_args(event_type)} - CUTTING


def test_the_first_difference_is_found_and_shown(tmp_path: Path) -> None:
    record_gateway(tmp_path, snapshot(), queries=50)
    (tape,) = tapes_in(tmp_path)
    lines = gzip.decompress(tape.read_bytes()).decode().splitlines()
    place = next(n for n, line in enumerate(lines) if n > 40 and '"Execute"' in line)
    item = json.loads(lines[place])
    _, (name, *_), effects = item
    run = next(effect for effect in effects if effect[0] == "Execute")
    run[2] = "w9"
    lines[place] = json.dumps(item)
    tape.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    difference = replay(tape).difference
    assert difference is not None
    assert difference.number == place
    assert difference.asked.startswith(name)
    assert '"w9"' in difference.recorded
    assert '"w9"' not in difference.replayed


def test_what_breaks_off_is_replayed_up_to_there(tmp_path: Path) -> None:
    record_gateway(tmp_path, snapshot(), queries=200)
    (tape,) = tapes_in(tmp_path)
    whole = replay(tape)
    tape.write_bytes(tape.read_bytes()[:-600])
    part = replay(tape)
    assert part.difference is None
    assert part.ending == "unfinished"
    assert 0 < part.inputs < whole.inputs


def test_another_seed_or_format_is_no_silent_success(tmp_path: Path) -> None:
    record_gateway(tmp_path, snapshot(policies={"selection": "random"}, seed=1))
    (tape,) = tapes_in(tmp_path)
    lines = gzip.decompress(tape.read_bytes()).decode().splitlines()
    header = json.loads(lines[0])
    header["settings"]["seed"] = 2
    tape.write_bytes(gzip.compress("\n".join([json.dumps(header), *lines[1:], ""]).encode()))
    assert replay(tape).difference is not None
    header["format"] = 99
    tape.write_bytes(gzip.compress((json.dumps(header) + "\n").encode()))
    with pytest.raises(InvalidInputError, match=f"format 99 by modelless {__version__}"):
        replay(tape)
    old = json.dumps({"format": 1, "modelless": "0.1.0", "what": "gateway"})
    tape.write_bytes(gzip.compress((old + "\n").encode()))
    with pytest.raises(InvalidInputError, match=r"modelless 0\.1\.0") as raised:
        replay(tape)
    assert f"modelless {__version__}" in str(raised.value)
    unknown = json.dumps([1.0, ["QueryLeft", 1], []])
    lines[1] = unknown
    tape.write_bytes(gzip.compress("\n".join([*lines[:2], ""]).encode()))
    with pytest.raises(InvalidInputError, match="QueryLeft"):
        replay(tape)
    tape.write_bytes(b"not a tape")
    with pytest.raises(InvalidInputError, match="readable tape"):
        replay(tape)
    tape.unlink()
    with pytest.raises(NotFoundError, match="--record"):
        tapes_in(tmp_path)
