"""The commands history, why and replay, with nothing up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.controller.cli.arguments import moment_of
from modelless.controller.control.messages import Entry
from modelless.controller.history.entries import NOTED_KINDS, write_entries
from modelless.controller.history.receipts import (
    ReceiptFiles,
    receipt_document,
    receipts_folder,
)
from modelless.controller.live import settings_revisions
from modelless.controller.usecases.decisions import export_receipts
from modelless.variants.registry.registry import open_registry
from tests.unit.dispatch.world import LADDER, World
from tests.unit.replay.session import record_gateway, snapshot

from .conftest import Run
from .tiny import add_variants

INT8, FP32, _ = LADDER
WHERE = {"worker": "w0", "device_class": "cpu-1"}


def note(home: Path, *entries: tuple[float, Entry]) -> None:
    """Entries so many seconds ago."""
    home.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    with closing(open_registry(home)) as registry:
        stamped = [(now - timedelta(seconds=ago_s), entry) for ago_s, entry in entries]
        write_entries(registry.store, stamped, 100)


def test_history_is_narrowed_by_time_kind_and_task(run: Run, home: Path) -> None:
    note(
        home,
        (300.0, Entry("load", FP32, "wanted", WHERE)),
        (30.0, Entry("unload", FP32, "room-needed", {**WHERE, "for": INT8})),
        (20.0, Entry("scale", "cpu-1", "demand", {"workers_before": 1, "workers": 2})),
    )
    every = run("history")
    assert every.code == 0
    assert [every.out.index(kind) for kind in (" load ", " unload ", " scale ")] == sorted(
        every.out.index(kind) for kind in (" load ", " unload ", " scale ")
    )
    assert f"room was needed; for {INT8}" in every.out
    assert "1 to 2 workers" in every.out
    kinds = [
        [entry["kind"] for entry in run("history", *words, "--json").document["entries"]]
        for words in (["--since", "60s"], ["--kind", "load"], ["--task", "imagenet/lite0"])
    ]
    assert kinds == [["unload", "scale"], ["load"], ["load", "unload"]]
    then = (datetime.now(UTC) - timedelta(seconds=25)).isoformat()
    (entry,) = run("history", "--at", then, "--json").document["entries"]
    assert entry["kind"] == "unload"
    assert "nothing in the 5 s" in run("history", "--since", "5s").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "soon"], "since"),
        (["--at", "noonish"], "at: got 'noonish'"),
        (["--at", "12:00", "--follow"], "not both"),
        (["--at", "0001-01-01T00:00"], "at: got '0001-01-01T00:00'"),
        (["--kind", "load", "--kind", "unloded"], "Did you mean unloaded or"),
        (["--kind", "eviction"], "--kind: got 'eviction'; allowed: load, loaded, "),
    ],
)
def test_what_history_does_not_understand(run: Run, words: list[str], says: str) -> None:
    done = run("history", *words)
    assert done.code == InvalidInputError.exit_code
    assert says in done.err


def test_history_knows_tasks_that_are_registered_or_have_entries(run: Run, home: Path) -> None:
    add_variants(home)
    note(home, (30.0, Entry("unload", "gone/m/v@1", "room-needed", WHERE)))
    assert "room was needed" in run("history", "--task", "gone").out
    assert "nothing in the" in run("history", "--task", "pixels").out
    unknown = run("history", "--task", "pixel")
    assert unknown.code == NotFoundError.exit_code
    assert "Did you mean pixels?" in unknown.err


def test_every_kind_that_is_noted_can_be_asked_for() -> None:
    from modelless.controller.usecases.registry import registering, zoo
    from modelless.profiler.cost_model import drift_history
    from modelless.variants.making import origins
    from modelless.variants.registry import outcomes, promotion, registry

    noted = {outcomes.REVISED, outcomes.MEASURED, origins.MADE, drift_history.KIND, zoo.KIND}
    noted |= {settings_revisions.KIND, registry.REMOVED, registry.RETIRED, registry.REINSTATED}
    assert noted | {registering.REGISTERED} | set(promotion.KINDS) == set(NOTED_KINDS)


def test_what_was_retired_and_removed_is_found_by_its_kind(run: Run, home: Path) -> None:
    add_variants(home)
    name = run("variants", "--json").document["variants"][0]["variant"].partition("@")[0]
    assert run("retire", name).code == 0
    assert run("retire", name, "--undo").code == 0
    assert run("remove", name).code == 0
    for kind in ("retired", "reinstated", "removed"):
        (entry,) = run("history", "--since", "1d", "--kind", kind, "--json").document["entries"]
        assert entry["kind"] == kind
        assert kind in run("history", "--kind", kind).out


def test_a_time_of_day_is_the_last_one() -> None:
    now = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
    assert moment_of("at", "11:59:58", now) == now - timedelta(seconds=2)
    assert moment_of("at", "12:00:01", now) == now - timedelta(days=1) + timedelta(seconds=1)
    assert moment_of("at", now.isoformat(), now) == now


def test_why_tells_from_what_was_kept(run: Run, home: Path) -> None:
    world = World()
    world.add_worker(variant_ids=[INT8])
    served = world.ask(latency_ms=100.0)
    world.finish()
    note(home, (30.0, Entry("unload", FP32, "room-needed", {**WHERE, "for": INT8})))
    receipt = world.dispatcher.receipt(served)
    assert receipt is not None
    documents = [receipt_document("gw", receipt, world.now_s)]
    ReceiptFiles(receipts_folder(home), "gw", 1 << 20).write(documents)
    told = run("why", "gw-1")
    assert told.code == 0
    assert f"{INT8} on cpu-1, chosen as the most accurate that keeps all limits" in told.out
    assert f"{FP32} was not ready: evicted 3" in told.out
    assert f" s before for {INT8}: room was needed" in told.out
    assert "was chosen" in told.out
    document = run("why", "gw-1", "--json").document
    assert document["variant"] == INT8
    assert document["not_ready"][0].startswith(FP32)
    assert document["before"][0]["kind"] == "unload"
    assert "gw-1" in run("why").out
    assert "gw-1" in run("why", "--at", datetime.now().isoformat()).out
    assert "no receipts" in run("why", "--at", "2020-01-01T00:00:00").out
    assert "not both" in run("why", "gw-1", "--at", "12:00").err
    missing = run("why", "gw-2")
    assert missing.code != 0
    assert "history.receipts_per_s" in missing.err
    assert run("why", "nonsense").code == InvalidInputError.exit_code


def test_receipts_are_listed_and_exported(run: Run, home: Path, tmp_path: Path) -> None:
    world = World()
    world.add_worker()
    world.ask(latency_ms=100.0, tenant="shop")
    world.finish()
    world.ask(latency_ms=1.0, tenant="other")
    receipts = [world.dispatcher.receipt(number) for number in (1, 2)]
    documents = [receipt_document("gw", each, world.now_s) for each in receipts if each is not None]
    ReceiptFiles(receipts_folder(home), "gw", 1 << 20).write(documents)

    def found(*words: object) -> list[str]:
        rows = run("receipts", *words, "--json").document["receipts"]
        return [row["receipt_id"] for row in rows]

    assert found() == ["gw-1", "gw-2"]
    assert found("--tenant", "shop") == ["gw-1"]
    assert found("--tenant", "nobody") == []
    assert found("--outcome", "refused") == ["gw-2"]
    assert found("--task", "imagenet", "--most", 1) == ["gw-2"]
    assert found("--until", "2020-01-01T00:00:00") == []
    assert "gw-1" in run("receipts").out
    assert "served-late" in run("receipts", "--outcome", "late").err
    assert run("receipts", "--output", tmp_path / "a.txt").code == InvalidInputError.exit_code
    refused = run("receipts", "--since", "soon", "--output", "nowhere/a.parquet")
    assert "--output: got 'nowhere/a.parquet'; allowed: a file" in refused.err
    parquet = pytest.importorskip("pyarrow.parquet")
    assert "2 receipts in" in run("receipts", "--output", tmp_path / "a.parquet").out
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["receipt_id"] for row in rows] == ["gw-1", "gw-2"]
    assert rows[0]["tenant"] == "shop"
    assert rows[1]["candidates"][0]["misses"] == ["too-slow"]
    assert "0 receipts" in run("receipts", "--tenant", "no", "--output", tmp_path / "b.parquet").out


def test_an_export_that_fails_leaves_what_was_there(
    tmp_path: Path, full_disk: Callable[[], None]
) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "a.parquet"
    file.write_text("before")
    full_disk()
    with pytest.raises(EnvironmentUnfitError, match="cannot be written"):
        export_receipts([{"receipt_id": "gw-1"}], file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_receipts_of_before_all_counting_are_refused(run: Run) -> None:
    done = run("receipts", "--until", "0001-01-02T12:00", "--since", "48h")
    assert done.code == InvalidInputError.exit_code
    assert "until: got '0001-01-02T12:00'" in done.err


def test_replay_says_identical_or_shows_the_difference(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_gateway(tmp_path / "rec", snapshot(), queries=40)
    done = run("replay", tmp_path / "rec")
    assert done.code == 0
    assert "identical" in done.out
    monkeypatch.setattr(
        "modelless.policies.selection.best_value.best_value.BestValue.on_arrival",
        lambda self, query, candidates, rng: 1 / 0,
    )
    differs = run("replay", tmp_path / "rec")
    assert differs.code == 1
    assert "replayed: " in differs.out
    assert "1 of 1 tapes differ" in differs.err
    assert not run("replay", tmp_path / "rec", "--json").document["identical"]
    assert "--record" in run("replay", tmp_path / "none").err
    refused = run("replay", tmp_path / "none", "--as-world", "nowhere/world.yaml")
    assert refused.code == InvalidInputError.exit_code
    assert "--as-world: got 'nowhere/world.yaml'; allowed: a file" in refused.err


def test_a_recording_goes_into_a_folder_without_one(run: Run, tmp_path: Path) -> None:
    record_gateway(tmp_path / "rec", snapshot(), queries=1)
    done = run("up", "--record", tmp_path / "rec")
    assert done.code == InvalidInputError.exit_code
    assert "a folder without a recording" in done.err
