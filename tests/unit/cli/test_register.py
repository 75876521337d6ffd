"""``modelless register``: inspected, held against the task, and only then stored."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Task

from .conftest import Ran, Run
from .tiny import TASK, tiny_bytes

ACCURACY = ("--accuracy", 71.5, "--provenance", "published", "--accuracy-source", "a page")
TASK_FILE = """
name: pixels-2
inputs: [{name: image, datatype: UINT8, shape: [-1, -1, -1, 3]}]
outputs: [{name: scores, datatype: FP32, shape: [-1, 4]}]
metric: top-1
labels: [black, red, green, blue]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An ONNX file of the tiny task that is not registered yet."""
    path = tmp_path / "net.onnx"
    path.write_bytes(tiny_bytes(9.0))
    return path


def register(run: Run, file: Path, *words: Any, task: str | None = "pixels") -> Ran:
    """Register ``file`` as ``pixels/mine/fp32`` unless ``words`` say otherwise."""
    named = () if task is None else ("--task", task)
    return run(
        "register", file, *named, "--model", "mine", "--name", "fp32", "--precision", "fp32", *words
    )


def names(home: Path) -> tuple[list[str], list[str], list[str]]:
    """Tasks, models and variants that are registered."""
    with closing(open_registry(home)) as registry:
        catalog = registry.catalog()
    return (
        sorted(catalog.tasks),
        sorted(model for _, model in catalog.models),
        sorted(catalog.versions),
    )


def test_a_file_becomes_a_variant(run: Run, registered: Path, file: Path) -> None:
    ran = register(run, file, *ACCURACY, "--resolution", 224, "--family", "means", "--json")
    assert ran.code == 0, ran.err
    found = ran.document
    assert found["variant"] == "pixels/mine/fp32@1"
    assert found["accuracy"] == 71.5
    assert found["accuracy_provenance"] == "published"
    assert found["resolution_px"] == 224
    assert found["parameters"] == 12
    assert "next: modelless profile pixels/mine/fp32" not in ran.out
    with closing(open_registry(registered)) as registry:
        assert registry.catalog().models["pixels", "mine"].family == "means"
        assert registry.artifacts.read(found["sha256"]) == file.read_bytes()


def test_versions_follow_the_bytes(run: Run, registered: Path, file: Path) -> None:
    assert "pixels/mine/fp32@1" in register(run, file, *ACCURACY).out
    assert "pixels/mine/fp32@1" in register(run, file, *ACCURACY).out
    file.write_bytes(tiny_bytes(10.0))
    assert "pixels/mine/fp32@2" in register(run, file, *ACCURACY).out


def test_an_accuracy_that_is_not_stated_counts_as_none(
    run: Run, registered: Path, file: Path
) -> None:
    ran = register(run, file, "--json")
    assert (ran.code, ran.document["accuracy"]) == (0, 0.0)
    assert "never chosen" in ran.err


def test_a_measured_accuracy_has_an_interval(run: Run, registered: Path, file: Path) -> None:
    words = ("--accuracy", 90, "--provenance", "measured", "--accuracy-source", "a set")
    found = register(run, file, *words, "--accuracy-samples", 1000, "--json").document
    assert found["accuracy_low"] == pytest.approx(87.98, abs=0.01)
    assert found["accuracy_high"] == pytest.approx(91.71, abs=0.01)
    for wrong in ((), ("--accuracy-samples", 0), ("--accuracy-samples", 10**20)):
        ran = register(run, file, *words, *wrong)
        assert (ran.code, "--accuracy-samples" in ran.err) == (2, True)
    assert register(run, file, *ACCURACY, "--accuracy-samples", 5).code == 2
    assert register(run, file, "--accuracy-samples", 5).code == 2


def test_an_accuracy_can_be_revised_with_a_reason(run: Run, registered: Path, file: Path) -> None:
    register(run, file)
    ran = register(run, file, *ACCURACY)
    assert ran.code == 2
    assert "accuracy" in ran.err
    ran = register(run, file, *ACCURACY, "--revise-accuracy", "the page was found", "--json")
    assert (ran.code, ran.document["variant"]) == (0, "pixels/mine/fp32@1")
    assert ran.document["accuracy"] == 71.5
    file.write_bytes(tiny_bytes(10.0))
    ran = register(run, file, *ACCURACY, "--revise-accuracy", "why not")
    assert (ran.code, "these very bytes" in ran.err) == (2, True)


def test_a_task_can_be_described_in_a_file(
    run: Run, home: Path, file: Path, tmp_path: Path
) -> None:
    described = tmp_path / "task.yaml"
    described.write_text(TASK_FILE)
    ran = register(run, file, *ACCURACY, "--task-file", described, task=None)
    assert ran.code == 0, ran.err
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
    assert task == Task("pixels-2", TASK.inputs, TASK.outputs, "top-1", labels=TASK.labels)
    ran = register(run, file, *ACCURACY, "--task-file", described, task="pixels")
    assert (ran.code, "pixels-2" in ran.err) == (2, True)


def test_a_task_says_how_its_items_may_be_padded(
    run: Run, home: Path, file: Path, tmp_path: Path
) -> None:
    described = tmp_path / "task.yaml"
    described.write_text(TASK_FILE.replace("-1, 3]", "-1, 3], padding: edge"))
    assert register(run, file, *ACCURACY, "--task-file", described, task=None).code == 0
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
    assert [spec.padding for spec in (*task.inputs, *task.outputs)] == ["edge", None]


@pytest.mark.parametrize(
    ("content", "words", "code", "said"),
    [
        (b"no model", (), 5, "not an ONNX model"),
        (tiny_bytes()[:-20], (), 5, "truncated"),
        (tiny_bytes(operator="Spy", domain="evil"), (), 5, "custom operator"),
        (tiny_bytes(output="logits"), (), 2, "logits"),
        (None, ("--accuracy", 101, *ACCURACY[2:]), 2, "accuracy.percent"),
        (None, ("--accuracy", "nan", *ACCURACY[2:]), 2, "accuracy.percent"),
        (None, ("--accuracy", 70), 2, "--provenance"),
        (None, ("--accuracy-source", "a page"), 2, "--accuracy"),
        (None, ("--resolution", 0), 2, "resolution"),
        (None, ("--name", "../up"), 2, "name"),
        (None, ("--model", "a/b"), 2, "model"),
        (None, ("--task", "pixel"), 3, "Did you mean pixels?"),
        (None, ("--task-file", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(
    run: Run, registered: Path, file: Path, content: bytes | None, words: Any, code: int, said: str
) -> None:
    before = names(registered)
    files = sorted(registered.rglob("artifacts/**/*"))
    if content is not None:
        file.write_bytes(content)
    ran = register(run, file, *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert names(registered) == before
    assert sorted(registered.rglob("artifacts/**/*")) == files


def test_a_file_that_is_not_there_is_refused(run: Run, registered: Path, tmp_path: Path) -> None:
    assert register(run, tmp_path / "none.onnx").code == 2
    assert register(run, tmp_path).code == 2


def test_the_task_must_be_said(run: Run, registered: Path, file: Path) -> None:
    ran = register(run, file, task=None)
    assert (ran.code, "--task-file" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("metric: top-1", "metrics: top-1"), "metric: got nothing; it must be given"),
        (("metric: top-1", "metrics: top-1"), "there is no such key. Did you mean 'metric'?"),
        (("[-1, 4]", "[-1, four]"), "outputs.0.shape.1: got 'four'; allowed: a valid integer"),
        (("UINT8", "UINT9"), "UINT9"),
        (("[-1, 4]", "[1, 4]"), "-1 first"),
        (("[-1, 4]", "[-1, 0]"), "sizes from 1"),
        (("[-1, 4]", "[-1, 4], padding: edge"), "an input that leaves sizes free"),
        (("[-1, -1, -1, 3]", "[-1, 2, 2, 3], padding: edge"), "inputs.image.padding: got 'edge'"),
        (("[-1, -1, -1, 3]", "[-1, -1, -1, 3], padding: 256"), "'edge', or a value of UINT8"),
        (("[-1, -1, -1, 3]", "[-1, -1, -1, 3], padding: .nan"), "'edge', or a value of UINT8"),
        (("[-1, -1, -1, 3]", "[-1, -1, -1, 3], padding: harmless"), "padding"),
        (("name: pixels-2", "name: Pixels 2"), "task.name"),
        (("[black, red, green, blue]", "labels.txt"), "labels.txt"),
        (("[black, red, green, blue]", "[1, 2]"), "labels"),
        (("[black, red, green, blue]", "[a, b]"), "got '2 labels'; allowed: 4, the classes of"),
        (("metric: top-1", "metric: tpo-1"), "tpo-1"),
        (("metric: top-1", "metric: mae"), "metric 'mae': outputs"),
        (("name: pixels-2", "name: [pixels"), "not YAML"),
    ],
)
def test_a_task_file_that_is_wrong_is_refused(
    run: Run, home: Path, file: Path, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    described = tmp_path / "task.yaml"
    described.write_text(TASK_FILE.replace(*change))
    ran = register(run, file, "--task-file", described, task=None)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert names(home) == ([], [], [])


def test_a_metric_may_be_the_users_own(run: Run, file: Path, tmp_path: Path) -> None:
    described = tmp_path / "task.yaml"
    described.write_text(TASK_FILE.replace("metric: top-1", "metric: miou"))
    assert register(run, file, "--task-file", described, *ACCURACY, task=None).code == 0


def test_labels_may_stand_in_a_file_of_their_own(
    run: Run, home: Path, file: Path, tmp_path: Path
) -> None:
    described = tmp_path / "task.yaml"
    described.write_text(TASK_FILE.replace("[black, red, green, blue]", "names.txt"))
    (tmp_path / "names.txt").write_text("one\ntwo\n\nfour\n")
    ran = register(run, file, "--task-file", described, task=None)
    assert (ran.code, "no label in line 3" in ran.err) == (2, True), ran.err
    (tmp_path / "names.txt").write_text("one\ntwo\nthree: 3\nfour\n\n\n")
    assert register(run, file, "--task-file", described, task=None).code == 0
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
    assert task.labels == ("one", "two", "three: 3", "four")


def test_one_file_under_two_engines(run: Run, registered: Path, file: Path) -> None:
    first = register(run, file, *ACCURACY, "--json").document
    second = register(run, file, *ACCURACY, "--engine", "openvino", "--json").document
    assert [(each["variant"], each["engine"]) for each in (first, second)] == [
        ("pixels/mine/fp32@1", "onnxruntime-cpu"),
        ("pixels/mine/fp32@2", "openvino"),
    ]
    revised = register(
        run,
        file,
        *("--accuracy", 60, "--provenance", "published", "--accuracy-source", "a page"),
        *("--engine", "openvino", "--revise-accuracy", "measured with it", "--json"),
    ).document
    assert (revised["variant"], revised["accuracy"]) == ("pixels/mine/fp32@2", 60.0)
    with closing(open_registry(registered)) as registry:
        assert registry.variant("pixels/mine/fp32@1").accuracy.percent == 71.5


def test_an_engine_that_is_not_here_is_told_and_registered(
    run: Run, registered: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    ran = register(run, file, *ACCURACY, "--engine", "tensorrt", "--json")
    assert ran.code == 0
    assert "note: it cannot be profiled or served here: engine tensorrt is not installed" in ran.err
    assert "pip install 'modelless[gpu]'" in ran.err
    assert names(registered)[2][-1] == "pixels/mine/fp32@1"


def test_who_registered_it_is_in_the_history_once(run: Run, registered: Path, file: Path) -> None:
    for _ in range(2):
        assert register(run, file, *ACCURACY).code == 0
    (entry,) = run("history", "--kind", "registered", "--json").document["entries"]
    assert entry["subject"] == "pixels/mine/fp32@1"
    assert entry["reason"] == f"registered from {file}"
    assert entry["details"]["who"]
    assert entry["details"]["sha256"].isalnum()


def test_a_full_disk_leaves_neither_task_nor_model(
    run: Run, registered: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.yaml").write_text(TASK_FILE)
    words = ("--task-file", tmp_path / "task.yaml", *ACCURACY)
    before = names(registered)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("modelless.variants.artifacts.write_whole", full)
        ran = register(run, file, *words, task=None)
    assert ran.code == 6
    assert "No space left on device" in ran.err
    assert names(registered) == before
    assert register(run, file, *words, task=None).code == 0


def test_without_a_name_there_must_be_something_to_measure_a_family_on(
    run: Run, registered: Path, file: Path, tmp_path: Path
) -> None:
    words = ("register", file, "--task", "pixels", "--model", "mine")
    ran = run(*words)
    assert ran.code == 2
    assert "--name: say what the variant is called; or give --validation" in ran.err
    ran = run(*words, "--validation", tmp_path, "--licence", "MIT", "--accuracy", 3)
    assert ran.code == 2
    assert "--accuracy, --licence: goes with --name" in ran.err
    ran = run(*words, "--name", "fp32")
    assert ran.code == 2
    assert "--precision: got None; allowed: fp32" in ran.err


def test_an_unknown_task_says_how_to_describe_one(run: Run, registered: Path, file: Path) -> None:
    ran = register(run, file, *ACCURACY, task="pixel")
    assert ran.code == 3
    assert "Did you mean pixels?" in ran.err
    assert "give --task-file" in ran.err
