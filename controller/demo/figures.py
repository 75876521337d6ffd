"""The report's pictures, as SVG whose colours are the page's: readable in light and in dark."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from modelless.common.drawing import (
    BLUE,
    MUTED,
    ORANGE,
    RED,
    SHADES,
    TEAL,
    name_points,
    plain_ticks,
    render_svg,
)


def frontier_figure(variants: Sequence[Mapping[str, Any]]) -> str:
    """Latency against accuracy of one task's variants, as SVG.

    A point stands at the median of a lone query, its whisker reaches to the p99, its area tells
    the memory. Dominated ones are grey.

    Args:
        variants: as in the report's ``variants``.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        if not variants:
            _say_nothing(axes)
            return
        on_frontier = sorted((v for v in variants if v["on_frontier"]), key=lambda v: v["p99_ms"])
        most_bytes = max(v["memory_bytes"] for v in variants) or 1
        axes.set_xscale("log")
        axes.plot(
            [v["p50_ms"] for v in on_frontier],
            [v["accuracy"] for v in on_frontier],
            drawstyle="steps-post",
            color=TEAL,
            linewidth=1.2,
            alpha=0.55,
            zorder=1,
        )
        for variant in variants:
            kept = variant["on_frontier"]
            colour = {"int8": TEAL, "fp32": ORANGE}.get(variant["precision"], BLUE)
            colour = colour if kept else MUTED
            x, y = variant["p50_ms"], variant["accuracy"]
            axes.plot(
                [x, variant["p99_ms"]], [y, y], color=colour, alpha=0.9 if kept else 0.35, zorder=2
            )
            axes.scatter(
                [x],
                [y],
                s=40 + 260 * variant["memory_bytes"] / most_bytes,
                color=colour,
                alpha=0.75 if kept else 0.3,
                linewidths=0,
                zorder=3,
            )
        axes.set_xlabel("latency of a lone query, ms (point: median, whisker: p99)")
        axes.set_ylabel("accuracy, %")
        quickest, slowest = (
            pick(v[name] for v in variants) for pick, name in ((min, "p50_ms"), (max, "p99_ms"))
        )
        room = (slowest / quickest) ** 0.14  # for the names to the left, on a logarithmic axis
        axes.set_xlim(quickest / max(room, 1.2), slowest * max(room**0.3, 1.1))
        axes.margins(y=0.1)
        plain_ticks(axes.xaxis)
        for name, colour in (("int8", TEAL), ("fp32", ORANGE), ("dominated", MUTED)):
            axes.scatter([], [], s=60, color=colour, label=name, linewidths=0)
        axes.legend(loc="lower right", title="area: memory", title_fontsize=9.5)
        name_points(
            figure, axes, [(v["p50_ms"], v["accuracy"], v["short_name"]) for v in on_frontier]
        )

    label = f"Latency against accuracy of {len(variants)} variants; the table has the figures"
    return render_svg(draw, (9.6, 4.9), "frontier", label)


def burst_figure(bins: Sequence[Mapping[str, Any]], task_bins: Sequence[Mapping[str, Any]]) -> str:
    """The burst over time, as SVG: load, accuracy, who answered, and how soon.

    Args:
        bins: of all queries, as in the report's ``burst.bins``.
        task_bins: of the main task's alone: only within one task can accuracies be averaged.
    """

    def draw(figure: Any) -> None:
        rows = figure.subplots(4, 1, sharex=True, height_ratios=(1.15, 0.8, 1.25, 1.0))
        if not bins:
            _say_nothing(rows[0])
            return
        middles_s = [b["start_s"] + b["length_s"] / 2 for b in bins]
        _draw_load(rows[0], middles_s, bins)
        _draw_accuracy(rows[1], middles_s, task_bins)
        _draw_shares(rows[2], middles_s, task_bins)
        _draw_latency(rows[3], middles_s, bins)
        rows[3].set_xlabel("seconds from the burst's beginning")
        rows[3].set_xlim(0, bins[-1]["start_s"] + bins[-1]["length_s"])

    label = "Load, accuracy, who answered and latency over the time of the burst"
    return render_svg(draw, (9.6, 10.2), "burst", label)


def _draw_load(axes: Any, at_s: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> None:
    sent = [b["sent"] / b["length_s"] for b in bins]
    in_time = [b["in_time"] / b["length_s"] for b in bins]
    axes.set_title("Load, queries a second")
    axes.step(at_s, [b["offered_per_s"] for b in bins], where="mid", color=MUTED, linestyle=":")
    axes.plot(at_s, sent, color=BLUE, label="offered (dotted: planned mean)")
    axes.fill_between(at_s, in_time, color=TEAL, alpha=0.25, linewidth=0)
    axes.plot(at_s, in_time, color=TEAL, label="answered in time")
    missed = [s - i for s, i in zip(sent, in_time, strict=True)]
    axes.plot(at_s, missed, color=RED, linewidth=1.2, label="late, refused or failed")
    axes.set_ylim(0, 1.3 * max([1.0, *sent]))
    axes.legend(loc="upper left", ncols=3)


def _draw_accuracy(axes: Any, at_s: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> None:
    known = [(t, b["mean_accuracy"]) for t, b in zip(at_s, bins, strict=True) if b["answered"]]
    axes.set_title("Mean accuracy of the variants that answered, %")
    if known:
        times_s, percents = zip(*known, strict=True)
        axes.plot(times_s, percents, color=ORANGE)
        low, high = min(percents), max(percents)
        pad = max(0.5, 0.15 * (high - low))
        axes.set_ylim(low - pad, high + pad)


def _draw_shares(axes: Any, at_s: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title("Who answered, share of answers")
    stacked = shares_by_variant(bins)
    if not stacked:
        return
    axes.stackplot(
        at_s,
        [shares for _, shares in stacked],
        colors=shades(len(stacked)),
        labels=[name for name, _ in stacked],
        linewidth=0,
    )
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4)


def _draw_latency(axes: Any, at_s: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title("Latency of the answers by the client's clock, ms")
    for name, colour in (("p50_ms", TEAL), ("p90_ms", BLUE), ("p99_ms", ORANGE)):
        known = [(t, b[name]) for t, b in zip(at_s, bins, strict=True) if b[name] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, label=name.removesuffix("_ms"))
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    if axes.lines:
        axes.legend(loc="upper left", ncols=3)


def shares_by_variant(bins: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float]]]:
    """Each variant's share of the answers in each slice, most accurate variant first.

    What there are no shades for is added up as ``others``; a slice without answers is all zero.
    """
    totals: dict[str, int] = {}
    accuracy: dict[str, float] = {}
    for entry in itertools.chain.from_iterable(b["by_variant"] for b in bins):
        totals[entry["short_name"]] = totals.get(entry["short_name"], 0) + entry["answers"]
        accuracy[entry["short_name"]] = entry["accuracy"]
    most_used = sorted(totals, key=lambda name: -totals[name])
    shown = most_used if len(most_used) <= len(SHADES) else most_used[: len(SHADES) - 1]
    shown = sorted(shown, key=lambda name: -accuracy[name])
    rows = {name: [0.0] * len(bins) for name in shown}
    others = [0.0] * len(bins)
    for place, one in enumerate(bins):
        answered = sum(entry["answers"] for entry in one["by_variant"])
        for entry in one["by_variant"]:
            row = rows.get(entry["short_name"], others)
            row[place] += entry["answers"] / answered
    stacked = list(rows.items())
    return [*stacked, ("others", others)] if len(shown) < len(most_used) else stacked


def shades(count: int) -> list[str]:
    """``count`` of the shades, spread over all of them."""
    if count <= 1:
        return list(SHADES[:count])
    return [SHADES[round(place * (len(SHADES) - 1) / (count - 1))] for place in range(count)]


def _say_nothing(axes: Any) -> None:
    axes.text(0.5, 0.5, "nothing was measured", ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
