"""Pairs of placements that run together, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import (
    EnvironmentUnfitError,
    InvalidInputError,
    StoreError,
)
from modelless.controller.usecases.measuring import profiling
from modelless.controller.usecases.progress import ignore
from modelless.profiler.cost_model.serving_model import ServingCostModel, best_points
from modelless.profiler.cost_model.slowdowns import Bottleneck, PairRun
from modelless.profiler.measure.inputs import sample_inputs
from modelless.profiler.measure.jobs import MeasurementJob
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.neighbours import (
    Representative,
    choose_representatives,
    neighbour_process,
    run_pairs,
)
from modelless.profiler.measure.noise import Noise
from modelless.profiler.measure.records import PairRecords, Records
from modelless.variants.estimates import Load
from modelless.variants.store import PairRunRow, Store
from modelless.variants.vocabulary import Placement, TensorSpec
from tests.unit.cli.tiny import tiny_bytes

CPU, MEM = Bottleneck.COMPUTE_BOUND, Bottleneck.MEMORY_BOUND


def rows(
    make: Any, jobs: Sequence[MeasurementJob], rates: Sequence[float], p50_s: float
) -> list[Measurement]:
    """A measurement a job, with so many bytes a second."""
    return [
        make.measurement(
            variant_id=job.variant.id,
            memory_bytes=round(rate * p50_s),
            p50_s=p50_s,
            p90_s=p50_s,
            p99_s=p50_s,
        )
        for job, rate in zip(jobs, rates, strict=True)
    ]


def pair(
    own: str, kind: Bottleneck, other: str, other_kind: Bottleneck, slowdown: float
) -> PairRun:
    return PairRun(
        placement=Placement(own, "cpu-1"),
        kind=kind,
        neighbour=Placement(other, "cpu-1"),
        neighbour_kind=other_kind,
        alone_s=0.010,
        beside_s=0.010 * slowdown,
        repeats=30,
        trusted=True,
        measured_at=datetime(2025, 1, 1, tzinfo=UTC),
        fingerprint="here",
    )


PAIRS = [
    pair("calm", CPU, "calm", CPU, 1.02),
    pair("calm", CPU, "thirsty", MEM, 1.05),
    pair("thirsty", MEM, "calm", CPU, 1.10),
    pair("thirsty", MEM, "thirsty", MEM, 1.60),
]


def model(make: Any, pairs: Sequence[PairRun] = PAIRS) -> ServingCostModel:
    bytes_of = {"calm": 10_000, "thirsty": 90_000_000, "calmer": 5_000, "thirsty too": 50_000_000}
    return ServingCostModel(
        [make.measurement(variant_id=name, memory_bytes=size) for name, size in bytes_of.items()],
        pair_runs=pairs,
    )


def cpu(name: str) -> Placement:
    return Placement(name, "cpu-1")


def test_the_extremes_stand_for_all(make: Any) -> None:
    jobs = make.jobs(4)
    points = best_points(rows(make, jobs, [5e9, 1e9, 9e9, 3e9], 0.010))
    assert choose_representatives(jobs, points) == [
        Representative(jobs[1], CPU),
        Representative(jobs[2], MEM),
    ]
    assert choose_representatives(jobs[:1], points) == [Representative(jobs[0], CPU)]
    assert choose_representatives([], points) == []
    assert choose_representatives(jobs, {}) == []


def test_typical_sizes_tell_who_stands_for_all(
    make: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Representative] = []

    def choose(representatives: Sequence[Representative], *_: Any, **__: Any) -> list[PairRun]:
        chosen.extend(representatives)
        return []

    monkeypatch.setattr(profiling, "run_pairs", choose)
    jobs, records = make.jobs(3), Records(store)
    later = datetime(2026, 1, 1, tzinfo=UTC)
    for row in rows(make, jobs, [1e9, 5e9, 9e9], 0.010):
        records.add(replace(row, shape="x=2"))
    for row in rows(make, jobs, [9e9, 1e9, 5e9], 0.002):
        records.add(replace(row, shape="x=1", is_typical=False, measured_at=later))
    every = [replace(job, shape=shape, is_typical=shape == "x=2")
             for job in jobs for shape in ("x=2", "x=1")]  # fmt: skip
    profiling._measure_pairs(every, records, PairRecords(store), make.facts, False, ignore)
    assert chosen == [Representative(every[0], CPU), Representative(every[4], MEM)]


def test_what_is_over_at_once_stands_for_nothing_else(make: Any) -> None:
    jobs = make.jobs(3)
    quick = rows(make, jobs[:1], [99e9], 1e-5)
    points = best_points([*quick, *rows(make, jobs[1:], [1e9, 2e9], 0.010)])
    assert choose_representatives(jobs, points) == [
        Representative(jobs[1], CPU),
        Representative(jobs[2], MEM),
    ]
    assert choose_representatives(jobs[:1], points) == [Representative(jobs[0], CPU)]


def test_each_runs_alone_and_beside_each(make: Any) -> None:
    bench = make.bench()
    jobs = make.jobs(2)
    busy: list[str] = []
    cost = {"v0": {"v0": 1.1, "v1": 1.3}, "v1": {"v0": 1.2, "v1": 2.0}}

    def latency_s(variant_id: str, batch: int) -> float:
        assert batch == 1
        own = variant_id.split("/")[-1].split("@")[0]
        return 0.010 * (cost[own][busy[-1]] if busy else 1.0)

    @contextmanager
    def beside(job: MeasurementJob) -> Iterator[None]:
        busy.append(job.variant.name)
        yield
        busy.pop()

    bench.latency_s = latency_s
    load = bench.load

    def fresh(job: MeasurementJob) -> Any:
        loaded = load(job)
        streams = loaded.latencies_s
        loaded.latencies_s = lambda batch: (next(streams(batch)) for _ in iter(int, 1))
        return loaded

    environment = replace(bench.environment, load=fresh)
    representatives = [Representative(jobs[0], CPU), Representative(jobs[1], MEM)]
    runs = list(run_pairs(representatives, make.facts, environment=environment, beside=beside))
    assert [(run.kind, run.neighbour_kind) for run in runs] == [
        (CPU, CPU),
        (CPU, MEM),
        (MEM, CPU),
        (MEM, MEM),
    ]
    assert [run.slowdown for run in runs] == pytest.approx([1.1, 1.3, 1.2, 2.0], rel=0.02)
    assert {run.fingerprint for run in runs} == {make.facts.fingerprint}
    assert all(loaded.unloaded for loaded in bench.loaded)
    assert busy == []


def test_the_neighbour_is_no_noise_but_others_are(make: Any) -> None:
    bench, jobs = make.bench(), make.jobs(1)

    @contextmanager
    def beside(job: MeasurementJob) -> Iterator[None]:
        bench.gauge.during = Noise(contention=1.0)
        yield
        bench.gauge.during = Noise()

    def run() -> list[PairRun]:
        return list(
            run_pairs(
                [Representative(jobs[0], CPU)],
                make.facts,
                environment=bench.environment,
                beside=beside,
            )
        )

    (found,) = run()
    assert found.trusted
    bench.gauge.during = Noise(steal=0.9)
    (found,) = run()
    assert not found.trusted
    assert all(loaded.unloaded for loaded in bench.loaded)


def test_kinds_are_told_by_what_is_streamed(make: Any) -> None:
    costs = model(make).slowdowns
    assert costs.slowdown(cpu("thirsty too"), cpu("thirsty")) == pytest.approx(1.60)
    assert costs.slowdown(cpu("thirsty too"), cpu("calmer")) == pytest.approx(1.10)
    assert costs.slowdown(cpu("calmer"), cpu("thirsty too")) == pytest.approx(1.05)
    assert costs.slowdown(cpu("calmer"), cpu("unknown")) > 1.0  # of any kind
    assert costs.slowdown(cpu("unknown"), cpu("calm")) == 1.0


def test_they_are_what_is_expected_before_anything_was_seen(make: Any) -> None:
    costs = model(make)
    placements = (cpu("calmer"), cpu("thirsty too"))
    busy = costs.estimate(placements, 1, Load(1.0)).p50_s / 0.010
    assert busy == pytest.approx([math.sqrt(1.02 * 1.05), math.sqrt(1.10 * 1.60)], rel=1e-6)
    assert costs.estimate(placements, 1, Load()).p50_s == pytest.approx([0.010, 0.010])


def test_what_is_not_trusted_counts_where_there_is_nothing_else(make: Any) -> None:
    doubtful = [replace(pair, beside_s=9 * pair.alone_s, trusted=False) for pair in PAIRS]
    calm, thirsty = cpu("calm"), cpu("thirsty")
    assert model(make, [*doubtful, *PAIRS]).slowdowns.slowdown(calm, thirsty) == pytest.approx(1.05)
    assert model(make, doubtful).slowdowns.slowdown(calm, thirsty) == pytest.approx(9.0)


def test_without_pairs_nothing_is_expected(make: Any) -> None:
    costs = model(make, [])
    assert not costs.slowdowns.is_known
    assert costs.slowdowns.slowdown(cpu("calm"), cpu("thirsty")) == 1.0
    for _ in range(200):
        costs.observe(cpu("calm"), 1, Load(), 0.010)
        costs.observe(cpu("calm"), 1, Load(1.0), 0.014)
    busy, idle = (costs.estimate((cpu("calm"),), 1, load).p50_s[0] for load in (Load(1.0), Load()))
    assert busy / idle == pytest.approx(1.4, rel=0.03)


@pytest.mark.parametrize("beside_s", [0.0, -1.0, math.nan, math.inf])
def test_a_run_that_cannot_be_true_is_refused(beside_s: float) -> None:
    with pytest.raises(InvalidInputError, match="beside_s"):
        replace(PAIRS[0], beside_s=beside_s)


def test_a_neighbour_helps_nobody() -> None:
    assert replace(PAIRS[0], beside_s=0.008).slowdown == 1.0


def test_runs_are_kept_by_machine_and_the_newest_counts(store: Store) -> None:
    records = PairRecords(store)
    for run in (*PAIRS, replace(PAIRS[0], fingerprint="elsewhere")):
        records.add(run)
    newer = replace(PAIRS[0], beside_s=0.02)
    records.add(newer)
    assert records.current("here") == [*PAIRS[1:], newer]
    records.add(replace(newer, trusted=False))
    assert records.current("here") == [*PAIRS[1:], newer]
    with store.transaction() as session:
        for row in session.query(PairRunRow):
            row.kind = "idle"
    with pytest.raises(StoreError, match="--neighbours"):
        records.current("here")


def real_job(make: Any, path: Path) -> MeasurementJob:
    content = tiny_bytes()
    path.write_bytes(content)
    variant = replace(
        make.variant(), artifact_sha256=sha256(content).hexdigest(), artifact_bytes=len(content)
    )
    spec = TensorSpec("image", "UINT8", (-1, -1, -1, 3))
    return MeasurementJob(variant, make.device(), path, partial(sample_inputs, (spec,)))


def test_a_real_neighbour_runs_in_a_process_of_its_own(make: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    job = real_job(make, tmp_path / "tiny.onnx")
    (run,) = run_pairs([Representative(job, CPU)], make.facts, accept_noise=True)
    assert run.placement == run.neighbour == job.placement
    assert run.slowdown >= 1.0
    assert run.repeats >= 9


def test_a_neighbour_that_cannot_run_is_told_of(make: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    job = replace(real_job(make, tmp_path / "tiny.onnx"), artifact=tmp_path / "gone.onnx")
    with pytest.raises(EnvironmentUnfitError, match="did not come to run"), neighbour_process(job):
        pytest.fail("it cannot run")
