"""``modelless history``: what was loaded, evicted and scaled, when, why and at what cost."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import seconds_of
from modelless.controller.cli.moments import clock_text, moment_of
from modelless.controller.cli.screen import Json, emit, home_of, say, show_table

if TYPE_CHECKING:
    from modelless.controller.history.entries import Told, Wanted
    from modelless.variants.store import Store

EPILOG = (
    "Examples: modelless history --since 10m --kind unload; "
    "modelless history --task imagenet --at 18:30:05; modelless history --follow"
)
_AROUND: Final = "60s"
_LATELY: Final = "1h"
_MOST: Final = 1000
_POLL_S: Final = 0.5


def history(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="How far back: 90s, 10m, 2h; default: 1h."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", help="load, loaded, load-failed, unload, scale, worker-up, ...; repeatable."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="Task, task/model or task/model/variant.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Up to then, 18:30:05 or a date and time; the last 60s."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more happens, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the control plane's decisions and their results, newest last.

    Reads the store, so it works whether anything is up or not. --at also lists what was loaded at
    that time. --follow --json prints one JSON document a line.
    """
    from modelless.controller.history.entries import Wanted, loaded_at, read_entries
    from modelless.controller.history.kinds import check_kinds
    from modelless.variants.registry.registry import open_registry

    if follow and at is not None:
        raise InvalidInputError.of("follow", at, "--follow or --at, not both")
    now = datetime.now(UTC)
    until = moment_of("at", at, now) if at is not None else None
    back_s = seconds_of("since", since or (_LATELY if at is None else _AROUND))
    wanted = Wanted(
        (until or now) - timedelta(seconds=back_s), until, tuple(kind or ()), task, None, _MOST
    )
    with closing(open_registry(home_of(ctx))) as registry:
        check_kinds(registry.store, wanted.kinds)
        if task is not None and not read_entries(registry.store, Wanted(task=task, most=1)):
            registry.resolve(task)  # of what is not registered there may be entries all the same
        entries = read_entries(registry.store, wanted)
        loaded = loaded_at(registry.store, until) if until is not None else None
        if follow:
            _follow(registry.store, wanted, entries, as_json=as_json)
            return
    if as_json:
        document: dict[str, object] = {"entries": [told.document() for told in entries]}
        emit(document if loaded is None else {**document, "loaded": loaded})
    elif entries:
        _show(entries)
    else:
        typer.echo(f"nothing in the {back_s:g} s up to {clock_text(until or now, day=True)}")
    if loaded is not None and not as_json:
        for worker, variants in loaded.items():
            typer.echo(f"loaded in {worker}: {', '.join(variants) or 'nothing'}")
    if len(entries) == _MOST:
        say(f"only the newest {_MOST} are shown; --since, --at, --kind or --task narrow it")


def _show(entries: Sequence[Told]) -> None:
    from modelless.controller.history.words import entry_text

    show_table(
        ["when", "what", "which", "why"],
        [
            (clock_text(told.at), told.entry.kind, told.entry.subject, entry_text(told.entry))
            for told in entries
        ],
        title=f"from {clock_text(entries[0].at, day=True)}",
        whole=0,
    )


def _follow(store: Store, wanted: Wanted, entries: Sequence[Told], *, as_json: bool) -> None:
    from modelless.controller.history.entries import read_entries
    from modelless.controller.history.words import entry_text

    last = 0
    try:
        while True:
            for told in entries:
                entry = told.entry
                last = max(last, told.number)
                typer.echo(
                    json.dumps(told.document())
                    if as_json
                    else f"{clock_text(told.at)}  {entry.kind:<12} {entry.subject}: "
                    f"{entry_text(entry)}"
                )
            time.sleep(_POLL_S)
            entries = read_entries(store, replace(wanted, after=last))
    except KeyboardInterrupt:
        return
