"""The use cases as Python calls them: paths as text, worlds as mappings, progress as events."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import modelless
from modelless.common.errors import InfeasibleError, InvalidInputError
from modelless.controller.usecases.progress import Note, Step
from tests.unit.cli.tiny import add_measurements, add_rates, add_variants

WORLD: dict[str, Any] = {
    "duration_s": 2,
    "devices": [{"name": "cpu-1"}],
    "tasks": [
        {
            "name": "vision",
            "variants": {
                "kind": "ladder", "count": 3, "latency_ms": [5, 20], "accuracy": [60, 80]
            },
        }
    ],
    "queries": [{"tasks": ["vision"], "arrivals": {"kind": "poisson", "rate_per_s": 20}}],
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A home with profiled variants, named as text."""
    monkeypatch.delenv("MODELLESS_STORE_URL", raising=False)
    folder = tmp_path / "home"
    add_variants(folder)
    add_rates(folder)
    add_measurements(folder)
    return str(folder)


def test_a_world_may_be_a_mapping_or_a_file_and_a_log_is_named_as_text(tmp_path: Path) -> None:
    events: list[Step | Note] = []
    log = str(tmp_path / "run.csv")
    figures = modelless.simulate(WORLD, seed=1, log=log, on_progress=events.append)
    file = tmp_path / "world.yaml"
    file.write_text(json.dumps(WORLD))  # JSON is YAML
    again = modelless.simulate(str(file), seed=1)
    assert {**again, "log": log} == figures
    assert figures["answered"] == figures["queries"] > 20
    with Path(log).open() as rows:
        assert len(list(csv.DictReader(rows))) == figures["queries"]
    assert {event.activity for event in events if isinstance(event, Step)} == {
        "simulating, seconds"
    }


def test_a_wrong_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="duration"):
        modelless.simulate({**WORLD, "duration_s": -1})


def test_select_returns_a_choice_or_the_refusal(home: str) -> None:
    found = modelless.select("pixels", latency_ms=30, home=home)
    assert found.chosen is not None
    assert found.chosen.variant_id == "pixels/mean/medium@1"
    assert found.refusal is None
    refused = modelless.select("pixels", min_accuracy=99, home=home)
    assert (refused.chosen, type(refused.refusal)) == (None, InfeasibleError)
    assert {row["why"] for row in refused.candidates} == {"too-inaccurate"}


def test_compare_gives_a_row_for_each_contender(tmp_path: Path) -> None:
    policies = ["most-accurate-feasible", "cheapest-feasible"]
    report = str(tmp_path / "report")
    found = modelless.compare(WORLD, policies=policies, seeds=1, report=report)
    assert [row["contender"] for row in found.rows()] == policies
    best, cheapest = (row["mean_accuracy"] for row in found.rows())
    assert best > cheapest
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == found.document


def test_the_home_is_that_of_the_environment_by_default(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELLESS_HOME", home)
    assert modelless.select("pixels").chosen is not None
    assert modelless.down().was_up is False


def test_a_number_format_that_does_not_exist_is_refused(home: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--precision: got 'fp3'; allowed: .*fp32"):
        modelless.register("x.onnx", task="pixels", model="m", name="n", precision="fp3", home=home)
