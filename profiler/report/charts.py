"""Pictures of what a variant buys with what; nothing is reckoned here.

A model has one colour over all its variants, and so has a device where devices are compared; what
is dominated is grey; what is quantised to integers has filled circles. Every axis names its unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

from modelless.common.drawing import (
    INK,
    MUTED,
    NAME_GAP_PT,
    NAME_PT,
    ORANGE,
    PAPER,
    SERIES,
    TEAL,
    WIDTH_IN,
    Chart,
    colours_of,
    logarithmic,
    name_column,
    name_points,
    plain_ticks,
    title,
)
from modelless.profiler.report.document import BatchCurve, BatchFigure
from modelless.profiler.report.prediction_errors import CLOSE_PERCENT, PredictionFigure
from modelless.profiler.report.tradeoffs import (
    FrontierFigure,
    FrontierPoint,
    ThroughputCurve,
    ThroughputFigure,
)

_LEAST_AREA_PT2, _MOST_AREA_PT2 = 14.0, 420.0
_MIB: Final = float(1 << 20)


def throughput_chart(data: ThroughputFigure) -> Chart:
    """A circle a variant and batch, its area the memory; a variant's are joined."""
    colours = colours_of([curve.model for curve in reversed(data.curves)])
    most_bytes = max(point.memory_bytes for curve in data.curves for point in curve.points) or 1
    area_pt2 = _areas(most_bytes)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for curve in sorted(data.curves, key=lambda c: c.dominated_by is None):  # grey ones below
            kept = curve.dominated_by is None
            colour = colours[curve.model] if kept else MUTED
            x = [point.latency_ms for point in curve.points]
            y = [point.throughput_per_s for point in curve.points]
            alpha = 0.85 if kept else 0.4
            axes.plot(x, y, color=colour, linewidth=0.9, alpha=alpha, zorder=2)
            axes.scatter(
                x,
                y,
                s=[area_pt2(point.memory_bytes) for point in curve.points],
                facecolor=colour if _is_integer(curve.precision) else PAPER,
                edgecolor=colour,
                linewidths=1.3,
                alpha=alpha,
                zorder=3 + kept,
            )
        logarithmic(axes, "latency of a batch, ms (median)", "throughput, items/s")
        axes.margins(0.1, 0.1)
        title(figure, f"{data.task} on {data.device}: throughput against latency by batch")
        _throughput_legend(axes, colours, area_pt2, most_bytes)
        _mark_batches(axes, max(data.curves, key=lambda c: c.points[-1].throughput_per_s))
        figure.draw_without_rendering()  # settles where points lie
        ends = [curve.points[-1] for curve in data.curves]
        name_column(
            axes,
            [(end.latency_ms, end.throughput_per_s) for end in ends],
            [_curve_words(curve) for curve in data.curves],
            [MUTED if curve.dominated_by else colours[curve.model] for curve in data.curves],
        )

    beaten = sum(curve.dominated_by is not None for curve in data.curves)
    label = (
        f"Throughput against latency of {len(data.curves)} variants of {data.task} on "
        f"{data.device}, a circle a batch; {beaten} are dominated. The table has the figures."
    )
    height_in = max(5.2, 1.3 + len(data.curves) * NAME_GAP_PT / 72.0)
    return Chart(draw, (WIDTH_IN, height_in), label)


def latency_frontier_chart(data: FrontierFigure) -> Chart:
    """Accuracy with its interval against the median latency of one item, by device and memory."""
    return _frontier_chart(
        data,
        "latency of one item alone",
        "ms (median)",
        lambda point: point.latency_ms,
        lambda point: point.on_latency_frontier,
    )


def cost_frontier_chart(data: FrontierFigure) -> Chart:
    """Accuracy with its interval against what 1,000 items cost, by device and memory."""
    costs = [point.usd_per_1000_items for point in data.points]
    is_tiny = max((cost for cost in costs if cost is not None), default=1.0) < 1e-3
    scale, unit = (1e6, "millionths of a USD") if is_tiny else (1.0, "USD")
    return _frontier_chart(
        data,
        "cost of 1,000 items",
        f"{unit} (at the cheapest measured batch)",
        lambda p: None if p.usd_per_1000_items is None else scale * p.usd_per_1000_items,
        lambda point: point.on_cost_frontier,
    )


# -- pieces -----------------------------------------------------------------------------------


def _frontier_chart(
    data: FrontierFigure,
    what: str,
    unit: str,
    price: Callable[[FrontierPoint], float | None],
    is_kept: Callable[[FrontierPoint], bool],
) -> Chart:
    colours = colours_of(data.devices)
    most_bytes = max((point.memory_bytes for point in data.points), default=0) or 1
    area_pt2 = _areas(most_bytes)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        named: dict[str, tuple[float, float, str]] = {}
        for device in data.devices:
            colour = colours[device]
            line = []
            for point in data.points:
                x = price(point)
                if point.device != device or x is None:
                    continue
                kept = is_kept(point)
                alpha = 0.9 if kept else 0.35
                y = point.accuracy_percent
                if point.low_percent is not None and point.high_percent is not None:
                    interval = [point.low_percent, point.high_percent]
                    axes.plot(
                        [x, x], interval, color=colour, linewidth=0.9, alpha=0.5 * alpha, zorder=2
                    )
                face = colour if kept else PAPER
                area = area_pt2(point.memory_bytes)
                axes.scatter(
                    [x], [y], s=area, facecolor=face, edgecolor=colour, alpha=alpha, zorder=4
                )
                if kept:
                    line.append((x, y))
                    if point.name not in named or x < named[point.name][0]:
                        named[point.name] = (x, y, point.name)
            line.sort()
            x_values, y_values = zip(*line, strict=True) if line else ((), ())
            axes.plot(x_values, y_values, color=colour, drawstyle="steps-post", zorder=3)
            axes.scatter([], [], s=42, color=colour, label=device, linewidths=0)
        axes.scatter([], [], s=42, facecolor=PAPER, edgecolor=MUTED, label="off the frontier")
        logarithmic(
            axes, f"{what}, {unit}", f"accuracy, % ({data.accuracy_metric}; line: 95 % interval)"
        )
        axes.set_yscale("linear")
        low, high = axes.get_xlim()
        axes.set_xlim(low / max(1.3, (high / low) ** 0.12), high * 1.1)  # names stand to the left
        axes.margins(y=0.14)
        _draw_memory_keys(axes, area_pt2, most_bytes, "MiB of memory")
        axes.legend(loc="lower right")
        title(figure, f"{data.task}: accuracy against {what}")
        name_points(figure, axes, sorted(named.values()))

    members = sum(is_kept(point) for point in data.points)
    label = (
        f"Accuracy against {what}: {len(data.points)} variants of {data.task} "
        f"on {', '.join(data.devices)}, {members} on the frontier. The table has the figures."
    )
    return Chart(draw, (WIDTH_IN, 5.2), label)


def _areas(most_bytes: float) -> Callable[[float], float]:
    """Areas of circles, pt2, by memory: the same for no memory and for the most in each picture."""

    def area_pt2(memory_bytes: float) -> float:
        return _LEAST_AREA_PT2 + (_MOST_AREA_PT2 - _LEAST_AREA_PT2) * memory_bytes / most_bytes

    return area_pt2


def _draw_memory_keys(
    axes: Any, area_pt2: Callable[[float], float], most_bytes: float, unit: str
) -> list[Any]:
    """Draw a legend's circles of a tenth of the most memory and of the most; returns them."""
    style = {"facecolor": PAPER, "edgecolor": MUTED}
    return [
        axes.scatter([], [], s=area_pt2(size), label=f"{_mebibytes(size)} {unit}", **style)
        for size in (0.1 * most_bytes, most_bytes)
    ]


def _throughput_legend(
    axes: Any, colours: dict[str, str], area_pt2: Callable[[float], float], most_bytes: float
) -> None:
    entries = [
        axes.scatter([], [], s=60, color=colour, linewidths=0, label=model)
        for model, colour in colours.items()
    ]
    entries.append(axes.scatter([], [], s=60, color=MUTED, alpha=0.5, label="dominated"))
    entries += _draw_memory_keys(axes, area_pt2, most_bytes, "MiB")
    axes.legend(
        handles=entries,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(9, len(entries)),
        title="colour: model; filled: int8 or int4, hollow: floating point; area: memory",
        title_fontsize=9.0,
        columnspacing=1.2,
        handletextpad=0.4,
    )


def _mark_batches(axes: Any, curve: ThroughputCurve) -> None:
    """Say over one curve which circle is which batch; the others' are in the same order."""
    for point in curve.points:
        axes.annotate(
            f"batch {point.batch}" if point is curve.points[0] else str(point.batch),
            (point.latency_ms, point.throughput_per_s),
            xytext=(-7, 6),
            textcoords="offset points",
            ha="right",
            fontsize=NAME_PT,
            color=MUTED,
        )


def _curve_words(curve: ThroughputCurve) -> str:
    words = f"{curve.name}  {curve.accuracy_percent:.1f} %"
    return words if curve.dominated_by is None else f"{words}, beaten by {curve.dominated_by}"


def _is_integer(precision: str) -> bool:
    return precision.startswith("int")


def _mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / _MIB:.2g}" if size_bytes < 100 * _MIB else f"{size_bytes / _MIB:.0f}"


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
