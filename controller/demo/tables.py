"""The demo's tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from modelless.controller.demo.answers import ClothesAnswer, PhotoAnswer
from modelless.controller.demo.page import percent
from modelless.controller.demo.profiles import Profiled, frontier, short_name
from modelless.controller.demo.query_log import Outcome, QueryLog, Tally

_MIB = 2**20
_TOP_VARIANTS = 6


def plain_table(*heads: str, right: Iterable[int] = (), title: str = "") -> Table:
    """An empty table in the demo's style; the columns numbered in ``right`` hold numbers."""
    numbers = set(right)
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place in numbers else "left")
    return table


def frontier_table(variants: Sequence[Profiled]) -> Table:
    """The variants worth having: those no other beats in both latency and accuracy."""
    table = plain_table(
        *("variant", "accuracy", "", "p50 ms", "p99 ms", "items/s", "MiB"), right=(1, 3, 4, 5, 6)
    )
    for member in frontier(variants):
        accuracy, one = member.variant.accuracy, member.one
        table.add_row(
            member.short_name,
            f"{accuracy.percent:.1f} %",
            f"[dim]{accuracy.provenance.value}[/]",
            f"{one.p50_s * 1e3:.3g}",
            f"{one.p99_s * 1e3:.3g}" + ("" if member.is_trusted else "*"),
            f"{one.throughput_per_s:,.0f}",
            f"{one.memory_bytes / _MIB:.1f}",
        )
    return table


def photo_table(answers: Sequence[PhotoAnswer]) -> Table:
    """Photo x SLO: label, variant, accuracy and its provenance, predicted and observed ms."""
    heads = ("photo", "limits", "label", "variant", "accuracy", "", "predicted", "observed ms")
    table = plain_table(*heads, right=(4, 6, 7))
    before = ""
    for answer in answers:
        if answer.photo != before and before:
            table.add_section()
        shown, before = ("" if answer.photo == before else answer.photo), answer.photo
        if not answer.reply.is_answer:
            table.add_row(
                shown, answer.slo.name, "[red]refused[/]", f"[dim]{answer.reply.status}[/]"
            )
            continue
        said = answer.reply.parameters
        style = "green" if answer.is_sane else "yellow"
        table.add_row(
            shown,
            answer.slo.name,
            f"[{style}]{answer.label}[/] {answer.score:.0%}",
            short_name(answer.variant),
            f"{said['accuracy']:.1f} %",
            f"[dim]{said['accuracy_provenance']}[/]",
            f"{said['predicted_latency_ms']:.1f}",
            f"{said['observed_latency_ms']:.1f}",
        )
    return table


def refusals(answers: Sequence[PhotoAnswer]) -> dict[str, str]:
    """The server's words for each SLO that was refused, once each."""
    return {a.slo.name: a.reply.error for a in answers if not a.reply.is_answer}


def clothes_table(answers: Sequence[ClothesAnswer]) -> Table:
    """Measured accuracy beside the stated one."""
    heads = ("asked for", "", "chosen", "images", "right, measured", "", "stated")
    table = plain_table(*heads, right=(3, 4, 6))
    for answer in answers:
        table.add_row(
            answer.slo.name,
            f"[dim]{answer.slo.limits}[/]",
            ", ".join(map(short_name, answer.by_variant)) or "[red]refused[/]",
            str(answer.images),
            f"{answer.measured_percent:.1f} %",
            f"[dim]{answer.low_percent:.1f} to {answer.high_percent:.1f}[/]",
            f"{answer.stated_percent:.1f} %",
        )
    return table


def live_table(
    query_log: QueryLog, at_s: float, seconds: float, offered: float, main_task: str, status: Any
) -> Table:
    """The burst as it stands.

    Args:
        query_log: what has ended so far.
        at_s, seconds: how far it is, and how long it will be.
        offered: planned mean rate now, queries a second.
        main_task: whose mean accuracy is shown.
        status: of ``/modelless/status``; None if unknown.
    """
    window_s = 5.0
    recent = query_log.recent(at_s, window_s)
    lately = query_log.recent(at_s, window_s, main_task)
    total = query_log.tally()
    title = f"burst {at_s:.0f}/{seconds:.0f} s"
    table = plain_table("", f"last {window_s:.0f} s", "in all", right=(1, 2), title=title)
    for column, width in zip(table.columns, (32, 14, 24), strict=True):
        column.min_width = width  # so that it stands still
    length_s = max(min(at_s, window_s), 1.0)
    table.add_row(
        f"queries/s [dim](planned {offered:.0f})[/]",
        f"{recent.sent / length_s:.0f}",
        f"{total.sent / max(at_s, 1.0):.0f}",
    )
    table.add_row("answered in time", percent(recent.share_in_time), percent(total.share_in_time))
    table.add_row(
        "late", f"{recent.answered - recent.in_time}", f"{total.answered - total.in_time:,}"
    )
    table.add_row("refused", f"{recent.refused}", f"{total.refused:,}")
    table.add_row("errors", f"{recent.errors}", f"{total.errors:,}")
    table.add_row(
        f"mean accuracy, {main_task}",
        _percent(lately.mean_accuracy),
        _percent(query_log.of_task(main_task).mean_accuracy),
    )
    table.add_row("p50 / p99 ms", _quantiles(recent), _quantiles(total))
    for name in list(lately.by_variant)[:_TOP_VARIANTS]:
        share = lately.by_variant[name] / max(1, lately.answered)
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


def kinds_table(query_log: QueryLog) -> Table:
    """The outcomes of each kind of query, and of all."""
    table = plain_table(
        *("kind", "sent", "in time", "late", "refused", "errors", "p50 ms", "p99 ms"),
        right=range(1, 8),
    )
    rows = [(kind.name, tally) for kind, tally in query_log.of_kinds()]
    for name, tally in [*rows, ("[b]all[/]", query_log.tally())]:
        table.add_row(
            name,
            f"{tally.sent:,}",
            percent(tally.share_in_time),
            f"{tally.outcomes.get(Outcome.LATE, 0):,}",
            f"{tally.refused:,}",
            f"{tally.errors:,}",
            _one(tally.p50_ms),
            _one(tally.p99_ms),
        )
    return table


def queue_and_memory(status: Mapping[str, Any]) -> tuple[int, int]:
    """Queries waiting, at gateways, and resident bytes, of all, by ``/modelless/status``."""
    members = status.get("members", [])
    gateways = [member for member in members if member.get("role", "gateway") == "gateway"]
    return (
        sum(int(member.get("queued", 0)) for member in gateways),
        sum(int(member.get("resident_bytes", 0)) for member in members),
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _one(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _quantiles(tally: Tally) -> str:
    return f"{_one(tally.p50_ms)} / {_one(tally.p99_ms)}"
