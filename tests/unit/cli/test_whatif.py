"""``modelless whatif``, from a simulated world to its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.history.off_policy import FIGURES
from modelless.controller.usecases.simulation.simulating import read_world
from modelless.controller.usecases.simulation.whatif import (
    find_ratios,
    simulated_receipts,
    true_figures,
    whatif,
    with_policy,
)

from .conftest import Run


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A small world that is explored."""
    variants = {"kind": "ladder", "count": 3, "latency_ms": [5, 25]}
    document: dict[str, Any] = {
        "seed": 5,
        "duration_s": 5,
        "devices": [{"name": "cpu-1", "count": 2}],
        "tasks": [{"name": "vision", "variants": variants}],
        "queries": [
            {
                "tasks": ["vision"],
                "arrivals": {"kind": "poisson", "rate_per_s": 40},
                "slos": [{"latency_ms": 100}, {"latency_ms": 200, "min_accuracy": 75}],
            }
        ],
        "policies": {"selection": "most-accurate-feasible", "scaling": "fixed", "explore": 0.2},
    }
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_from_receipts_to_a_table(run: Run, world: Path, tmp_path: Path) -> None:
    file = tmp_path / "receipts.parquet"
    ran = run("simulate", world, "--receipts", file, "--json")
    assert ran.code == 0
    words = ("whatif", "--policy", "cheapest-feasible", "--receipts", file)
    found = run(*words, "--policy", "{policy: infaas, objective: accuracy}", "--json").document
    first, second = found["policies"]
    assert first["queries"] == ran.document["queries"]
    assert first["observed"]["attainment"] == pytest.approx(ran.document["attainment"])
    assert first["observed"]["value"] == pytest.approx(ran.document["value_per_query"])
    assert first["observed"]["accuracy"] == pytest.approx(ran.document["mean_accuracy"])
    assert 0 < first["explored"] < 0.3 * first["queries"]
    assert first["in_full"] is None
    for figure in first["doubly_robust"].values():
        assert figure["low"] <= figure["value"] <= figure["high"]
    assert first["doubly_robust"]["cost_usd"]["high"] < first["observed"]["cost_usd"]
    assert second["policy"] == {"policy": "infaas", "objective": "accuracy"}
    shown = run(*words, "--world", world, "--runs", 2)
    assert shown.code == 0
    assert "in full" in shown.out
    assert "attainment" in shown.out
    assert "--world" in run(*words).err


def test_a_world_tells_what_decisions_do_to_each_other(world: Path) -> None:
    document = yaml.safe_load(world.read_text())
    document["queries"][0]["arrivals"]["rate_per_s"] = 100
    document["tasks"][0]["variants"]["latency_ms"] = [5, 80]
    document["queries"][0]["slos"] = [{"latency_ms": 200}]
    document["policies"]["selection"] = "cheapest-feasible"
    receipts = simulated_receipts(read_world(document), seed=99)
    (found,) = whatif("most-accurate-feasible", receipts=receipts, world=document, runs=2)
    assert found.in_full is not None
    other = with_policy(read_world(document), "most-accurate-feasible")
    truth = dict(zip(FIGURES, true_figures(other, seed=99), strict=True))
    # One query alone would have had the best; if all had wanted it, most would have had less.
    assert found.doubly_robust["accuracy"].low > truth["accuracy"] + 1.0
    for name in FIGURES:
        assert found.in_full[name].low <= truth[name] <= found.in_full[name].high, name


def test_batches_of_the_world_take_as_long_as_in_the_receipts(world: Path) -> None:
    document = yaml.safe_load(world.read_text())
    points = [{"device": "cpu-1", "batch": batch, "p50_ms": 8 + 4 * batch} for batch in (1, 8)]
    variants = [
        {"model": name, "accuracy": accuracy, "points": points}
        for name, accuracy in (("one", 70), ("other", 80))
    ]
    document["tasks"][0]["variants"] = {"kind": "written", "variants": variants}
    profiled = simulated_receipts(read_world(document), seed=1)
    variants[1]["true_ratios"] = {"cpu-1": 2.0}
    real = simulated_receipts(read_world(document), seed=2)
    ratios = find_ratios(real, profiled)
    assert ratios["vision/other/v@1", "cpu-1"] == pytest.approx(2.0, rel=0.1)
    assert ratios["vision/one/v@1", "cpu-1"] == pytest.approx(1.0, rel=0.1)
    again = simulated_receipts(read_world(document), seed=3, ratios={})
    assert find_ratios(again, real)["vision/other/v@1", "cpu-1"] == pytest.approx(1.0, rel=0.1)


def test_what_does_not_fit_is_said(run: Run, world: Path, tmp_path: Path) -> None:
    ran = run("whatif", "--policy", "infaas")
    assert ran.code == InvalidInputError.exit_code
    assert "policies.explore" in ran.err
    assert run("whatif", "--policy", "nobody").code == NotFoundError.exit_code
    assert "not YAML" in run("whatif", "--policy", "{policy: [").err
    (tmp_path / "no.parquet").write_text("nothing")
    ran = run("whatif", "--policy", "infaas", "--receipts", tmp_path / "no.parquet")
    assert "modelless receipts --output" in ran.err
    assert ran.code == InvalidInputError.exit_code
    document = yaml.safe_load(world.read_text())
    del document["policies"]["explore"]
    with pytest.raises(InvalidInputError, match=r"policies\.explore"):
        whatif("infaas", receipts=[], world=document)
    with pytest.raises(InvalidInputError, match="runs"):
        whatif("infaas", receipts=[], runs=1)
