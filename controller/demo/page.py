"""The report as one HTML file that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median_high
from typing import Any

from modelless.common.pages import Cells, details, figure, page, section, table
from modelless.controller.demo.figures import burst_figure, frontier_figure


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
    rows = [
        [
            _code(variant["short_name"], variant["id"]),
            _accuracy(variant["accuracy"], variant["accuracy_provenance"]),
            f"{variant['p50_ms']:.3g}",
            f"{variant['p99_ms']:.3g}" + ("" if variant["is_trusted"] else " *"),
            f"{variant['throughput_per_s']:,.0f}",
            f"{variant['memory_bytes'] / 2**20:.1f}",
            f"{variant['load_s'] * 1e3:.0f}",
        ]
        for variant in sorted(variants, key=lambda v: (v["task"], -v["accuracy"]))
    ]
    heads = ["variant", "accuracy", "p50 ms", "p99 ms", "items/s", "MiB", "load ms"]
    folded = details("All variants as measured (* while the machine was noisy)", table(heads, rows))
    return section("What there is to choose from", "", "".join(figures) + folded)


def _photos(photos: Mapping[str, Any], thumbnails: Mapping[str, str]) -> str:
    rows = [
        _photo_row(slo, [a for a in photos["answers"] if a["slo"] == slo["name"]])
        for slo in photos["slos"]
    ]
    heads = ["asked for", "chosen", "accuracy", "labels sane", "predicted ms", "observed ms"]
    cards = "".join(
        _card(photo, [a for a in photos["answers"] if a["photo"] == photo["name"]], thumbnails)
        for photo in photos["photos"]
    )
    every = table(
        ["photo", "limits", "label", "variant", "accuracy", "predicted ms", "observed ms"],
        [
            [escape(answer["photo"]), escape(answer["slo"]), *_photo_cells(answer)]
            for answer in photos["answers"]
        ],
    )
    return section(
        "What was chosen for what",
        "The client names limits, never a model. Milliseconds are medians over the photos, from "
        "arrival to reply by the server's clock.",
        f'<div class="cards">{cards}</div>{table(heads, rows)}'
        + details(f"Every answer ({len(photos['answers'])})", every),
    )


def _photo_row(slo: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Cells:
    answered = [answer for answer in answers if answer["status"] == 200]
    if not answered:
        return [_named(slo["name"], slo["limits"]), _refusal(answers[0])]
    names = dict.fromkeys(a["short_name"] for a in answered)
    ids = {a["short_name"]: a["variant"] for a in answered}
    chosen = ", ".join(_code(name, ids[name]) for name in names)
    low = min(answered, key=lambda a: a["accuracy"])
    sane = sum(answer["is_sane"] for answer in answered)
    refused = len(answers) - len(answered)
    return [
        _named(slo["name"], slo["limits"]),
        chosen + (f' <span class="refused">{refused} refused</span>' if refused else ""),
        _accuracy(low["accuracy"], low["accuracy_provenance"]),
        f"{sane}/{len(answered)}",
        f"{median_high(a['predicted_ms'] for a in answered):.1f}",
        f"{median_high(a['observed_ms'] for a in answered):.1f}",
    ]


def _photo_cells(answer: Mapping[str, Any]) -> Cells:
    if answer["status"] != 200:
        return [_refusal(answer)]
    mark = "" if answer["is_sane"] else ' <span class="refused">?</span>'
    return [
        f"{escape(answer['label'])} {answer['score']:.0%}{mark}",
        _code(answer["short_name"], answer["variant"]),
        _accuracy(answer["accuracy"], answer["accuracy_provenance"]),
        f"{answer['predicted_ms']:.1f}",
        f"{answer['observed_ms']:.1f}",
    ]


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
    rows = []
    for answer in clothes:
        names = ", ".join(_code(v["short_name"], v["variant"]) for v in answer["variants"])
        interval = f"{answer['measured_low']:.1f} to {answer['measured_high']:.1f}"
        rows.append(
            [
                _named(answer["slo"], answer["limits"]),
                names or '<span class="refused">refused</span>',
                f"{answer['images']:,}",
                f"<b>{answer['measured_percent']:.1f} %</b> <small>{interval}</small>",
                f"{answer['stated_percent']:.1f} %",
            ]
        )
    heads = ["asked for", "chosen", "images", "right, measured here", "stated"]
    return section(
        "A second task, measured end to end",
        "Fashion-MNIST's labelled test images, answered by the running cluster: what the replies "
        "state is what is measured.",
        table(heads, rows),
    )


def _burst(burst: Mapping[str, Any]) -> str:
    total = burst["total"]
    everything: dict[str, Any] = {"name": "all", "task": "", "limits": {}, "mean_accuracy": None}
    rows = [
        [
            _named(
                f"{kind['name']}, {kind['task']}" if kind["task"] else kind["name"],
                ", ".join(f"{name} {value:.6g}" for name, value in kind["limits"].items()),
            ),
            f"{kind['sent']:,}",
            percent(kind["share_in_time"]),
            f"{kind['answered'] - kind['in_time']:,}",
            f"{kind['refused']:,}",
            f"{kind['errors']:,}",
            number(kind["mean_accuracy"], unit=" %"),
            f"{number(kind['p50_ms'])} / {number(kind['p99_ms'])}",
        ]
        for kind in [*burst["kinds"], {**total, **everything}]
    ]
    heads = [
        *("asked for", "sent", "in time", "late", "refused", "errors"),
        *("accuracy", "p50 / p99 ms"),
    ]
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
    return section("A burst of mixed limits", text, figure(svg, "") + table(heads, rows))


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
    stages = table(
        ["stage", "seconds"],
        [[escape(stage["name"]), f"{stage['seconds']:.1f}"] for stage in document["stages"]],
    )
    items = "".join(f"<li>{fact}</li>" for fact in facts)
    return section("How this was made", "", f"<ul>{items}</ul>{details('Time taken', stages)}")


# -- pieces -----------------------------------------------------------------------------------


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent; a dash for None. Never rounded up to a whole that it is not."""
    if share is None:
        return "–"
    text = f"{share:.{digits}%}"
    return f"{share:.3%}" if text.startswith("100") and share < 1.0 else text


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A number with its unit; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _tile(value: str, name: str, detail: str) -> str:
    words = f"<span>{escape(name)}</span><small>{escape(detail)}</small>"
    return f'<div class="tile"><b>{value}</b>{words}</div>'


def _code(shown: str, whole: str) -> str:
    return f'<code title="{escape(whole)}">{escape(shown)}</code>'


def _named(name: str, limits: str) -> str:
    below = f'<span class="limits">{escape(limits)}</span>' if limits not in ("", "none") else ""
    return escape(name) + below


def _accuracy(value: float, provenance: str) -> str:
    return f"{value:.1f} % <small>{escape(provenance)}</small>"


def _refusal(answer: Mapping[str, Any]) -> str:
    return f'<span class="refused">refused</span> {escape(answer["error"])}'
