"""``modelless profile``: what is measured, what is left alone, what is refused."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from modelless.profiler.cost_model.drift_history import drifted_placements, record_drifts
from modelless.profiler.cost_model.serving_model import Drift
from modelless.profiler.measure.noise import HostNoise, Noise
from modelless.profiler.measure.records import PairRecords, Records
from modelless.profiler.measure.table import read_table
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Placement

from .conftest import Run
from .tiny import host_facts, measurement

QUICK = ("--batches", "1", "--budget", "100ms", "--accept-noise")
SMALL = "pixels/mean/small@1"


def artifact(home: Path, variant_id: str) -> Path:
    """The variant's file."""
    with closing(open_registry(home)) as registry:
        sha256 = registry.variant(variant_id).artifact_sha256
    return home / "artifacts" / sha256[:2] / sha256


def spoil(file: Path) -> None:
    """Put something else in the file's place."""
    file.unlink()
    file.write_bytes(b"something else")


def test_variants_are_measured_and_kept(run: Run, registered: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ran = run("profile", "pixels/mean/small", *QUICK, "--json", "--csv", tmp_path / "out.csv")
    assert ran.code == 0, ran.err
    found = ran.document
    assert (found["measured"], found["failed"], found["skipped"]) == (1, [], [])
    assert found["fingerprint"] == host_facts().fingerprint
    (placement,) = found["placements"]
    assert (placement["variant"], placement["device_class"]) == (SMALL, "cpu-1")
    assert (placement["accuracy"], placement["accuracy_provenance"]) == (70.0, "published")
    (point,) = placement["batches"]
    assert (point["batch"], point["measured_now"]) == (1, True)
    assert 0 < point["p50_ms"] <= point["p90_ms"] <= point["p99_ms"]
    assert point["throughput_per_s"] > 0
    with closing(open_registry(registered)) as registry:
        (row,) = Records(registry.store).current(host_facts())
    assert row.p50_s * 1e3 == pytest.approx(point["p50_ms"])
    (line,) = read_table(tmp_path / "out.csv")
    assert (line.model, line.family, line.batch) == ("mean", "tiny", 1)
    assert "profiling 1/1" in ran.err
    assert "measured 1 points" in ran.err


def test_what_is_known_is_not_measured_again(run: Run, profiled: Path) -> None:
    ran = run("profile", "--json")
    assert ran.code == 0
    found = ran.document
    assert found["measured"] == 0
    assert {skip["reason"] for skip in found["skipped"]} == {"already-measured"}
    assert len(found["skipped"]) == 12
    assert [p["variant"] for p in found["placements"]] == [
        "pixels/mean/large@1",
        "pixels/mean/medium@1",
        SMALL,
    ]
    table = run("profile").out
    assert "5.00/6.00" in table
    assert "batch 8" in table
    assert "not trusted" not in table


def test_the_device_s_rates_are_in_the_answer(run: Run, profiled: Path) -> None:
    found = run("profile", "--json").document["rates"]
    assert set(found) == {"cpu-1"}
    assert found["cpu-1"]["product_multiply_adds_per_s"] == {"fp32": 50e9}


def test_the_device_is_measured_first_unless_time_is_short(
    run: Run, profiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def describe(devices: Any, *_: Any) -> dict[str, Any]:
        asked.append([device.name for device in devices])
        return {}

    monkeypatch.setattr(
        "modelless.controller.usecases.measuring.profiling.describe_devices", describe
    )
    assert run("profile", "--json", "--budget", "90s").code == 0
    assert asked == [["cpu-1"]]
    found = run("profile", "--json", "--budget", "5s").document
    assert asked == [["cpu-1"]]
    assert set(found["rates"]) == {"cpu-1"}  # what is known is told all the same


def test_what_drifted_is_measured_again_and_only_that(run: Run, profiled: Path) -> None:
    pytest.importorskip("onnxruntime")
    none = run("profile", *QUICK, "--drifted", "--json")
    assert (none.code, none.document["measured"]) == (0, 0)
    assert "nothing was slower or quicker in service" in none.err
    with closing(open_registry(profiled)) as registry:
        drift = Drift(Placement(SMALL, "cpu-1"), 1.5, 1, 12.0)
        record_drifts(registry.store, [drift], {"cpu-1": host_facts().fingerprint})
        record_drifts(registry.store, [drift], {"cpu-1": "another machine"})
        assert drifted_placements(registry.store, host_facts()) == {drift.placement: 1.5}
    found = run("profile", *QUICK, "--drifted", "--json").document
    assert (found["measured"], found["skipped"]) == (1, [])
    now = [p["variant"] for p in found["placements"] if p["batches"][0]["measured_now"]]
    assert now == [SMALL]


def test_a_trusted_measurement_settles_a_drift(registered: Path) -> None:
    here = host_facts()
    with closing(open_registry(registered)) as registry:
        drift = Drift(Placement(SMALL, "cpu-1"), 1.5, 1, 12.0)
        record_drifts(registry.store, [drift], {"cpu-1": here.fingerprint})
        later = datetime.now(UTC) + timedelta(seconds=1)
        for trusted, left in ((False, {drift.placement: 1.5}), (True, {})):
            row = measurement(SMALL, 1, 5.0, measured_at=later, trusted=trusted)
            Records(registry.store).add(row)
            assert drifted_placements(registry.store, here) == left


def test_neighbours_are_run_in_pairs_and_kept(run: Run, profiled: Path) -> None:
    pytest.importorskip("onnxruntime")
    ran = run("profile", *QUICK, "--neighbours", "--json")
    assert ran.code == 0, ran.err
    found = ran.document["neighbours"]
    assert {(row["kind"], row["neighbour_kind"]) for row in found} == {
        (own, other)
        for own in ("compute-bound", "memory-bound")
        for other in ("compute-bound", "memory-bound")
    }
    assert all(row["slowdown"] >= 1.0 for row in found)
    with closing(open_registry(profiled)) as registry:
        kept = PairRecords(registry.store).current(host_facts().fingerprint)
    assert [pair.slowdown for pair in kept] == [row["slowdown"] for row in found]


def test_again_means_again(run: Run, profiled: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = run("profile", SMALL, *QUICK, "--again", "--json").document
    assert found["measured"] == 1
    (placement,) = found["placements"]
    assert [point["batch"] for point in placement["batches"]] == [1, 2, 4, 8]  # the others stay


def test_on_a_noisy_machine_it_goes_on_and_says_so(
    run: Run, registered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    for measure in ("probe", "since"):
        monkeypatch.setattr(HostNoise, measure, lambda *_: Noise(contention=0.9))
    ran = run("profile", SMALL, "--batches", "1", "--budget", "100ms", "--json")
    assert ran.code == 0, ran.err
    assert ran.err.count("note: measured on a busy machine: ") == 1
    assert "90% of the wanted cores" in ran.err
    (placement,) = ran.document["placements"]
    assert [point["trusted"] for point in placement["batches"]] == [False]


def test_what_is_not_trusted_is_marked(run: Run, registered: Path) -> None:
    with closing(open_registry(registered)) as registry:
        Records(registry.store).add(measurement(SMALL, 1, 5.0, trusted=False))
        Records(registry.store).add(measurement(SMALL, 2, 10.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "modelless.controller.usecases.measuring.profiling.run_campaign", _measured_nothing
        )
        ran = run("profile", SMALL)
    assert "5.00/6.00 *" in ran.out
    assert "10.0/12.0  " in ran.out
    assert "*: not trusted" in ran.out


def _measured_nothing(*_: Any) -> Any:
    from modelless.profiler.measure.campaign import CampaignResult

    return CampaignResult((), {}, {}, 0.0)


def test_an_interruption_keeps_what_was_measured(
    run: Run, registered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(jobs: Any, records: Any, *_: Any) -> None:
        records.add(measurement(SMALL, 1, 5.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "modelless.controller.usecases.measuring.profiling.run_campaign", interrupted
    )
    ran = run("profile")
    assert (ran.code, ran.out) == (130, "")
    assert "goes on from here" in ran.err
    with closing(open_registry(registered)) as registry:
        assert len(Records(registry.store).current(host_facts())) == 1


def test_a_damaged_file_does_not_stop_the_others(run: Run, profiled: Path) -> None:
    spoil(artifact(profiled, SMALL))
    ran = run("profile", "--json")
    assert ran.code == 1
    (failed,) = ran.document["failed"]
    assert failed["variant"] == SMALL
    assert "sha256" in failed["error"]
    assert len(ran.document["skipped"]) == 8
    assert run("profile", SMALL).code == 5


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pixel"], 3, "Did you mean pixels"),
        (["pixels/median"], 3, "mean"),
        (["pixels/mean/smal"], 3, "small"),
        (["pixels/mean/small@9"], 3, "9"),
        (["--device-class", "cpu-64"], 2, "cpu-1"),
        (["--device-class", ","], 2, "device-class"),
        (["--batches", "0"], 2, "batches"),
        (["--budget", "soon"], 2, "1m30s"),
        (["--csv", "nowhere/out.csv"], 2, "nowhere"),
        (["--csv", "."], 2, "--csv"),
    ],
)
def test_what_is_wrong_is_said(
    run: Run, profiled: Path, words: list[str], code: int, said: str
) -> None:
    ran = run("profile", *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_with_nothing_registered_there_is_nothing_to_measure(run: Run) -> None:
    ran = run("profile")
    assert (ran.code, "zoo list" in ran.err) == (3, True)
