"""Pictures of latency as measured and as predicted; nothing is reckoned here."""

from __future__ import annotations

import itertools
from typing import Any, Final

from modelless.common.drawing import (
    INK,
    MUTED,
    ORANGE,
    PAPER,
    SERIES,
    TEAL,
    WIDTH_IN,
    Chart,
    logarithmic,
    name_column,
    plain_ticks,
    title,
)
from modelless.profiler.report.batch_curves import BatchCurve, BatchFigure
from modelless.profiler.report.prediction_errors import CLOSE_PERCENT, PredictionFigure

_HALF_WIDTH_IN: Final = 5.6
_KINDS: Final = (("interpolated", TEAL, "o", True), ("extrapolated", ORANGE, "^", False))


def batch_chart(data: BatchFigure) -> Chart:
    """A panel a model: measured points with whiskers on what the cost model predicts."""
    columns = min(3, len(data.panels))
    rows = -(-len(data.panels) // columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for axes in grid[len(data.panels) :]:
            axes.set_axis_off()
        drawn = list(zip(grid, data.panels, strict=False))
        curves = [curve for panel in data.panels for curve in panel.curves]
        measured = max(curve.measured[-1].batch for curve in curves)
        reach = max(each.batch for c in curves for each in (*c.measured, *c.predicted))
        for place, (axes, panel) in enumerate(drawn):
            for curve, colour in zip(panel.curves, itertools.cycle(SERIES), strict=False):
                _draw_curve(axes, curve, colour)
            axes.set_title(panel.model)
            logarithmic(axes, "", "")
            axes.set_xticks([2**power for power in range(reach.bit_length())])
            axes.set_xlim(0.85, reach * 1.08)
            axes.axvspan(measured, reach * 1.08, color=MUTED, alpha=0.07, linewidth=0)
            axes.tick_params(labelbottom=place + columns >= len(data.panels))
        title(figure, f"{data.task} on {data.device}: latency against batch")
        figure.supxlabel(
            "items in a batch\n"
            "measured: dot p50, whisker to p99; predicted: line p50, shades to p90 and p99; "
            "grey: beyond what was measured",
            color=MUTED,
            fontsize=9.5,
        )
        figure.supylabel("latency of a batch, ms", color=MUTED, fontsize=10.5)
        figure.draw_without_rendering()  # settles where points lie
        for axes, panel in drawn:
            ends = [(curve.predicted or curve.measured)[-1] for curve in panel.curves]
            name_column(
                axes,
                [(end.batch, end.p50_ms) for end in ends],
                [curve.name.partition(" ")[2] for curve in panel.curves],
                [SERIES[place % len(SERIES)] for place in range(len(panel.curves))],
            )

    count = sum(len(panel.curves) for panel in data.panels)
    label = (
        f"Latency against batch of {count} variants of {data.task} on {data.device}, measured and "
        f"predicted, a panel each for {len(data.panels)} models. The table has the figures."
    )
    return Chart(draw, (WIDTH_IN, 0.6 + 3.7 * rows), label)


def predicted_chart(data: PredictionFigure) -> Chart:
    """Predicted against measured latency, with lines where the error is large."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        values = [v for p in data.points for v in (p.measured_ms, p.predicted_ms)]
        ends = [min(values) / 1.3, max(values) * 1.3]
        axes.plot(ends, ends, color=INK, linewidth=0.9, zorder=2)
        for factor in (1.0 - CLOSE_PERCENT / 100.0, 1.0 + CLOSE_PERCENT / 100.0):
            line = [end * factor for end in ends]
            axes.plot(ends, line, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        for name, colour, marker, is_between in _KINDS:
            mine = [point for point in data.points if point.is_between == is_between]
            axes.scatter(
                [point.measured_ms for point in mine],
                [point.predicted_ms for point in mine],
                s=24,
                marker=marker,
                color=colour,
                alpha=0.75,
                linewidths=0,
                label=name,
                zorder=3,
            )
        logarithmic(axes, "measured median latency, ms", "predicted median latency, ms")
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis, (1.0,) if ends[1] > 300.0 * ends[0] else (1.0, 2.0, 5.0))
        axes.set_xlim(ends)
        axes.set_ylim(ends)
        axes.set_aspect("equal")
        axes.legend(loc="upper left")

    label = (
        f"Predicted against measured latency of {len(data.points)} points, each predicted by a "
        "model that has not seen it. The table has the figures."
    )
    return Chart(draw, (_HALF_WIDTH_IN, 5.2), label)


def error_chart(data: PredictionFigure) -> Chart:
    """How errors are distributed, interpolated points and extrapolated ones apart."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        edges = data.histogram.edges_percent
        widths = [right - left for left, right in itertools.pairwise(edges)]
        floor = [0] * len(widths)
        counts = {True: data.histogram.between, False: data.histogram.beyond}
        for name, colour, _, is_between in _KINDS:
            mine = counts[is_between]
            axes.bar(
                edges[:-1],
                mine,
                widths,
                bottom=floor,
                align="edge",
                color=colour,
                alpha=0.85,
                edgecolor=PAPER,
                linewidth=0.6,
                label=name,
            )
            floor = [below + count for below, count in zip(floor, mine, strict=True)]
        axes.axvline(0.0, color=INK, linewidth=0.9)
        for error in (-CLOSE_PERCENT, CLOSE_PERCENT):
            axes.axvline(error, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_xlabel("relative error, % (above 0: predicted too long)")
        axes.set_ylabel(f"points in a bin of {widths[0]:g} %")
        axes.margins(0.03, 0.08)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper right")

    label = (
        f"Distribution of the relative error of {len(data.points)} predictions: "
        f"{data.between.points} interpolated and {data.beyond.points} extrapolated ones. The table "
        "has the figures."
    )
    return Chart(draw, (_HALF_WIDTH_IN, 5.2), label)


def _draw_curve(axes: Any, curve: BatchCurve, colour: str) -> None:
    batches = [each.batch for each in curve.predicted]
    p50, p90, p99 = (
        [getattr(each, name) for each in curve.predicted] for name in ("p50_ms", "p90_ms", "p99_ms")
    )
    axes.fill_between(batches, p90, p99, color=colour, alpha=0.12, linewidth=0)
    axes.fill_between(batches, p50, p90, color=colour, alpha=0.3, linewidth=0)
    axes.plot(batches, p50, color=colour, linewidth=1.1)
    at = [each.batch for each in curve.measured]
    middle = [each.p50_ms for each in curve.measured]
    axes.vlines(at, middle, [each.p99_ms for each in curve.measured], color=colour, linewidth=1.2)
    axes.scatter(at, middle, s=18, color=colour, linewidths=0, zorder=3)
