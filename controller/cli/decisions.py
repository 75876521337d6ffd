"""``modelless history``, ``why``, ``receipts`` and ``whatif``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import moment_of, policy_of, seconds_of
from modelless.controller.cli.screen import (
    Json,
    clock_text,
    emit,
    number_text,
    say,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from modelless.controller.history.entries import Told
    from modelless.controller.usecases.simulation.whatif import Figure, WhatIf


_AROUND: Final = "60s"
_LATELY: Final = "1h"
_SHOWN: Final = 12


def history(
    ctx: typer.Context,
    since: Annotated[
        str | None, Option(metavar="TIME", help="How far back: 90s, 10m, 2h; default: 1h.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        Option(help="load, loaded, load-failed, unload, scale, worker-up, ...; repeatable."),
    ] = None,
    task: Annotated[
        str | None, Option("--task", "-t", help="Task, task/model or task/model/variant.")
    ] = None,
    at: Annotated[
        str | None,
        Option(metavar="TIME", help="Up to then, 18:30:05 or a date and time; the last 60s."),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on as more happens, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the control plane's decisions and their results, newest last.

    Reads the store, so it works whether anything is up or not. --at also lists what was loaded at
    that time. --follow --json prints one JSON document a line.

    Examples: modelless history --since 10m --kind unload; modelless history --task imagenet --at
    18:30:05; modelless history --follow
    """
    if follow and at is not None:
        raise InvalidInputError.of("follow", at, "--follow or --at, not both")
    from modelless.controller.usecases import decisions

    now = datetime.now(UTC)
    until = moment_of("at", at, now) if at is not None else None
    back_s = seconds_of("since", since or (_LATELY if at is None else _AROUND))
    kinds, home = tuple(kind or ()), ctx.obj
    if follow:
        try:
            for told in decisions.follow_history(back_s=back_s, kinds=kinds, task=task, home=home):
                typer.echo(json.dumps(told.document()) if as_json else _line(told))
        except KeyboardInterrupt:
            return
    entries, loaded = decisions.read_history(
        back_s=back_s, until=until, kinds=kinds, task=task, home=home
    )
    if as_json:
        document: dict[str, object] = {"entries": [told.document() for told in entries]}
        emit(document if loaded is None else {**document, "loaded": loaded})
    else:
        if entries:
            _show_entries(entries)
        else:
            typer.echo(f"nothing in the {back_s:g} s up to {clock_text(until or now, day=True)}")
        for worker, variants in (loaded or {}).items():
            typer.echo(f"loaded in {worker}: {', '.join(variants) or 'nothing'}")
    if len(entries) == decisions.MOST_ENTRIES:
        say(
            f"only the newest {decisions.MOST_ENTRIES} are shown; --since, --at, --kind or --task "
            "narrow it"
        )


def why(
    ctx: typer.Context,
    receipt_id: Annotated[
        str | None,
        Argument(
            metavar="RECEIPT",
            help="A reply's receipt_id, also of a refusal; default: list the last that were kept.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="List the last that arrived up to then: 18:30:05, or a date and time.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain why a query got its answer, or why it was refused.

    Shows its limits, the candidates, the choice with its reason, the result, and what the control
    plane loaded and evicted around that time. Asks a running gateway first, then reads the
    receipts on disk: see history.receipts_per_s in the settings.

    Examples: modelless why k2j5h8-17; modelless why; modelless why --at 18:30:05
    """
    from modelless.controller.usecases import decisions

    home = ctx.obj
    if at is not None and receipt_id is not None:
        raise InvalidInputError.of("at", at, "a receipt or --at, not both")
    if receipt_id is None:
        until = moment_of("at", at, datetime.now(UTC)) if at is not None else None
        _list(decisions.list_receipts(until=until, home=home), as_json=as_json)
        return
    with show_progress() as progress:
        receipt, entries, absent = decisions.why(receipt_id, home=home, on_progress=progress)
    if as_json:
        before = [told.document() for told in entries]
        emit({**receipt, "not_ready": list(absent), "before": before})
        return
    from modelless.controller.history.why import entry_lines, words

    arrived = datetime.fromisoformat(receipt["arrived_at"])
    typer.echo(f"query {receipt_id}, {clock_text(arrived, day=True)}")
    for line in words(receipt):
        typer.echo(f"  {line}")
    if receipt.get("candidates"):
        _show_candidates(receipt["candidates"])
    for line in absent:
        typer.echo(line)
    if entries:
        typer.echo("what the control plane had done:")
        if len(entries) > _SHOWN:
            when = clock_text(arrived, day=True).replace(" ", "T")
            more = len(entries) - _SHOWN
            typer.echo(f"  {more} entries more: modelless history --at {when}")
        for line in entry_lines(entries[-_SHOWN:], arrived):
            typer.echo(f"  {line}")


def receipts(
    ctx: typer.Context,
    task: Annotated[
        str | None, Option("--task", "-t", help="Task, task/model or task/model/variant.")
    ] = None,
    tenant: Annotated[str | None, Option(help="Of this tenant.")] = None,
    outcome: Annotated[
        list[str] | None, Option(help="served, served-late, refused or cancelled; repeatable.")
    ] = None,
    since: Annotated[
        str, Option(metavar="TIME", help="How far back from --until: 90s, 10m, 2h.")
    ] = _LATELY,
    until: Annotated[
        str | None, Option(metavar="TIME", help="18:30:05, or a date and time; default: now.")
    ] = None,
    most: Annotated[int, Option(min=1, help="The newest so many.")] = 1000,
    output: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write them to FILE.parquet, with all their candidates."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the receipts of queries that were kept, by tenant, task, outcome and time.

    Reads the files of this machine's gateways, whether anything is up or not; a sample of the
    queries is kept: see history.receipts_per_s in the settings. Of one of them 'modelless why' says
    more. --output exports them as Parquet, which needs 'pip install modelless[parquet]'.

    Examples: modelless receipts --task imagenet --outcome refused --since 10m; modelless receipts
    --tenant shop --json; modelless receipts --since 24h --most 1000000 --output receipts.parquet
    """
    from modelless.controller.usecases import decisions

    if output is not None:
        decisions.check_receipts_file(output)
    end = datetime.now(UTC)
    if until is not None:
        end = moment_of("until", until, end)
    begin = end - timedelta(seconds=seconds_of("since", since))
    found = decisions.list_receipts(
        since=begin, until=end, tenant=tenant, task=task, outcomes=outcome or (), most=most,
        home=ctx.obj,
    )  # fmt: skip
    if output is None:
        _list(found, as_json=as_json)
        return
    decisions.export_receipts(found, output)
    if as_json:
        emit({"file": str(output), "receipts": len(found)})
    else:
        typer.echo(f"{len(found)} receipts in {output}")


def _show_entries(entries: Sequence[Told]) -> None:
    from modelless.controller.history.why import entry_text

    show_table(
        ["when", "what", "which", "why"],
        [
            (clock_text(told.at), told.entry.kind, told.entry.subject, entry_text(told.entry))
            for told in entries
        ],
        title=f"from {clock_text(entries[0].at, day=True)}",
        whole=0,
    )


def _line(told: Told) -> str:
    from modelless.controller.history.why import entry_text

    entry = told.entry
    return f"{clock_text(told.at)}  {entry.kind:<12} {entry.subject}: {entry_text(entry)}"


def _show_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    show_table(
        ["candidate", "device", "accuracy", "p50 ms", "p99 ms", "wait ms", "USD", "it"],
        [
            (
                row["variant"],
                row["device_class"],
                f"{row['accuracy']:.1f}",
                number_text(row["p50_ms"]),
                number_text(row["p99_ms"]),
                number_text(row["wait_ms"]),
                number_text(row["cost_usd"], "{:.3g}"),
                "was chosen" if row["chosen"] else ", ".join(row["misses"]) or "would do",
            )
            for row in candidates
        ],
        title="what there was to choose from, as it was estimated then",
        right=range(2, 7),
        whole=0,
    )


def _list(receipts: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        emit({"receipts": list(receipts)})
        return
    if not receipts:
        typer.echo("no receipts were kept yet, or none so old")
        return
    from modelless.controller.history.why import reason_text

    show_table(
        ["receipt", "asked at", "for", "outcome", "variant", "ms", "why"],
        [
            (
                row["receipt_id"],
                clock_text(datetime.fromisoformat(row["arrived_at"])),
                row["scope"],
                row["outcome"],
                row["variant"] or "",
                number_text(row["observed_latency_ms"]),
                reason_text(row["reason"]),
            )
            for row in receipts
        ],
        right=[5],
        whole=0,
    )


def whatif(
    ctx: typer.Context,
    policy: Annotated[
        list[str], Option(help="Selection policy, or '{policy: NAME, SETTING: ...}'; repeatable.")
    ],
    receipts: Annotated[
        Path | None,
        Option(metavar="FILE", help="A FILE.parquet of receipts; default: this machine's."),
    ] = None,
    world: Annotated[
        Path | None,
        Option(
            metavar="WORLD.yaml",
            help="The system that served: simulate what the policy would change for others, too.",
        ),
    ] = None,
    runs: Annotated[
        int, Option(min=2, max=1000, help="Simulated runs of the world, of each policy.")
    ] = 5,
    since: Annotated[
        str, Option(metavar="TIME", help="Of this machine's, how far back: 90s, 10m, 2h.")
    ] = "1h",
    as_json: Json = False,
) -> None:
    """Estimate from receipts how another selection policy would have done.

    The receipts must be of a time with exploration: see policies.explore in the settings. They
    tell how each query would have done if the other policy had chosen for it alone. With --world,
    the simulator adds what such a choice for every query does to the others; 'modelless replay
    --as-world' writes the world of a recording.

    Examples: modelless whatif --policy cheapest-feasible --since 2h; modelless whatif --policy
    infaas --policy clipper --receipts day.parquet --world again.yaml --json
    """
    from modelless.controller.usecases.simulation.whatif import whatif as estimate

    begin = datetime.now(UTC) - timedelta(seconds=seconds_of("since", since))
    with show_progress() as progress:
        found = estimate(
            *map(policy_of, policy), receipts=receipts, world=world, runs=runs, since=begin,
            home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit({"policies": [each.document() for each in found]})
        return
    for each in found:
        _show(each)
    if world is None:
        say(
            "note: as if the policy had chosen for one query alone, and all else had been as it "
            "was; --world adds what its choices do to each other"
        )


def _show(found: WhatIf) -> None:
    kinds = {
        "propensity": found.propensity,
        "doubly robust": found.doubly_robust,
        **({} if found.in_full is None else {"in full": found.in_full}),
    }
    rows = []
    for name, was in found.observed.items():
        scale = 1e6 if name == "cost_usd" else 1.0
        label = "cost, micro-USD" if name == "cost_usd" else name
        cells = [_cell(figures[name], scale) for figures in kinds.values()]
        rows.append((label, f"{was * scale:.4g}", *cells))
    deferred = f"; {found.defers:.0%} deferred" if found.defers else ""
    show_table(
        ["per query", "as it was", *kinds],
        rows,
        title=f"{found.policy}: {found.matches} of {found.queries} choices as in the receipts, of "
        f"which {found.explored} were drawn{deferred}",
        right=range(1, len(kinds) + 2),
        whole=0,
    )


def _cell(figure: Figure, scale: float) -> str:
    value, low, high = (
        "-" if each is None else f"{each * scale:.4g}"
        for each in (figure.value, figure.low, figure.high)
    )
    return f"{value} ({low} to {high})"
