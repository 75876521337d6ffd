"""The demo's tables, for the terminal and for the page; and the burst as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from modelless.controller.demo.load import LoadSpec
from modelless.controller.demo.profiles import short_name
from modelless.controller.demo.query_log import QueryLog, Tally

Rows = Iterable[Mapping[str, Any]]
"""Entries of the report."""
_MIB = 2**20
_TOP_VARIANTS = 6
_WINDOW_S = 5.0


class Shown(NamedTuple):
    """A table: its heads, the cells of its rows, and which columns hold numbers.

    A row may be short: nothing more is known.
    """

    heads: Sequence[str]
    rows: list[Sequence[str]]
    right: Sequence[int] = ()


def variants_table(variants: Rows) -> Shown:
    """Variants as measured, task by task, the most accurate first."""
    heads = ("variant", "accuracy", "p50 ms", "p99 ms", "items/s", "MiB", "load ms")
    rows = [
        (
            each["short_name"],
            _accuracy(each),
            f"{each['p50_ms']:.3g}",
            f"{each['p99_ms']:.3g}" + ("" if each["is_trusted"] else " *"),
            f"{each['throughput_per_s']:,.0f}",
            f"{each['memory_bytes'] / _MIB:.1f}",
            f"{each['load_s'] * 1e3:.0f}",
        )
        for each in sorted(variants, key=lambda each: (each["task"], -each["accuracy"]))
    ]
    return Shown(heads, [*rows], range(2, 7))


def answers_table(answers: Rows) -> Shown:
    """Photo x limits: what was answered, and by what."""
    heads = ("photo", "limits", "label", "variant", "accuracy", "predicted ms", "observed ms")
    rows: list[Sequence[str]] = []
    for each in answers:
        asked = each["photo"], each["slo"]
        if each["status"] != 200:
            rows.append((*asked, f"refused, {each['status']}"))
            continue
        label = f"{each['label']} {each['score']:.0%}{'' if each['is_sane'] else ' ?'}"
        took = f"{each['predicted_ms']:.1f}", f"{each['observed_ms']:.1f}"
        rows.append((*asked, label, each["short_name"], _accuracy(each), *took))
    return Shown(heads, rows, (5, 6))


def limits_table(photos: Mapping[str, Any]) -> Shown:
    """The choices under each limit, over all photos; milliseconds are medians."""
    heads = (
        *("asked for", "limits", "chosen", "least accuracy", "labels sane"),
        *("predicted ms", "observed ms"),
    )
    rows: list[Sequence[str]] = []
    for slo in photos["slos"]:
        answers = [each for each in photos["answers"] if each["slo"] == slo["name"]]
        answered = [each for each in answers if each["status"] == 200]
        asked = slo["name"], slo["limits"]
        if not answered:
            rows.append((*asked, f"refused: {answers[0]['error']}"))
            continue
        chosen = ", ".join(dict.fromkeys(each["short_name"] for each in answered))
        refused = len(answers) - len(answered)
        rows.append(
            (
                *asked,
                chosen + (f"; {refused} refused" if refused else ""),
                _accuracy(min(answered, key=lambda each: each["accuracy"])),
                f"{sum(each['is_sane'] for each in answered)}/{len(answered)}",
                f"{median_high(each['predicted_ms'] for each in answered):.1f}",
                f"{median_high(each['observed_ms'] for each in answered):.1f}",
            )
        )
    return Shown(heads, rows, (5, 6))


def clothes_table(clothes: Rows) -> Shown:
    """Measured accuracy beside the stated one."""
    heads = ("asked for", "limits", "chosen", "images", "right, measured here", "stated")
    rows = [
        (
            each["slo"],
            each["limits"],
            ", ".join(used["short_name"] for used in each["variants"]) or "refused",
            f"{each['images']:,}",
            f"{each['measured_percent']:.1f} % "
            f"({each['measured_low']:.1f} to {each['measured_high']:.1f})",
            f"{each['stated_percent']:.1f} %",
        )
        for each in clothes
    ]
    return Shown(heads, [*rows], (3, 4, 5))


def kinds_table(burst: Mapping[str, Any]) -> Shown:
    """The outcomes of each kind of query, and of all."""
    heads = (
        *("asked for", "task", "limits", "sent", "in time", "late", "refused", "errors"),
        *("accuracy", "p50 / p99 ms"),
    )
    everything = {**burst["total"], "name": "all", "task": "", "limits": {}, "mean_accuracy": None}
    rows = [
        (
            kind["name"],
            kind["task"],
            ", ".join(f"{name} {value:.6g}" for name, value in kind["limits"].items()),
            f"{kind['sent']:,}",
            percent(kind["share_in_time"]),
            f"{kind['answered'] - kind['in_time']:,}",
            f"{kind['refused']:,}",
            f"{kind['errors']:,}",
            number(kind["mean_accuracy"], unit=" %"),
            f"{number(kind['p50_ms'])} / {number(kind['p99_ms'])}",
        )
        for kind in [*burst["kinds"], everything]
    ]
    return Shown(heads, [*rows], range(3, 10))


def refusals(answers: Rows) -> dict[str, str]:
    """The server's words for each SLO that was refused, once each."""
    return {each["slo"]: each["error"] for each in answers if each["status"] != 200}


def live_table(
    query_log: QueryLog, at_s: float, spec: LoadSpec, main_task: str, status: Any
) -> Table:
    """The burst as it stands.

    Args:
        at_s: seconds from the beginning.
        status: of ``/modelless/status``; None if unknown.
    """
    recent = query_log.recent(at_s, _WINDOW_S)
    lately = query_log.recent(at_s, _WINDOW_S, main_task)
    total = query_log.total
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"burst {at_s:.0f}/{spec.length_s:.0f} s",
        title_justify="left",
        pad_edge=False,
    )
    for head, width in (("", 32), (f"last {_WINDOW_S:.0f} s", 14), ("in all", 24)):
        table.add_column(head, min_width=width, justify="right" if head else "left")
    table.add_row(
        f"queries/s [dim](planned {spec.offered_per_s(at_s - 0.5):.0f})[/]",
        f"{recent.sent / max(min(at_s, _WINDOW_S), 1.0):.0f}",
        f"{total.sent / max(at_s, 1.0):.0f}",
    )
    table.add_row("answered in time", percent(recent.share_in_time), percent(total.share_in_time))
    for name in ("late", "refused", "errors"):
        table.add_row(name, f"{getattr(recent, name)}", f"{getattr(total, name):,}")
    table.add_row(
        f"mean accuracy, {main_task}",
        number(lately.mean_accuracy, 2, " %"),
        number(query_log.by_task[main_task].mean_accuracy, 2, " %"),
    )
    table.add_row("p50 / p99 ms", _quantiles(recent), _quantiles(total))
    for name, answers in lately.by_variant.most_common(_TOP_VARIANTS):
        share = answers / lately.answered
        bar = Text("▌" * round(24 * share), style="cyan", justify="left")
        table.add_row(f"  {short_name(name)}", f"{share:.0%}", bar)
    table.add_row("variants in use", str(len(recent.by_variant)), str(len(total.by_variant)))
    if status is not None:
        queued, memory_bytes = queue_and_memory(status)
        table.add_row("waiting, memory", str(queued), f"{memory_bytes / _MIB:,.0f} MiB")
    return table


def live_line(query_log: QueryLog, at_s: float, seconds: float, status: Any) -> str:
    """The same in a line, where there is no terminal to draw on."""
    recent = query_log.recent(at_s, 10.0)
    words = [
        f"burst {at_s:3.0f}/{seconds:.0f} s",
        f"{recent.sent / max(1.0, min(at_s, 10.0)):.0f} queries/s",
        f"{percent(recent.share_in_time)} in time",
        f"{recent.refused} refused",
        f"{len(recent.by_variant)} variants",
    ]
    if status is not None:
        queued, memory_bytes = queue_and_memory(status)
        words += [f"{queued} waiting", f"{memory_bytes / _MIB:,.0f} MiB"]
    return ", ".join(words)


def queue_and_memory(status: Mapping[str, Any]) -> tuple[int, int]:
    """Queries waiting, at gateways, and resident bytes, of all, by ``/modelless/status``."""
    members = status.get("members", [])
    gateways = [member for member in members if member.get("role", "gateway") == "gateway"]
    return (
        sum(int(member.get("queued", 0)) for member in gateways),
        sum(int(member.get("resident_bytes", 0)) for member in members),
    )


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent; a dash for None. Never rounded up to a whole that it is not."""
    if share is None:
        return "–"
    text = f"{share:.{digits}%}"
    return f"{share:.3%}" if text.startswith("100") and share < 1.0 else text


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A number with its unit; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _accuracy(entry: Mapping[str, Any]) -> str:
    return f"{entry['accuracy']:.1f} % {entry['accuracy_provenance']}"


def _quantiles(tally: Tally) -> str:
    return f"{number(tally.latency_ms(0.5))} / {number(tally.latency_ms(0.99))}"
