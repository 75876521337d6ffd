"""The report's data: every figure follows from the measurements as reckoned by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.report.document import SCHEMA, batch_figure, batches_to_predict
from modelless.profiler.report.prediction_errors import (
    histogram,
    prediction_figure,
    summary_of,
)
from modelless.profiler.report.profiles import profiles_of, short_names
from modelless.profiler.report.tradeoffs import (
    frontier,
    frontier_figure,
    throughput_figure,
)
from modelless.variants.registry.dominance import intervals_part

from .profiled import CPU, by_other_batches, points, profiles, report, variant

# -- profiles ---------------------------------------------------------------------------------


def test_short_names_leave_out_what_all_models_of_a_task_begin_with(make: Any) -> None:
    names = short_names(
        [
            make.variant("int8", "efficientnet-lite0"),
            make.variant("int8", "efficientnet-lite1"),
            replace(make.variant("int8", "alone-net"), task="other"),
        ]
    )
    assert list(names.values()) == ["lite0 int8", "lite1 int8", "alone-net int8"]


def test_short_names_keep_a_model_whole_whose_name_is_the_others_beginning(make: Any) -> None:
    names = short_names([make.variant("int8", "net"), make.variant("int8", "net-large")])
    assert list(names.values()) == ["net int8", "net-large int8"]


def test_short_names_keep_the_version_where_there_are_two(make: Any) -> None:
    two = [make.variant("int8", "net", version) for version in (1, 2)]
    assert list(short_names(two).values()) == ["net int8@1", "net int8@2"]


def test_points_are_sorted_and_strangers_left_out(make: Any) -> None:
    one, other = variant(make, "a", 70.0), variant(make, "b", 70.0)
    rows = points(make, one, {4: 3.0, 1: 1.0}) + points(make, other, {1: 1.0})
    (found,) = profiles_of(rows, [one], {"cpu-1": CPU})
    assert [point.batch for point in found.points] == [1, 4]
    assert (found.device.name, found.device.price_usd_per_hour) == ("cpu-1", 0.36)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"device_class": "cpu-2"}, ["cpu-1", "cpu-2"]),
        (
            {"device_name": "Another"},
            ["cpu-1, A Processor 100", "cpu-1, Another"],
        ),
        (
            {"engine": "engine-2"},
            ["cpu-1, A Processor 100, engine-2", "cpu-1, A Processor 100, onnxruntime-cpu-1.20.1"],
        ),
    ],
)
def test_devices_are_named_by_what_tells_them_apart(
    make: Any, changes: dict[str, Any], names: list[str]
) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0})
    rows += points(make, one, {1: 1.0}, fingerprint="other", **changes)
    found = profiles_of(rows, [one], {"cpu-1": CPU})
    assert [profile.device.name for profile in found] == names


def test_devices_that_differ_in_their_fingerprint_only_show_it(make: Any) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0}) + points(make, one, {1: 1.0}, fingerprint="other")
    names = [profile.device.name for profile in profiles_of(rows, [one], {})]
    assert names[1].endswith(", other")
    assert len(set(names)) == 2


# -- trade-offs -------------------------------------------------------------------------------


def test_the_frontier_has_what_nothing_beats() -> None:
    pairs = [(5.0, 80.0), (1.0, 70.0), (6.0, 75.0), (1.0, 60.0), (5.0, 80.0)]
    assert frontier(pairs, lambda pair: pair) == [(1.0, 70.0), (5.0, 80.0)]
    assert frontier([], lambda pair: pair) == []


def test_who_is_dominated_is_named_with_who_beats_it(make: Any) -> None:
    figure = throughput_figure(
        profiles(
            make,
            (variant(make, "slow", 60.0), {1: 4.0, 2: 8.0}),
            (variant(make, "middle", 65.0), {1: 3.0, 2: 5.0}),
            (variant(make, "best", 70.0), {1: 2.0, 2: 3.0}),
            (variant(make, "quick", 50.0), {1: 1.0, 2: 1.6}),
        ),
        intervals_part,
    )
    assert (figure.task, figure.device) == ("imagenet", "cpu-1")
    assert [(curve.name, curve.dominated_by) for curve in figure.curves] == [
        ("net-a best", None),
        ("net-a middle", "net-a best"),
        ("net-a slow", "net-a best"),
        ("net-a quick", None),
    ]
    first = figure.curves[0].points[1]
    assert (first.batch, first.latency_ms, first.memory_bytes) == (2, pytest.approx(3.0), 1 << 20)
    assert first.throughput_per_s == pytest.approx(2 / 0.003)


def test_frontiers_are_by_device_and_costs_at_the_cheapest_batch(make: Any) -> None:
    good, bad = variant(make, "good", 70.0), variant(make, "bad", 60.0)
    rows = [
        *points(make, good, {1: 10.0, 4: 20.0}),  # 200 items/s at batch 4
        *points(make, bad, {1: 8.0, 4: 40.0}),  # 125 items/s at batch 1
        *points(make, bad, {4: 1.0}, device_class="gpu"),
    ]
    figure = frontier_figure(profiles_of(rows, [good, bad], {"cpu-1": CPU}))
    assert figure.devices == ("cpu-1", "gpu")
    first, second, third = figure.points
    assert (first.name, first.low_percent, first.high_percent) == ("net-a good", 69.0, 71.0)
    assert (first.latency_ms, first.cheapest_batch) == (pytest.approx(10.0), 4)
    assert first.usd_per_1000_items == pytest.approx(0.0001 * 1000 / 200)
    assert (first.on_latency_frontier, first.on_cost_frontier) == (True, True)
    assert (second.latency_ms, second.cheapest_batch) == (pytest.approx(8.0), 1)
    assert second.usd_per_1000_items == pytest.approx(0.0001 * 1000 / 125)
    assert (second.on_latency_frontier, second.on_cost_frontier) == (True, False)
    assert (third.latency_ms, third.usd_per_1000_items) == (None, None)
    assert (third.on_latency_frontier, third.on_cost_frontier) == (False, False)


# -- latency against batch --------------------------------------------------------------------


def test_predictions_go_twice_as_far_as_measurements(make: Any) -> None:
    assert batches_to_predict(2) == (1, 2, 3, 4)
    many = batches_to_predict(512)
    assert (many[0], many[-1]) == (1, 1024)
    assert len(many) <= 48
    assert list(many) == sorted(set(many))


def test_bands_are_the_cost_model_s(make: Any) -> None:
    told = (variant(make, "a", 70.0), {1: 1.0, 2: 3.0})
    mine = profiles(make, told)
    figure = batch_figure(mine, ServingCostModel(mine[0].points))
    (panel,) = figure.panels
    (curve,) = panel.curves
    assert (panel.model, curve.name) == ("net-a", "net-a a")
    assert [each.batch for each in curve.predicted] == [1, 2, 3, 4]
    assert [each.p50_ms for each in curve.predicted] == pytest.approx([1.0, 3.0, 5.0, 7.0])
    assert [each.p99_ms for each in curve.predicted] == pytest.approx([1.2, 3.6, 6.0, 8.4])
    assert [each.p90_ms for each in curve.measured] == pytest.approx([1.1, 3.3])


def test_what_the_cost_model_does_not_know_has_no_band(make: Any) -> None:
    figure = batch_figure(
        profiles(make, (variant(make, "a", 70.0), {1: 1.0})), ServingCostModel([])
    )
    assert figure.panels[0].curves[0].predicted == ()


def test_a_panel_a_model_with_the_slowest_first(make: Any) -> None:
    mine = profiles(
        make,
        (variant(make, "x", 70.0, "net-a"), {1: 1.0}),
        (variant(make, "y", 70.0, "net-b"), {1: 3.0}),
        (variant(make, "z", 70.0, "net-a"), {1: 2.0}),
    )
    figure = batch_figure(mine, ServingCostModel([p for each in mine for p in each.points]))
    told = [(panel.model, [curve.name for curve in panel.curves]) for panel in figure.panels]
    assert told == [("net-b", ["b y"]), ("net-a", ["a z", "a x"])]


# -- predictions ------------------------------------------------------------------------------


def test_the_only_batch_cannot_be_predicted(make: Any) -> None:
    mine = profiles(make, (variant(make, "a", 70.0), {1: 1.0}))
    figure = prediction_figure(mine, by_other_batches)
    assert (figure.points, figure.unpredicted) == ((), 1)
    assert (figure.between.points, figure.between.bias_percent) == (0, None)
    assert figure.histogram.edges_percent == ()


def test_errors_say_by_how_much_predictions_are_too_long(make: Any) -> None:
    mine = profiles(make, (variant(make, "a", 70.0), {1: 1.0, 2: 3.0, 4: 5.0}))
    figure = prediction_figure(mine, by_other_batches)
    assert [point.batch for point in figure.points] == [1, 2, 4]
    assert [point.is_between for point in figure.points] == [False, True, False]
    errors = [point.error_percent for point in figure.points]
    assert errors == pytest.approx([200.0, -22.2222, 40.0], abs=1e-3)
    assert figure.between.bias_percent == pytest.approx(-22.2222, abs=1e-3)
    assert figure.beyond.median_absolute_percent == pytest.approx(120.0)
    assert figure.beyond.p90_absolute_percent == pytest.approx(184.0)


def test_a_better_model_is_asked_once_a_machine(make: Any) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0, 2: 2.0}) + points(make, one, {1: 4.0}, fingerprint="other")
    asked = []

    def clairvoyant(held_out: Sequence[Measurement]) -> list[float]:
        asked.append([point.p50_s for point in held_out])
        return [point.p50_s for point in held_out]

    figure = prediction_figure(profiles_of(rows, [one], {}), clairvoyant)
    assert sorted(asked) == [[0.001, 0.002], [0.004]]
    assert {point.error_percent for point in figure.points} == {0.0}
    assert figure.beyond.close_percent == 100.0


def test_errors_in_a_few_figures() -> None:
    summary = summary_of([-20.0, 0.0, 5.0, 10.0])
    assert summary.points == 4
    assert summary.median_absolute_percent == pytest.approx(7.5)
    assert summary.p90_absolute_percent == pytest.approx(17.0)
    assert summary.bias_percent == pytest.approx(2.5)
    assert summary.close_percent == pytest.approx(75.0)


def test_bins_have_a_round_width_and_keep_every_point() -> None:
    found = histogram([-1.5, 0.5, 0.6], [2.0])
    assert found.edges_percent == (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    assert found.between == (1, 0, 2, 0, 0)
    assert found.beyond == (0, 0, 0, 0, 1)
    wide = histogram([-90.0], [350.0, 9000.0])
    assert wide.edges_percent[1] - wide.edges_percent[0] == 20.0
    assert wide.edges_percent[-1] == 420.0
    assert (sum(wide.between), sum(wide.beyond)) == (1, 2)
    assert wide.beyond[-1] == 1


# -- all of it --------------------------------------------------------------------------------


def test_the_document_is_json_without_infinities(make: Any) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0}, trusted=False) + points(make, one, {2: 2.0})
    told = report(profiles_of(rows, [one], {}))
    document = json.loads(json.dumps(told.document(), allow_nan=False))
    assert document["schema"] == SCHEMA
    assert (document["points"], document["untrusted"]) == (2, 1)
    assert document["measured_from"] == "2025-01-01T00:00:00+00:00"
    (task,) = document["tasks"]
    assert task["frontier"]["points"][0]["usd_per_1000_items"] is None
    assert [point["trusted"] for point in task["throughput"][0]["curves"][0]["points"]] == [
        False,
        True,
    ]


def test_each_machine_has_a_cost_model_of_its_own(make: Any) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0, 2: 2.0})
    rows += points(make, one, {1: 10.0, 2: 20.0}, fingerprint="other", device_name="Slow")
    (task,) = report(profiles_of(rows, [one], {})).tasks
    fast, slow = (figure.panels[0].curves[0].predicted[3] for figure in task.latency)
    assert (fast.p50_ms, slow.p50_ms) == (pytest.approx(4.0), pytest.approx(40.0))
