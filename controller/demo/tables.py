"""The demo's tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from modelless.controller.demo.answers import ClothesAnswer, PhotoAnswer
from modelless.controller.demo.load_spec import LoadSpec
from modelless.controller.demo.page import number, percent
from modelless.controller.demo.profiles import frontier, is_trusted, short_name
from modelless.controller.demo.query_log import QueryLog, Tally
from modelless.profiler.report.profiles import Profile

_MIB = 2**20
_TOP_VARIANTS = 6
_WINDOW_S = 5.0


def plain_table(*heads: str, right: Iterable[int] = (), title: str = "") -> Table:
    """An empty table in the demo's style; the columns numbered in ``right`` hold numbers."""
    numbers = set(right)
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place in numbers else "left")
    return table


def frontier_table(variants: Sequence[Profile]) -> Table:
    """The variants worth having: those no other beats in both latency and accuracy."""
    table = plain_table(
        *("variant", "accuracy", "", "p50 ms", "p99 ms", "items/s", "MiB"), right=(1, 3, 4, 5, 6)
    )
    for member in frontier(variants):
        accuracy, one = member.variant.accuracy, member.points[0]
        table.add_row(
            short_name(member.variant.id),
            f"{accuracy.percent:.1f} %",
            f"[dim]{accuracy.provenance.value}[/]",
            f"{one.p50_s * 1e3:.3g}",
            f"{one.p99_s * 1e3:.3g}" + ("" if is_trusted(member) else "*"),
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
        if answer.status != 200:
            table.add_row(shown, answer.slo, "[red]refused[/]", f"[dim]{answer.status}[/]")
            continue
        style = "green" if answer.is_sane else "yellow"
        table.add_row(
            shown,
            answer.slo,
            f"[{style}]{answer.label}[/] {answer.score:.0%}",
            answer.short_name,
            f"{answer.accuracy:.1f} %",
            f"[dim]{answer.accuracy_provenance}[/]",
            f"{answer.predicted_ms:.1f}",
            f"{answer.observed_ms:.1f}",
        )
    return table


def refusals(answers: Sequence[PhotoAnswer]) -> dict[str, str]:
    """The server's words for each SLO that was refused, once each."""
    return {answer.slo: answer.error for answer in answers if answer.status != 200}


def clothes_table(answers: Sequence[ClothesAnswer]) -> Table:
    """Measured accuracy beside the stated one."""
    heads = ("asked for", "", "chosen", "images", "right, measured", "", "stated")
    table = plain_table(*heads, right=(3, 4, 6))
    for answer in answers:
        table.add_row(
            answer.slo,
            f"[dim]{answer.limits}[/]",
            ", ".join(used["short_name"] for used in answer.variants) or "[red]refused[/]",
            str(answer.images),
            f"{answer.measured_percent:.1f} %",
            f"[dim]{answer.measured_low:.1f} to {answer.measured_high:.1f}[/]",
            f"{answer.stated_percent:.1f} %",
        )
    return table


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
    title = f"burst {at_s:.0f}/{spec.length_s:.0f} s"
    table = plain_table("", f"last {_WINDOW_S:.0f} s", "in all", right=(1, 2), title=title)
    for column, width in zip(table.columns, (32, 14, 24), strict=True):
        column.min_width = width  # so that it stands still
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


def kinds_table(query_log: QueryLog) -> Table:
    """The outcomes of each kind of query, and of all."""
    table = plain_table(
        *("kind", "sent", "in time", "late", "refused", "errors", "p50 ms", "p99 ms"),
        right=range(1, 8),
    )
    names = [*(kind.name for kind in query_log.kinds), "[b]all[/]"]
    for name, tally in zip(names, [*query_log.by_kind, query_log.total], strict=True):
        table.add_row(
            name,
            f"{tally.sent:,}",
            percent(tally.share_in_time),
            f"{tally.late:,}",
            f"{tally.refused:,}",
            f"{tally.errors:,}",
            number(tally.latency_ms(0.5)),
            number(tally.latency_ms(0.99)),
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


def _quantiles(tally: Tally) -> str:
    return f"{number(tally.latency_ms(0.5))} / {number(tally.latency_ms(0.99))}"
