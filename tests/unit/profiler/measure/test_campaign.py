"""Campaigns: what is measured, what is skipped and why, resuming, budgets, noise, failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.campaign import (
    CampaignSettings,
    EventKind,
    ProgressEvent,
    SkipReason,
    TimeLeft,
    run_campaign,
)
from modelless.profiler.measure.jobs import used_bytes
from modelless.profiler.measure.noise import Noise
from modelless.profiler.measure.timing import MeasurementEffort
from tests.unit.variants.fake_nvidia import FakeCuda, install_cuda

LOUD = Noise(contention=0.9)


def keys(rows: Any) -> set[tuple[str, int]]:
    return {(row.variant_id, row.batch) for row in rows}


def test_every_placement_is_measured_at_every_batch(bench: Any, sink: Any, make: Any) -> None:
    result = run_campaign(make.jobs(3), sink, make.facts, environment=bench.environment)
    assert len(result.measured) == len(sink.rows) == 12
    assert result.skipped == {}
    assert result.failed == {}
    assert result.untrusted == ()
    row = sink.rows[3]
    assert (row.variant_id, row.device_class, row.batch) == ("imagenet/lite0/v0@1", "cpu-1", 8)
    assert row.p50_s == pytest.approx(0.080, rel=0.01)
    assert row.throughput_per_s == pytest.approx(100.0, rel=0.01)
    assert row.engine == "onnxruntime-cpu-1.20.1"
    assert (row.memory_bytes, row.load_s) == (1000, 0.1)
    assert all(one.unloaded for one in bench.loaded)


def test_memory_that_grows_with_the_batch_is_seen(bench: Any, sink: Any, make: Any) -> None:
    environment = bench.environment
    sizes = iter([10_000, 10_500, 10_400, 12_000, 15_000])
    object.__setattr__(environment, "used_bytes", lambda kind: next(sizes))
    run_campaign(make.jobs(1), sink, make.facts, environment=environment)
    assert [row.memory_bytes for row in sink.rows] == [1500, 1400, 3000, 6000]


def test_a_cards_memory_is_looked_at_on_the_card(
    bench: Any, sink: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_cuda(monkeypatch, cuda := FakeCuda())
    cuda.cudaMalloc(5 << 20)
    assert used_bytes("gpu") == 5 << 20
    kinds: list[str] = []

    def used(kind: str) -> int:
        kinds.append(kind)
        return 10_000

    environment = replace(bench.environment, used_bytes=used)
    (job,) = make.jobs(1)
    card = replace(job, device=replace(job.device, kind="gpu"))
    run_campaign([card], sink, make.facts, environment=environment)
    assert set(kinds) == {"gpu"}


@given(done=st.sets(st.integers(0, 11)), untrusted=st.sets(st.integers(0, 11)))
def test_resuming_skips_exactly_what_is_done_and_trusted(
    make: Any, done: set[int], untrusted: set[int]
) -> None:
    full, jobs = make.sink(), make.jobs(3)
    run_campaign(jobs, full, make.facts, environment=make.bench().environment)
    points = [
        make.measurement(variant_id=row.variant_id, batch=row.batch, trusted=i not in untrusted)
        for i, row in enumerate(full.rows)
    ]
    sink = make.sink([points[i] for i in sorted(done)])
    again = make.bench()
    result = run_campaign(jobs, sink, make.facts, environment=again.environment)
    known = keys(points[i] for i in done - untrusted)
    assert keys(result.measured) == keys(points) - known
    assert {(p.variant_id, b) for p, b in result.skipped} == known
    assert set(result.skipped.values()) <= {SkipReason.ALREADY_MEASURED}


def test_what_another_machine_measured_does_not_count(bench: Any, sink: Any, make: Any) -> None:
    sink.rows = [
        make.measurement(variant_id="imagenet/lite0/v0@1", batch=batch, fingerprint="another")
        for batch in (1, 2, 4, 8)
    ]
    assert (
        len(run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment).measured)
        == 4
    )


def test_a_campaign_with_nothing_to_do_loads_and_probes_nothing(
    bench: Any, sink: Any, make: Any
) -> None:
    run_campaign(make.jobs(2), sink, make.facts, environment=bench.environment)
    loads, probes = len(bench.loaded), bench.gauge.probes
    bench.gauge.first = LOUD
    result = run_campaign(make.jobs(2), sink, make.facts, environment=bench.environment)
    assert result.measured == ()
    assert (len(bench.loaded), bench.gauge.probes) == (loads, probes)


def test_an_interruption_loses_one_point_at_most(bench: Any, sink: Any, make: Any) -> None:
    def interrupt(event: ProgressEvent) -> None:
        if event.kind is EventKind.STARTED and event.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_campaign(make.jobs(3), sink, make.facts, None, interrupt, bench.environment)
    assert len(sink.rows) == 5
    assert all(one.unloaded for one in bench.loaded)
    result = run_campaign(make.jobs(3), sink, make.facts, environment=bench.environment)
    assert len(result.measured) == 7
    assert len(keys(sink.rows)) == 12


def test_beyond_the_latency_cap_the_batch_does_not_grow(bench: Any, sink: Any, make: Any) -> None:
    bench.latency_s = lambda _variant, batch: 0.4 * batch
    result = run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment)
    assert [row.batch for row in sink.rows] == [1, 2, 4]
    assert list(result.skipped.values()) == [SkipReason.LATENCY_CAP]
    loads = len(bench.loaded)
    again = run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment)
    assert again.measured == ()
    assert len(bench.loaded) == loads
    assert SkipReason.LATENCY_CAP in again.skipped.values()


def test_slow_points_are_trusted_though_few_repeats_fit(bench: Any, sink: Any, make: Any) -> None:
    bench.latency_s = lambda _variant, batch: 0.9 * batch
    run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment)
    assert sink.rows[0].repeats == 3
    assert sink.rows[0].trusted


@pytest.mark.parametrize("accepted", [False, True])
def test_a_noisy_machine_is_told_and_what_it_measures_not_trusted(
    bench: Any, sink: Any, make: Any, accepted: bool
) -> None:
    bench.gauge.first = bench.gauge.during = LOUD
    events: list[ProgressEvent] = []
    result = run_campaign(
        make.jobs(1),
        sink,
        make.facts,
        CampaignSettings(accept_noise=accepted),
        events.append,
        bench.environment,
    )
    told = [event.message for event in events if event.kind is EventKind.NOISY]
    assert [("90% of the wanted cores" in message) for message in told] == [True] * (not accepted)
    assert len(result.untrusted) == 4
    assert all(row.noise == pytest.approx(0.9 / 0.25) for row in sink.rows)
    bench.gauge.first = bench.gauge.during = Noise()
    assert (
        len(run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment).measured)
        == 4
    )


def test_noise_that_comes_later_marks_what_it_touched(bench: Any, sink: Any, make: Any) -> None:
    def disturb(event: ProgressEvent) -> None:
        bench.gauge.during = LOUD if event.batch == 4 else Noise()

    result = run_campaign(make.jobs(1), sink, make.facts, None, disturb, bench.environment)
    assert keys(result.untrusted) == {("imagenet/lite0/v0@1", 4)}


def test_a_fixed_computation_that_keeps_varying_is_not_trusted(
    bench: Any, sink: Any, make: Any
) -> None:
    passing, lasting = [Noise(spread=0.9), Noise()], [Noise(spread=0.9)] * 3
    bench.gauge.queued = [Noise(), *passing, *lasting]
    result = run_campaign(make.jobs(2), sink, make.facts, environment=bench.environment)
    assert {row.variant_id for row in result.untrusted} == {"imagenet/lite0/v1@1"}
    assert [row.noise for row in result.untrusted] == pytest.approx([3.0] * 4)


def test_a_budget_is_kept_and_shared_fairly(bench: Any, sink: Any, make: Any) -> None:
    effort = MeasurementEffort(
        relative_width=0.001, max_time_s=100.0
    )  # never satisfied: takes all it gets
    result = run_campaign(
        make.jobs(5),
        sink,
        make.facts,
        CampaignSettings(budget_s=20.0, effort=effort),
        environment=bench.environment,
    )
    assert len(result.measured) == 20
    assert 17.0 <= result.elapsed_s <= 20.5
    per_job = [len(one.runs) for one in bench.loaded]
    assert max(per_job) <= 1.25 * min(per_job)


def test_what_a_quick_placement_leaves_goes_to_the_next(bench: Any, sink: Any, make: Any) -> None:
    effort = MeasurementEffort(relative_width=0.001, max_time_s=100.0, max_repeats=50)
    bench.latency_s = lambda variant, batch: (0.05 if "v2" in variant else 1e-4) * batch
    run_campaign(
        make.jobs(3),
        sink,
        make.facts,
        CampaignSettings(budget_s=30.0, effort=effort),
        environment=bench.environment,
    )
    assert sum(bench.loaded[2].runs) * 0.05 > 20.0


def test_a_tiny_budget_measures_the_smallest_batch_of_each(
    bench: Any, sink: Any, make: Any
) -> None:
    result = run_campaign(
        make.jobs(4),
        sink,
        make.facts,
        CampaignSettings(budget_s=0.01),
        environment=bench.environment,
    )
    assert {row.batch for row in result.measured} == {1}
    assert len(result.measured) == 4
    assert set(result.skipped.values()) == {SkipReason.BUDGET_SPENT}


def test_a_placement_that_cannot_be_loaded_does_not_stop_the_others(
    bench: Any, sink: Any, make: Any
) -> None:
    bench.fail_load = "imagenet/lite0/v1@1"
    events: list[ProgressEvent] = []
    result = run_campaign(make.jobs(3), sink, make.facts, None, events.append, bench.environment)
    assert len(result.measured) == 8
    (placement, message), *rest = result.failed.items()
    assert rest == []
    assert placement.variant_id == bench.fail_load
    assert "cannot be loaded" in message
    assert events[-1].done == events[-1].total == 12
    assert [event.batch for event in events if event.kind is EventKind.FAILED] == [1]


def test_a_batch_that_fails_keeps_the_smaller_ones(bench: Any, sink: Any, make: Any) -> None:
    bench.fail_at_batch = 4
    result = run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment)
    assert [row.batch for row in result.measured] == [1, 2]
    assert "no such batch" in next(iter(result.failed.values()))
    assert bench.loaded[0].unloaded


def test_progress_tells_of_every_point_and_the_time_left(bench: Any, sink: Any, make: Any) -> None:
    events: list[tuple[ProgressEvent, float]] = []
    run_campaign(
        make.jobs(4),
        sink,
        make.facts,
        None,
        lambda event: events.append((event, bench.clock.now_s)),
        bench.environment,
    )
    end_s = bench.clock.now_s
    first, last = events[0][0], events[-1][0]
    assert (first.kind, first.total, first.eta_s) == (EventKind.PLANNED, 16, None)
    assert (last.kind, last.done, last.eta_s) == (EventKind.MEASURED, 16, 0.0)
    half = next((e, at_s) for e, at_s in events if e.kind is EventKind.MEASURED and e.done == 8)
    assert half[0].eta_s == pytest.approx(end_s - half[1], rel=0.1)
    assert half[0].measurement is not None


def test_time_left_is_never_more_than_the_budget() -> None:
    left = TimeLeft(weight=10.0, budget_s=5.0)
    assert left.eta_s(1.0) == 4.0
    left.end_point(1, measured=True)
    assert left.eta_s(2.0) == 3.0
    assert left.eta_s(9.0) == 0.0


def test_a_placement_twice_is_refused(bench: Any, sink: Any, make: Any) -> None:
    with pytest.raises(InvalidInputError, match="each placement once"):
        run_campaign(make.jobs(1) * 2, sink, make.facts, environment=bench.environment)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": ()},
        {"batches": (2, 1)},
        {"batches": (0, 1)},
        {"budget_s": 0.0},
        {"latency_cap_s": -1.0},
    ],
)
def test_nonsense_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        CampaignSettings(**wrong)
