"""A scikit-learn classifier of texts, from its code to its profile."""

from __future__ import annotations

import csv
from contextlib import closing
from pathlib import Path

import pytest

from modelless.controller.usecases.measuring.profiling import find_jobs
from modelless.profiler.devices.device import default_device_classes
from modelless.variants.registry.outcomes import latest_item_texts
from modelless.variants.registry.registry import open_registry

from . import made_models
from .conftest import Ran, Run
from .tiny import host_facts

TASK_FILE = """
name: topics
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs:
- {name: label, datatype: INT64, shape: [-1]}
- {name: probabilities, datatype: FP32, shape: [-1, 2]}
metric: top-1
labels: [sport, economy]
"""
SOURCE = (f"{made_models.__name__}:reader", "--framework", "scikit-learn")


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A task file, beside the task's labelled texts."""
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *made_models.texts(120)])
    (tmp_path / "task.yaml").write_text(TASK_FILE)
    return tmp_path / "task.yaml"


def register(run: Run, described: Path, *words: str) -> Ran:
    files = ("--task-file", described, "--validation", described.parent / "texts.csv")
    named = ("--model", "words", "--name", "fp32", "--precision", "fp32")
    return run("register", *SOURCE, *files, *named, *words)


@pytest.mark.slow
def test_texts_are_registered_validated_and_profiled_with(
    run: Run, home: Path, described: Path
) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    assert run("profile", "topics").code != 0
    ran = register(run, described)
    assert ran.code == 0, ran.err
    assert "accuracy 100.0 % measured" in ran.out
    known = {text for text, _ in made_models.texts(120)}
    with closing(open_registry(home)) as registry:
        kept = latest_item_texts(registry.store, "topics")["text"]
        catalog, (device, *_) = registry.catalog(), default_device_classes(host_facts())
        (job,), _ = find_jobs(registry, catalog, catalog.variants, [device], lambda note: None)
    assert len(kept) == 32
    assert known.issuperset(kept)
    assert known.issuperset(job.inputs(8)["text"])
    ran = run("profile", "topics", "--accept-noise", "--batches", "1", "--budget", "1s")
    assert ran.code == 0, ran.err
    assert "no texts" not in ran.err


def test_an_engine_without_texts_is_refused(run: Run, described: Path) -> None:
    ran = register(run, described, "--engine", "openvino")
    assert ran.code != 0
    assert "engine: got 'openvino'; allowed: onnxruntime-cpu. Task 'topics' has texts" in ran.err
