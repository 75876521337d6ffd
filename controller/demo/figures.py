"""The report's pictures, as SVG whose colours are the page's: readable in light and in dark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from modelless.common.drawing import (
    BLUE,
    MUTED,
    ORANGE,
    RED,
    SHADES,
    TEAL,
    plain_ticks,
    render_svg,
)
from modelless.profiler.report.tradeoff_charts import latency_frontier_chart
from modelless.profiler.report.tradeoffs import FrontierFigure, FrontierPoint


def frontier_figure(variants: Sequence[Mapping[str, Any]], device: str) -> str:
    """Latency against accuracy of one task's variants on a device, as SVG.

    Args:
        variants: as in the report's ``variants``; at least one.
    """
    task = variants[0]["task"]
    points = tuple(
        FrontierPoint(
            variant=variant["id"],
            name=variant["short_name"],
            device=device,
            accuracy_percent=variant["accuracy"],
            low_percent=variant["accuracy_low"],
            high_percent=variant["accuracy_high"],
            provenance=variant["accuracy_provenance"],
            latency_ms=variant["p50_ms"],
            memory_bytes=variant["memory_bytes"],
            usd_per_1000_items=None,
            cheapest_batch=1,
            on_latency_frontier=variant["on_frontier"],
            on_cost_frontier=False,
        )
        for variant in variants
    )
    data = FrontierFigure(task, variants[0]["accuracy_metric"], (device,), points)
    return latency_frontier_chart(data).svg(f"frontier-{task}")


def burst_figure(bins: Sequence[Mapping[str, Any]], task_bins: Sequence[Mapping[str, Any]]) -> str:
    """The burst over time, as SVG: load, accuracy, who answered, and how soon.

    Args:
        bins: of all queries, as in the report's ``burst.bins``; at least one.
        task_bins: of the main task's alone: only within one task can accuracies be averaged.
    """

    def draw(figure: Any) -> None:
        rows = figure.subplots(4, 1, sharex=True, height_ratios=(1.15, 0.8, 1.25, 1.0))
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
        colors=[SHADES[place * len(SHADES) // len(stacked)] for place in range(len(stacked))],
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
    totals: Counter[str] = Counter()
    accuracy: dict[str, float] = {}
    for entry in itertools.chain.from_iterable(b["by_variant"] for b in bins):
        totals[entry["short_name"]] += entry["answers"]
        accuracy[entry["short_name"]] = entry["accuracy"]
    shown = [name for name, _ in totals.most_common(len(SHADES) - (len(totals) > len(SHADES)))]
    rows = {name: [0.0] * len(bins) for name in sorted(shown, key=lambda name: -accuracy[name])}
    if len(shown) < len(totals):
        rows["others"] = [0.0] * len(bins)
    for place, one in enumerate(bins):
        for entry in one["by_variant"]:
            name = entry["short_name"] if entry["short_name"] in rows else "others"
            rows[name][place] += entry["answers"] / one["answered"]
    return list(rows.items())
