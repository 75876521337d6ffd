"""The report as a page and its pictures: every picture has words and a table beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Final

from modelless.common.drawing import Chart
from modelless.common.pages import Cells, count_of, details, figure, page, section, table
from modelless.profiler.report.charts import (
    batch_chart,
    cost_frontier_chart,
    error_chart,
    latency_frontier_chart,
    predicted_chart,
    throughput_chart,
)
from modelless.profiler.report.document import BatchFigure, Report, TaskFigures
from modelless.profiler.report.prediction_errors import (
    CLOSE_PERCENT,
    ErrorSummary,
    PredictionFigure,
)
from modelless.profiler.report.tradeoffs import FrontierFigure, ThroughputFigure

_STYLE: Final = """
main { max-width: 1180px; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 14px 0 0;
  list-style: none; }
.pair { display: grid; gap: 6px 26px;
  grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); }
.plot { margin-top: 30px; }
section > .plot:first-of-type { margin-top: 8px; }
caption { text-align: left; color: var(--muted); font-size: 12.5px; padding-bottom: 6px; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--blue);
  outline-offset: 2px; }
@media (max-width: 760px) { .plot { overflow-x: auto; } .plot svg { min-width: 740px; }
  .pair .plot svg { min-width: 400px; } }
"""
_NONE: Final = "–"
_MIB: Final = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture with all that stands beside it.

    Attributes:
        name: of its file, without the suffix; its own.
        caption: goes on from the title, HTML.
        heads, rows: the table behind it; rows of HTML.
    """

    name: str
    title: str
    chart: Chart
    caption: str
    heads: tuple[str, ...]
    rows: tuple[Cells, ...]


def render(
    report: Report, *, made: str, progress: Callable[[int, int, str], None] = lambda *_: None
) -> tuple[str, Mapping[str, bytes]]:
    """The page, and PNG files by name that it has links to.

    Args:
        progress: told how many pictures of how many are made, and which was the last.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
    """
    taken: set[str] = set()
    by_task = {task.task: [_renamed(p, taken) for p in _of_task(task)] for task in report.tasks}
    predictions = [_renamed(picture, taken) for picture in _of_predictions(report.predictions)]
    every = [*(picture for each in by_task.values() for picture in each), *predictions]
    figures: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for picture in every:
        figures[picture.name] = _figure(picture)
        files[f"{picture.name}.png"] = picture.chart.png()
        progress(len(files), len(every), picture.name)
    sections = [
        section(task, "", "".join(figures[p.name] for p in pictures), f"task-{task}")
        for task, pictures in by_task.items()
    ]
    pair = "".join(f"<div>{figures[picture.name]}</div>" for picture in predictions)
    sections.append(
        section(
            "Predicted and measured",
            _prediction_words(report.predictions),
            f'{_summary_table(report.predictions)}<div class="pair">{pair}</div>' if pair else "",
            "predictions",
        )
    )
    sections.append(section("How to read this", "", _reading(report), "reading"))
    untrusted = f", {report.untrusted:,} of them not trusted" if report.untrusted else ""
    days = dict.fromkeys(moment[:10] for moment in (report.measured_from, report.measured_to))
    html = page(
        _contents(by_task) + "".join(sections),
        title="modelless: profiles",
        heading="Profiles",
        lead=f"{count_of(report.points, 'measured point')}{untrusted}, on "
        f"{'; '.join(device.name for device in report.devices)}.",
        subtitle=f"{made}, measured {' to '.join(days)}",
        style=_STYLE,
    )
    return html, files


def file_name(*words: str) -> str:
    """``words`` fit for a file's name and an id: letters, digits, ``.``, ``_`` and ``-``."""
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-.") or "x" for word in words)


def _renamed(picture: Picture, taken: set[str]) -> Picture:
    """The picture under a name that is not in ``taken``, to which it is added."""
    names = (picture.name, *(f"{picture.name}-{number}" for number in range(2, len(taken) + 3)))
    name = next(each for each in names if each not in taken)
    taken.add(name)
    return replace(picture, name=name)


def _of_task(task: TaskFigures) -> Iterator[Picture]:
    for data in task.throughput:
        beaten = sum(curve.dominated_by is not None for curve in data.curves)
        yield Picture(
            file_name("throughput", task.task, data.device),
            "Throughput against latency",
            throughput_chart(data),
            f" on {escape(data.device)}: a circle a variant and "
            f"batch, its area the memory. {beaten} of {count_of(len(data.curves), 'variant')} "
            "are dominated: another is more accurate and quicker at every batch, beyond noise, and "
            "takes no more memory.",
            (*("variant", "accuracy", "batch", "p50 ms", "items/s", "MiB"), "dominated by"),
            tuple(_throughput_rows(data)),
        )
    for batches in task.latency:
        yield Picture(
            file_name("latency", task.task, batches.device),
            "Latency against batch",
            batch_chart(batches),
            f" on {escape(batches.device)}. Dots are measured medians "
            "with whiskers to the p99. Lines are what the cost model predicts as median, shades "
            "reach to its p90 and p99; the grey part is beyond the largest measured batch.",
            ("variant", "batch", "known by", "p50 ms", "p90 ms", "p99 ms"),
            tuple(_batch_rows(batches)),
        )
    heads = (
        *("variant", "device", "accuracy", "p50 ms, batch 1", "MiB", "USD per 1,000 items"),
        *("at batch", "on the frontier of"),
    )
    rows = tuple(_frontier_rows(task.frontier))
    if any(point.latency_ms is not None for point in task.frontier.points):
        yield Picture(
            file_name("frontier-latency", task.task),
            "Accuracy against latency",
            latency_frontier_chart(task.frontier),
            " of one item alone, a colour a device, a circle's area the memory. Filled: "
            "nothing else on the device is at least as accurate and quicker.",
            heads,
            rows,
        )
    if any(point.usd_per_1000_items is not None for point in task.frontier.points):
        yield Picture(
            file_name("frontier-cost", task.task),
            "Accuracy against cost",
            cost_frontier_chart(task.frontier),
            " of 1,000 items: the price of the device time they take, a circle's area the memory, "
            "at the batch that makes it least. Filled: nothing else on the device is at least as "
            "accurate and cheaper.",
            heads,
            rows,
        )


def _of_predictions(data: PredictionFigure) -> Iterator[Picture]:
    if not data.points:
        return
    yield Picture(
        "predicted-measured",
        "Predicted against measured",
        predicted_chart(data),
        f" median latency; dashed: ± {CLOSE_PERCENT:g} %.",
        ("variant", "device", "batch", "measured ms", "predicted ms", "error", "by"),
        tuple(
            (
                _code(point.variant),
                escape(point.device),
                str(point.batch),
                _number(point.measured_ms),
                _number(point.predicted_ms),
                f"{point.error_percent:+.1f} %",
                "interpolation" if point.is_between else "extrapolation",
            )
            for point in data.points
        ),
    )
    histogram = data.histogram
    bins = zip(
        histogram.edges_percent,
        histogram.edges_percent[1:],
        histogram.between,
        histogram.beyond,
        strict=False,
    )
    yield Picture(
        "prediction-errors",
        "Distribution of the relative error",
        error_chart(data),
        f"; dashed: ± {CLOSE_PERCENT:g} %.",
        ("error from", "to", "interpolated points", "extrapolated points"),
        tuple(
            (f"{low:g} %", f"{high:g} %", str(between), str(beyond))
            for low, high, between, beyond in bins
        ),
    )


def _throughput_rows(data: ThroughputFigure) -> Iterator[Cells]:
    for curve in data.curves:
        for point in curve.points:
            yield (
                _code(curve.variant),
                f"{curve.accuracy_percent:.1f} %",
                str(point.batch),
                _number(point.latency_ms) + ("" if point.trusted else " *"),
                _number(point.throughput_per_s),
                f"{point.memory_bytes / _MIB:.3g}",
                escape(curve.dominated_by or _NONE),
            )


def _batch_rows(data: BatchFigure) -> Iterator[Cells]:
    for panel in data.panels:
        for curve in panel.curves:
            told = [("measured", each) for each in curve.measured]
            told += [("predicted", each) for each in curve.predicted]
            for known_by, each in told:
                yield (
                    _code(curve.variant),
                    str(each.batch),
                    known_by + ("" if each.trusted else " *"),
                    *(_number(value) for value in (each.p50_ms, each.p90_ms, each.p99_ms)),
                )


def _frontier_rows(data: FrontierFigure) -> Iterator[Cells]:
    for point in data.points:
        accuracy = f"{point.accuracy_percent:.1f} % <small>{escape(point.provenance)}"
        if point.low_percent is not None and point.high_percent is not None:
            accuracy += f", {point.low_percent:.1f} to {point.high_percent:.1f}"
        cost = point.usd_per_1000_items
        kinds = [
            kind
            for kind, is_on in (
                ("latency", point.on_latency_frontier),
                ("cost", point.on_cost_frontier),
            )
            if is_on
        ]
        yield (
            _code(point.variant),
            escape(point.device),
            accuracy + "</small>",
            _NONE if point.latency_ms is None else _number(point.latency_ms),
            f"{point.memory_bytes / _MIB:.3g}",
            _NONE if cost is None else f"{cost:.3g}",
            _NONE if cost is None else str(point.cheapest_batch),
            ", ".join(kinds) or _NONE,
        )


def _summary_table(data: PredictionFigure) -> str:
    heads = (
        *("points", "how many", "median of |error|", "p90 of |error|", "median error"),
        f"within {CLOSE_PERCENT:g} %",
    )
    return table(
        heads,
        [
            _summary_row("interpolated: between measured batches", data.between),
            _summary_row("extrapolated: beyond them", data.beyond),
        ],
        "Errors of predictions in a few figures",
    )


def _summary_row(name: str, summary: ErrorSummary) -> Cells:
    values = (
        summary.median_absolute_percent,
        summary.p90_absolute_percent,
        summary.bias_percent,
        summary.close_percent,
    )
    forms = ("{:.1f} %", "{:.1f} %", "{:+.1f} %", "{:.0f} % of them")
    told = (
        _NONE if value is None else form.format(value)
        for form, value in zip(forms, values, strict=True)
    )
    return (name, f"{summary.points:,}", *told)


def _prediction_words(data: PredictionFigure) -> str:
    words = "Each measured point is predicted by a model that has not seen it."
    if data.unpredicted:
        words += (
            f" Of {count_of(data.unpredicted, 'point')} it could say nothing: a variant's only "
            "batch leaves nothing to go by."
        )
    return words


def _reading(report: Report) -> str:
    priced = [d for d in report.devices if d.price_usd_per_hour is not None]
    prices = "; ".join(f"{d.name}: {d.price_usd_per_hour:g} USD an hour" for d in priced)
    facts = [
        "Latency is that of a whole batch, on a device that does nothing else. p50, p90 and p99 "
        "are its quantiles.",
        "Memory is what the process grew by.",
        "Accuracy is measured, published or derived; the tables say which, with its 95 % interval "
        "where there is one.",
        "An interpolated point had smaller and larger batches of the same variant beside it; an "
        "extrapolated one had not, which is the harder case.",
        "* marks points that are not trusted: it was too noisy, or they vary too much.",
        *(f"{d.name}: {d.processor}." for d in report.devices if d.processor not in d.name),
        f"Prices: {prices}." if prices else "No price of a device is known here.",
    ]
    return f"<ul>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul>"


def _contents(tasks: Iterable[str]) -> str:
    places = [(f"task-{task}", task) for task in tasks]
    places += [("predictions", "Predicted and measured"), ("reading", "How to read this")]
    items = "".join(
        f'<li><a href="#{escape(place)}">{escape(name)}</a></li>' for place, name in places
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _figure(picture: Picture) -> str:
    file = escape(f"{picture.name}.png")
    caption = f'<b>{escape(picture.title)}</b>{picture.caption} <a href="{file}">PNG</a>'
    folded = details(
        f"{picture.title}, as a table ({count_of(len(picture.rows), 'row')})",
        table(picture.heads, picture.rows, picture.chart.label.partition(". The table")[0]),
    )
    return figure(picture.chart.svg(picture.name), caption) + folded


def _code(variant_id: str) -> str:
    return f"<code>{escape(variant_id)}</code>"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100.0 else f"{value:,.0f}"
