"""``modelless engines``, and variants of one file under several of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes import openvino_cpu
from modelless.variants.vocabulary import Accuracy, Engine, Precision, Provenance
from tests.builders import need

from .conftest import Run
from .tiny import MODEL, TASK, tiny_bytes

QUICK = ("--batches", "1", "--budget", "3s", "--accept-noise")
KNOWN = Accuracy(70.0, "top-1", Provenance.PUBLISHED, "a page")


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    openvino_cpu._core.cache_clear()
    yield
    openvino_cpu._core.cache_clear()


def add(home: Path, **engines: Engine) -> None:
    """Register one file under these names, each with its engine."""
    with closing(open_registry(home)) as registry:
        registry.add_task(TASK)
        registry.add_model(MODEL)
        for name, engine in engines.items():
            registry.register_variant(
                task=TASK.name,
                model=MODEL.name,
                name=name,
                precision=Precision.FP32,
                engine=engine,
                accuracy=KNOWN,
                artifact=tiny_bytes(),
            )


def test_every_engine_is_listed_with_what_brings_it(run: Run) -> None:
    found = {row["engine"]: row for row in run("engines", "--json").document["engines"]}
    assert list(found) == [engine.value for engine in Engine]
    for row in found.values():
        assert row["install"].startswith("pip install 'modelless[")
        assert row["available"] == (row["missing"] is None)
        assert row["device_kind"] in ("cpu", "gpu")
    here = found["onnxruntime-cpu"]
    assert (here["available"], here["install"]) == (True, "pip install 'modelless[cpu]'")
    assert here["version"]


@pytest.mark.usefixtures("without_openvino")
def test_what_is_missing_is_said_below_the_table(run: Run) -> None:
    ran = run("engines")
    assert ran.code == 0
    (line,) = (line for line in ran.out.splitlines() if line.strip().startswith("openvino"))
    assert "no" in line.split()
    assert "engine openvino is not installed" in ran.err
    assert "pip install 'modelless[openvino]'" in ran.err


@pytest.mark.usefixtures("without_openvino")
def test_a_variant_of_an_absent_engine_fails_alone(run: Run, home: Path) -> None:
    add(home, ort=Engine.ONNXRUNTIME_CPU, ov=Engine.OPENVINO)
    ran = run("profile", *QUICK, "--json")
    assert ran.code == 1
    (failed,) = ran.document["failed"]
    assert failed["variant"] == "pixels/mean/ov@1"
    assert "pip install 'modelless[openvino]'" in failed["error"]
    assert [each["variant"] for each in ran.document["placements"]] == ["pixels/mean/ort@1"]


def test_one_file_is_profiled_under_each_of_its_engines(run: Run, home: Path) -> None:
    need(Engine.OPENVINO)
    add(home, ort=Engine.ONNXRUNTIME_CPU, ov=Engine.OPENVINO)
    ran = run("profile", *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert [each["variant"] for each in ran.document["placements"]] == [
        "pixels/mean/ort@1",
        "pixels/mean/ov@1",
    ]


def test_under_one_name_the_first_engine_is_profiled_until_another_is_promoted(
    run: Run, home: Path
) -> None:
    need(Engine.OPENVINO)
    for engine in (Engine.ONNXRUNTIME_CPU, Engine.OPENVINO):
        add(home, one=engine)
    (found,) = run("profile", *QUICK, "--json").document["placements"]
    assert found["variant"] == "pixels/mean/one@1"
    (other,) = run("profile", "pixels/mean/one@2", *QUICK, "--json").document["placements"]
    assert other["variant"] == "pixels/mean/one@2"
    assert run("promote", "pixels/mean/one@2").code == 0
    (found,) = run("profile", *QUICK, "--json").document["placements"]
    assert found["variant"] == "pixels/mean/one@2"


def test_a_variant_for_a_gpu_is_not_measured_on_a_cpu(run: Run, home: Path) -> None:
    add(home, ort=Engine.ONNXRUNTIME_CPU, trt=Engine.TENSORRT)
    ran = run("profile", *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert [each["variant"] for each in ran.document["placements"]] == ["pixels/mean/ort@1"]
    assert "note: pixels/mean/trt@1 is left out: tensorrt runs on a gpu" in ran.err
