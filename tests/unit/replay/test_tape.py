"""Tapes: bounded, cut and never holed; values read back bit for bit."""

from __future__ import annotations

import json
import math
from pathlib import Path

from modelless.controller.dispatch.messages import (
    Advised,
    Complete,
    QueryCancelled,
    Tick,
    WorkerReport,
)
from modelless.controller.replay.codec import decode, encode, encode_item
from modelless.controller.replay.snapshot import read_snapshot
from modelless.controller.replay.tape import Tape, TapeReader
from modelless.policies.views import QueryView
from modelless.variants.vocabulary import Placement
from tests.unit.dispatch.world import make_query

from .session import snapshot


def read(path: Path) -> tuple[list[tuple[float, list[object], list[object]]], str]:
    reader = TapeReader(path)
    return list(reader.items()), reader.ending


def test_a_tape_reads_back_and_says_how_it_ended(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "new" / "a.tape.gz", {"what": "gateway"}, 1 << 20)
    for number in range(1000):
        tape.put((number / 3, Tick(), []))
    tape.close()
    items, ending = read(tape.path)
    assert ending == "end"
    assert items == [(number / 3, ["Tick"], []) for number in range(1000)]


def test_a_full_queue_cuts_the_tape_and_says_so(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "a.tape.gz", {}, 1 << 20, most_queued=10)
    for number in range(5000):
        tape.put((float(number), Tick(), []))
    tape.close()
    items, ending = read(tape.path)
    assert ending == "10 items waited to be written"
    assert items == [(number, ["Tick"], []) for number in range(len(items))]


def test_a_full_file_cuts_the_tape(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "a.tape.gz", {}, 1 << 16, most_queued=60_000)
    for number in range(60_000):
        tape.put((math.sin(number), Tick(), []))
    tape.close()
    assert tape.path.stat().st_size <= 1 << 16
    items, ending = read(tape.path)
    assert "it is full" in ending
    assert 0 < len(items) < 60_000


def test_values_read_back_bit_for_bit() -> None:
    query = make_query(1, 0.1 + 0.2, latency_ms=1e3 / 3, batch_key=((224, 224, 3), ("x",)))
    endless = make_query(2, 1.0)
    for each in (query, endless):
        assert decode(QueryView, json.loads(encode(each))) == each
    report = WorkerReport("w0", "cpu-1", ("a", "b"), 0.1 / 3)
    assert decode(WorkerReport, json.loads(encode(report))) == report
    told = encode_item(2.0, QueryCancelled(1), [Complete(1, 3)])
    assert told == '[2.0,["QueryCancelled",1],[["Complete",1,3]]]'
    shares = Advised({"a": {Placement("a/b/c@1", "cpu-1"): 0.1}, "b": {}})
    assert decode(Advised, json.loads(encode(shares))) == shares


def test_a_snapshot_makes_the_same_cost_model() -> None:
    known = snapshot(policies={"selection": "best-value"})
    again = read_snapshot(json.loads(encode(known.document())))
    assert again.settings == known.settings
    assert again.variants == known.variants
    assert again.device_classes == known.device_classes
    assert list(again.cost_inputs.measurements) == list(known.cost_inputs.measurements)
    assert list(again.cost_inputs.predicted) == list(known.cost_inputs.predicted)


def test_nothing_is_kept_after_the_end(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "a.tape.gz", {}, 1 << 20)
    tape.put((1.0, Tick(), []))
    tape.close()
    tape.put((2.0, Tick(), []))
    assert read(tape.path) == ([(1.0, ["Tick"], [])], "end")
    assert not tape._queue
