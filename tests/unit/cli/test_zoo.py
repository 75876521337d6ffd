"""``modelless zoo``: what can be added, and adding it: whole, once, and mended where damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Accuracy, Engine, Precision, Provenance, Task
from modelless.variants.zoo import BuiltVariant

from .conftest import Run
from .tiny import MODEL, TASK, tiny_bytes


@dataclass
class FakeEntry:
    """A zoo entry of two tiny variants; the test says where its building fails."""

    name: str = "pixels"
    task: Task = TASK
    summary: str = "two tiny models"
    percent: float = 60.0
    output: str = "scores"
    fail: dict[int, BaseException] = field(default_factory=dict)
    builds: int = 0

    def build(self, on_progress: Callable[[str, int, int], None]) -> Iterator[BuiltVariant]:
        self.builds += 1
        for done in range(2):
            on_progress(f"making number {done}", done, 2)
            if done in self.fail:
                raise self.fail[done]
            yield BuiltVariant(
                model=MODEL,
                name=f"v{done}",
                precision=Precision.FP32,
                resolution_px=None,
                engine=Engine.ONNXRUNTIME_CPU,
                onnx_bytes=tiny_bytes(done + 1.0, output=self.output),
                accuracy=Accuracy(self.percent, "top-1", Provenance.PUBLISHED, "a page"),
            )
        on_progress("done", 2, 2)


def _missing() -> FakeEntry:
    raise EnvironmentUnfitError("zoo entry Other: pip install 'modelless[demo]'")


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> FakeEntry:
    """The zoo holds one entry that can be built, and one whose package is not installed."""
    entry = FakeEntry()
    entries = {"pixels": lambda: entry, "other": _missing}
    monkeypatch.setattr("modelless.variants.zoo.ENTRIES", entries)
    monkeypatch.setattr("modelless.variants.zoo.find_entry", lambda name: entries[name]())
    return entry


def registered(home: Path) -> list[str]:
    """Ids of the registered variants."""
    with closing(open_registry(home)) as registry:
        return [variant.id for variant in registry.variants(latest_only=False)]


def artifact(home: Path, number: int) -> Path:
    """The file of one of the entry's variants."""
    with closing(open_registry(home)) as registry:
        variant = registry.variant(f"pixels/mean/v{number}@1")
        return home / "artifacts" / variant.artifact_sha256[:2] / variant.artifact_sha256


def test_the_list_says_what_is_there(run: Run, entry: FakeEntry) -> None:
    assert run("zoo", "list", "--json").document == {
        "entries": [
            {
                "name": "pixels",
                "summary": "two tiny models",
                "missing": None,
                "added": False,
                "registered": 0,
            },
            {
                "name": "other",
                "summary": None,
                "missing": "zoo entry Other: pip install 'modelless[demo]'",
                "added": False,
                "registered": 0,
            },
        ]
    }
    run("zoo", "add", "pixels")
    (first, _) = run("zoo", "list", "--json").document["entries"]
    assert (first["added"], first["registered"]) == (True, 2)
    table = run("zoo", "list").out
    assert "two tiny models" in table
    assert "pip install" in table


def test_an_entry_is_added_once(run: Run, home: Path, entry: FakeEntry) -> None:
    ran = run("zoo", "add", "pixels", "pixels", "--json")
    assert ran.code == 0, ran.err
    (found,) = ran.document["entries"]
    assert (found["name"], found["was_there"]) == ("pixels", False)
    assert found["new"] == ["pixels/mean/v0@1", "pixels/mean/v1@1"]
    assert [variant["accuracy"] for variant in found["variants"]] == [60.0, 60.0]
    assert "adding pixels 2/2" in ran.err
    (found,) = run("zoo", "add", "pixels", "--json").document["entries"]
    assert (found["was_there"], found["new"], entry.builds) == (True, [], 1)
    assert len(registered(home)) == 2


def test_forced_it_is_built_again_and_has_the_last_word(
    run: Run, home: Path, entry: FakeEntry
) -> None:
    run("zoo", "add", "pixels")
    entry.percent = 61.0
    (found,) = run("zoo", "add", "pixels", "--force", "--json").document["entries"]
    assert (found["was_there"], found["new"], entry.builds) == (False, [], 2)
    assert [variant["accuracy"] for variant in found["variants"]] == [61.0, 61.0]
    assert len(registered(home)) == 2


def test_what_was_measured_here_outlives_what_the_zoo_only_read(
    run: Run, home: Path, entry: FakeEntry
) -> None:
    assert run("zoo", "add", "pixels").code == 0
    measured = Accuracy(70.0, "top-1", Provenance.MEASURED, "my set", 65.0, 75.0, 300)
    with closing(open_registry(home)) as registry:
        registry.revise_accuracy("pixels/mean/v0@1", measured, "measured")
    entry.percent = 61.0
    assert run("zoo", "add", "pixels", "--force").code == 0
    with closing(open_registry(home)) as registry:
        found = {variant.name: variant.accuracy for variant in registry.variants()}
    assert found["v0"] == measured
    assert found["v1"].percent == 61.0


@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_file_is_made_anew(run: Run, home: Path, entry: FakeEntry, lost: bool) -> None:
    run("zoo", "add", "pixels")
    file = artifact(home, 1)
    file.unlink()
    if not lost:
        file.write_bytes(b"something else")
    assert run("zoo", "add", "pixels").code == 0
    assert (file.read_bytes(), entry.builds) == (tiny_bytes(2.0), 2)


def test_an_interruption_leaves_nothing(run: Run, home: Path, entry: FakeEntry) -> None:
    entry.fail[1] = KeyboardInterrupt()
    ran = run("zoo", "add", "pixels")
    assert (ran.code, ran.out, registered(home)) == (130, "", [])
    assert "nothing of pixels was registered" in ran.err
    entry.fail.clear()
    assert run("zoo", "add", "pixels").code == 0
    assert len(registered(home)) == 2


def test_a_build_that_fails_leaves_nothing(run: Run, home: Path, entry: FakeEntry) -> None:
    entry.fail[1] = EnvironmentUnfitError("no weights: pip install 'modelless[demo]'")
    ran = run("zoo", "add", "pixels", "--json")
    assert (ran.code, registered(home)) == (7, [])
    assert ran.document["error"].startswith("no weights")


def test_what_is_not_of_the_tasks_form_is_refused(run: Run, home: Path, entry: FakeEntry) -> None:
    entry.output = "logits"
    ran = run("zoo", "add", "pixels")
    assert (ran.code, "logits" in ran.err, registered(home)) == (2, True, [])


def test_a_partly_added_entry_is_completed(run: Run, home: Path, entry: FakeEntry) -> None:
    run("zoo", "add", "pixels")
    # As if the process had been killed while registering: no word of it in the history.
    with closing(open_registry(home)) as registry:
        from modelless.variants.store import HistoryRow

        with registry.store.transaction() as session:
            session.query(HistoryRow).delete()
    (found,) = run("zoo", "add", "pixels", "--json").document["entries"]
    assert (found["was_there"], found["new"], entry.builds) == (False, [], 2)


def test_one_whose_package_is_missing_says_so(run: Run, entry: FakeEntry) -> None:
    ran = run("zoo", "add", "pixels", "other")
    assert ran.code == 7
    assert "pip install" in ran.err
    assert entry.builds == 0


def test_the_real_zoo_knows_its_names(run: Run) -> None:
    ran = run("zoo", "add", "imagnet")
    assert ran.code == 3
    assert "imagenet" in ran.err
    names = [row["name"] for row in run("zoo", "list", "--json").document["entries"]]
    assert names == ["imagenet", "fashion-mnist", "printed-lines", "voice-activity", "digits"]
