"""The report as one HTML file that needs nothing else: no scripts, no fonts, no network.

Its pictures are SVG whose colours are the page's: readable in light and in dark.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from modelless.common.drawing import BLUE, MUTED, ORANGE, RED, SHADES, TEAL, plain_ticks, render_svg
from modelless.common.pages import details, figure, page, section, table
from modelless.controller.demo.tables import (
    Shown,
    answers_table,
    clothes_table,
    kinds_table,
    limits_table,
    number,
    percent,
    variants_table,
)
from modelless.profiler.report.charts import latency_frontier_chart
from modelless.profiler.report.tradeoffs import FrontierFigure, FrontierPoint


def render_page(document: Mapping[str, Any], thumbnails: Mapping[str, str]) -> str:
    """The page.

    Args:
        thumbnails: pictures of the photos by name, as ``data:`` URLs.
    """
    sections = [
        _frontiers(document["variants"], document["machine"]["device_class"]),
        _photos(document["photos"], thumbnails),
        _clothes(document["clothes"]),
        _burst(document["burst"]),
        _how(document),
    ]
    machine = document["machine"]
    tiles = "".join(_tile(*tile) for tile in _headlines(document))
    return page(
        f'<div class="tiles">{tiles}</div>' + "".join(sections),
        title="modelless: the demo's report",
        heading="modelless",
        lead="Say how late and how accurate. It chooses the model.",
        subtitle=f"modelless {document['modelless']} on {machine['cpu_model']}, "
        f"{machine['cores']} cores, {document['made_at'].replace('T', ' ')}",
    )


def _headlines(document: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    photos, total = document["photos"], document["burst"]["total"]
    yield (
        str(len(photos["distinct_variants"])),
        "variants chosen",
        f"for {len(photos['photos'])} photos under {len(photos['slos'])} limits",
    )
    yield (
        percent(photos["sane"] / photos["judged"] if photos["judged"] else None, 0),
        "labels sane",
        f"{photos['sane']} of {photos['judged']} at 224 px and more",
    )
    yield (
        percent(total["share_in_time"]),
        "answered in time",
        f"of {total['sent']:,} queries in {document['burst']['seconds']:.0f} s",
    )
    yield (
        f"{total['refused']:,}",
        "refused, in order",
        f"{total['errors']:,} errors, {total['answered'] - total['in_time']:,} late",
    )
    yield f"{document['first_answer_s']:.1f} s", "to the first answer", "from modelless up"


def _html(shown: Shown) -> str:
    return table(shown.heads, [[escape(cell) for cell in row] for row in shown.rows])


def _frontiers(variants: Sequence[Mapping[str, Any]], device: str) -> str:
    figures = []
    for task in dict.fromkeys(variant["task"] for variant in variants):
        of_task = [variant for variant in variants if variant["task"] == task]
        kept = sum(variant["on_frontier"] for variant in of_task)
        provenances = ", ".join(sorted({variant["accuracy_provenance"] for variant in of_task}))
        caption = (
            f"<b>{escape(task)}</b>: {len(of_task)} variants, {kept} of them worth having. "
            f"Accuracy is {escape(provenances)}."
        )
        figures.append(figure(frontier_figure(of_task, device), caption))
    heading = "All variants as measured (* while the machine was noisy)"
    folded = details(heading, _html(variants_table(variants)))
    return section("What there is to choose from", "", "".join(figures) + folded)


def _photos(photos: Mapping[str, Any], thumbnails: Mapping[str, str]) -> str:
    cards = "".join(
        _card(photo, [a for a in photos["answers"] if a["photo"] == photo["name"]], thumbnails)
        for photo in photos["photos"]
    )
    every = details(
        f"Every answer ({len(photos['answers'])})", _html(answers_table(photos["answers"]))
    )
    return section(
        "What was chosen for what",
        "The client names limits, never a model. Milliseconds are medians over the photos, from "
        "arrival to reply by the server's clock.",
        f'<div class="cards">{cards}</div>{_html(limits_table(photos))}{every}',
    )


def _card(
    photo: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], thumbnails: Mapping[str, str]
) -> str:
    """A photo, what most variants called it, and how many of them were right."""
    labels = [answer["label"] for answer in answers if answer["status"] == 200]
    commonest = max(dict.fromkeys(labels), key=labels.count) if labels else "no answer"
    sane = sum(answer["is_sane"] for answer in answers)
    image = f'<img src="{thumbnails[photo["name"]]}" alt="{escape(photo["name"])}">'
    return (
        f'<figure class="card">{image}<figcaption><b>{escape(commonest)}</b>'
        f"<span>{escape(photo['name'])}: {sane} of {len(labels)} sane</span></figcaption></figure>"
    )


def _clothes(clothes: Sequence[Mapping[str, Any]]) -> str:
    return section(
        "A second task, measured end to end",
        "Fashion-MNIST's labelled test images, answered by the running cluster: what the replies "
        "state is what is measured.",
        _html(clothes_table(clothes)),
    )


def _burst(burst: Mapping[str, Any]) -> str:
    total = burst["total"]
    outcomes = ", ".join(f"{count:,} {escape(name)}" for name, count in total["outcomes"].items())
    steps = ", ".join(f"{step['per_s']:.0f}/s" for step in burst["steps"])
    text = (
        f"Poisson arrivals at {steps}; the estimate was that {burst['capacity_per_s']:.0f}/s of "
        "this mix fit if every query got what an idle system would give it. Beyond that the "
        "choices step down to quicker variants. Every query is accounted for: "
        f"{total['sent']:,} sent = {outcomes}. Accuracy and shares are those of "
        f"{escape(burst['main_task'])}."
    )
    svg = burst_figure(burst["bins"], burst["main_task_bins"]) if burst["bins"] else ""
    return section("A burst of mixed limits", text, figure(svg, "") + _html(kinds_table(burst)))


def _how(document: Mapping[str, Any]) -> str:
    machine, burst = document["machine"], document["burst"]
    facts = [
        f"Profiled and served on {machine['device_class']}, priced at "
        f"{machine['price_usd_per_hour']:g} USD an hour: a default; the setting "
        "prices_usd_per_hour takes your own.",
        "Published accuracies are those of the weights' authors, derived ones follow from them "
        "by measured agreement; neither was measured on ImageNet here.",
        f"The client took {burst['client_cpu_share']:.1%} of a core and sent 99 % of its queries "
        f"within {number(burst['client_lag_p99_ms'])} ms of their time; "
        f"{burst['total']['in_time_by_server']:,} answers were in time by the server's clock.",
    ]
    if burst["memory_bytes"]:
        facts.append(
            f"The gateways' processes held {burst['memory_bytes'] / 2**20:,.0f} MiB at the end."
        )
    facts += [escape(note) for note in document["notes"]]
    spent = [(stage["name"], f"{stage['seconds']:.1f}") for stage in document["stages"]]
    stages = _html(Shown(("stage", "seconds"), [*spent]))
    items = "".join(f"<li>{fact}</li>" for fact in facts)
    return section("How this was made", "", f"<ul>{items}</ul>{details('Time taken', stages)}")


def _tile(value: str, name: str, detail: str) -> str:
    words = f"<span>{escape(name)}</span><small>{escape(detail)}</small>"
    return f'<div class="tile"><b>{value}</b>{words}</div>'


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
