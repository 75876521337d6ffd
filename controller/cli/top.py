"""``modelless top``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any

import typer
from typer import Option

from modelless.controller.cli.arguments import Url, seconds_of
from modelless.controller.cli.screen import Json, emit, mebibytes, number_text, show_table


def top(
    ctx: typer.Context,
    url: Url = None,
    interval: Annotated[
        str, Option(metavar="TIME", help="Time between two looks, e.g. 2s; at least 1s.")
    ] = "2s",
    once: Annotated[bool, Option("--once", help="Show one interval, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the cluster does now: rate, attainment, accuracy, cost, workers and variants.

    The view is renewed until Ctrl-C. With --json it prints a line of JSON for each interval.

    Examples: modelless top; modelless top --once --json; modelless top --interval 5s
    """
    from rich.console import Console

    from modelless.controller.usecases.top import watch

    interval_s = max(1.0, seconds_of("--interval", interval))
    with closing(watch(url, interval_s=interval_s, home=ctx.obj)) as looks:  # type: ignore[type-var]
        for figures in looks:
            if as_json:
                emit(figures) if once else typer.echo(json.dumps(figures))
            else:
                if not once and sys.stdout.isatty():
                    Console().clear()
                _show(figures)
            if once:
                return


def _show(figures: Mapping[str, Any]) -> None:
    accuracy = number_text(figures["mean_accuracy_percent"], "{:.1f} %")
    cost = number_text(figures["cost_usd_per_hour"], "{:.3f} USD/h")
    typer.echo(
        f"{figures['url']}: {figures['queries_per_s']:.1f} queries/s, {figures['queued']} waiting, "
        f"mean accuracy {accuracy}, {cost}"
    )
    if tasks := figures["tasks"]:
        show_table(
            ["task", "queries/s", "attainment", "in time", "late", "refused"],
            [
                (
                    name,
                    f"{row['queries_per_s']:.1f}",
                    number_text(row["attainment_percent"], "{:.1f} %"),
                    *(str(row[each]) for each in ("served", "served_late", "refused")),
                )
                for name, row in tasks.items()
            ],
            right=range(1, 6),
        )
    show_table(
        ["worker", "role", "device", "loaded", "MiB used / may", "waiting"],
        [
            (
                row["id"],
                row["role"],
                row["device_class"],
                str(len(row["loaded"])),
                f"{mebibytes(row['memory_bytes'])} / {mebibytes(row['memory_budget_bytes'])}",
                str(row["queued"]),
            )
            for row in figures["workers"]
        ],
        right=range(3, 6),
    )
    if variants := figures["variants"]:
        show_table(
            ["variant", "loaded in", "queries/s", "accuracy"],
            [
                (
                    name,
                    str(row["loaded_in"]),
                    f"{row['queries_per_s']:.1f}",
                    number_text(row["accuracy_percent"], "{:.1f} %"),
                )
                for name, row in variants.items()
            ],
            right=range(1, 4),
            whole=0,
        )
