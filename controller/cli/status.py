"""``modelless status``, ``top`` and ``doctor``: what a cluster and its machine are like now."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any, Final

import typer
from typer import Option

from modelless.controller.cli.arguments import ConfigFile, Url, seconds_of
from modelless.controller.cli.screen import (
    Json,
    duration,
    emit,
    feedback_text,
    mebibytes,
    number_text,
    say,
    show_table,
)

_FRESH_S: Final = 5.0
"""The control loop tells of the cluster several times within it."""


def status(ctx: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """Show gateways and workers, their loaded variants, memory and load.

    Also shows waiting queries, how good the predictions of latency were, and the outcomes of
    queries. Exit code 1 if nothing is up.

    Example: modelless status --json
    """
    from modelless.controller.usecases.cluster import status as read_status

    found = read_status(url, home=ctx.obj)
    if as_json:
        emit(found)
    else:
        _show_status(found)


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


def doctor(ctx: typer.Context, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check machine, packages, home and settings: what would go wrong, and how to mend it.

    It looks at cores, memory, disk, open files, ports, versions, engines, the store, the home's
    rights and the clock. Nothing is started. The exit code is 1 if something would go wrong.

    Examples: modelless doctor; modelless doctor --config settings.yaml --json
    """
    from modelless.controller.usecases.doctor import document_of, examine

    checks = examine(config=config, home=ctx.obj)
    if as_json:
        emit(document_of(checks))
    else:
        show_table(
            ["", "check", "found", "to do"],
            [("ok" if c.is_well else "BAD", c.name, c.found, c.mend) for c in checks],
        )
    if not all(check.is_well for check in checks):
        raise typer.Exit(1)


def _show_status(found: Mapping[str, Any]) -> None:
    members = found.get("members", [])
    queued = sum(member["queued"] for member in members if member["role"] == "gateway")
    arrivals = sum(member["arrivals_per_s"] for member in members)
    up_for = f", up for {duration(found['up_s'])}" if "up_s" in found else ""
    typer.echo(f"{found['url']}{up_for}: {arrivals:.1f} queries/s, {queued} waiting")
    if found.get("age_s", 0.0) > _FRESH_S:
        say(f"these figures are {duration(found['age_s'])} old: no control loop tells newer ones")
    if "store_problem" in found:
        say(f"the store cannot be read: {found['store_problem']}")
    if "supervisor" in found:
        typer.echo(f"supervisor: {found['supervisor']}")
    show_table(
        ["member", "role", "device", "loaded", "loading", "MiB used / may", "process MiB",
         "waiting", "queries/s"],
        [
            (
                member["id"],
                member["role"] + (", starting" if member.get("is_starting") else ""),
                " to ".join(filter(None, [member["device_class"], member.get("resizing_to")])),
                str(len(member["loaded"])),
                str(len(member["loading"])),
                f"{mebibytes(member['memory_bytes'])} / {mebibytes(member['memory_budget_bytes'])}",
                mebibytes(member["resident_bytes"]),
                str(member["queued"]),
                f"{member['arrivals_per_s']:.1f}",
            )
            for member in members
        ],
        right=range(3, 9),
    )  # fmt: skip
    for pool in found.get("pools", []):
        typer.echo(
            f"pool {pool['pool']}: {pool['asked']} workers asked for, "
            f"of {pool['min_workers']} to {pool['max_workers']}"
        )
    served = found.get("served_by_variant", {})
    holders = Counter(variant for member in members for variant in member["loaded"])
    if names := sorted({*served, *holders}):
        show_table(
            ["variant", "loaded in", "queries served"],
            [(name, str(holders[name]), str(served.get(name, 0))) for name in names],
            right=[1, 2],
            whole=0,
        )
    if predictions := found.get("predictions", []):
        show_table(
            ["device", "outcomes", "within p90", "within p99", "median error", "ignored"],
            [
                (
                    row["device_class"],
                    str(row["outcomes"]),
                    _percent(row["within_p90_percent"]),
                    _percent(row["within_p99_percent"]),
                    _percent(row["median_error_percent"]),
                    str(row["ignored"]),
                )
                for row in predictions
            ],
            title="predictions",
            caption="lately; the goals are 90 % within p90 and 99 % within p99; ignored is what "
            "cannot be true by the profile",
            right=range(1, 6),
        )
    if feedback := found.get("feedback", []):
        show_table(
            ["variant", "stated from", "by feedback", "by tenant"],
            [
                (
                    row["variant"],
                    _percent(row["stated_low"]),
                    feedback_text(row),
                    ", ".join(
                        f"{name or 'no key'}: {_percent(each['accuracy'])} of {each['items']:g}"
                        for name, each in row["tenants"].items()
                    ),
                )
                for row in feedback
            ],
            title="accuracy by feedback",
            whole=0,
        )
    if outcomes := found.get("outcomes", {}):
        told = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        typer.echo(f"queries: {told}")
    for member in members:
        for variant, reason in member.get("failed_loads", {}).items():
            say(f"{member['id']} could not load {variant}: {reason}")
        if member.get("quarantine"):
            say(f"{member['id']} is in quarantine: {member['quarantine']}")
    say_not_served(found.get("not_served", {}))
    for told in found.get("advice", []):
        often = ", ".join(
            f"{each['would']} where it did {each['done']} ({each['count']})"
            for each in told["advice"][:3]
            if each["would"] != each["done"]
        )
        say(
            f"advisory {told['seam']}: would have done the same {told['agreed']} times of "
            f"{told['asked']}" + (f"; else {often}" if often else "")
        )
    drifted = found.get("drifted", [])
    for row in drifted:
        where = f"{row['variant']} on {row['device_class']}"
        say(f"{where} takes {row['factor']:.2f} times what was measured")
    if drifted:
        say("to measure just that again: modelless profile --drifted")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def say_not_served(not_served: Mapping[str, str]) -> None:
    """Say on stderr, for each name that is not served, why."""
    for reason in not_served.values():
        say(f"not served: {reason}")
