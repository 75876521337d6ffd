"""``modelless upgrade``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.controller.cli.arguments import ConfigFile
from modelless.controller.cli.screen import Json, duration, emit, home_of, say

if TYPE_CHECKING:
    from modelless.controller.live.cluster.upgrade import Upgraded

EPILOG = "Examples: modelless upgrade; modelless upgrade --config settings.yaml"


def upgrade(
    ctx: typer.Context,
    config: ConfigFile = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Replace processes that run this release already, too."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Move the running cluster to the installed release while it serves.

    Replaces the control loop, the workers and the gateways one after the other. Each new process
    loads what the old one holds before the old one is drained; no query is lost. --config changes
    the settings too, except those that HAProxy and Ray Serve were started with. Processes that run
    the release already are left alone, so the command may be interrupted and run again.
    """
    from modelless.common.errors import ModellessError
    from modelless.controller.config import load_settings
    from modelless.controller.live.cluster.upgrade import upgrade as carry_out

    home = home_of(ctx)
    asked = load_settings(config) if config is not None else None
    has_begun = False

    def on_stage(stage: str) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            _note(home, "began", {"restart": restart})
        say(f"{stage} ...")

    try:
        done = carry_out(home, asked, on_stage, restart=restart)
    except ModellessError as error:
        if has_begun:
            _note(home, "failed", {"error": str(error)})
        raise
    except KeyboardInterrupt:
        say("what was begun goes on in the cluster; 'modelless upgrade' sees the rest through")
        raise
    if has_begun:
        _note(home, "done", asdict(done))
    if as_json:
        emit(asdict(done))
    else:
        typer.echo(_told(done))


def _told(done: Upgraded) -> str:
    if not done.replaced:
        return f"{done.url} runs {done.release} already"
    before = ", ".join(name for name in done.before if name != done.release)
    return (
        f"{done.url} runs {done.release}{f', before {before}' if before else ''}: "
        f"{done.replaced} gateways and workers replaced in {duration(done.took_s)}"
    )


def _note(home: Path, reason: str, details: dict[str, Any]) -> None:
    """An entry in the history; it is not worth failing for."""
    from contextlib import closing

    from modelless.common.errors import ModellessError
    from modelless.controller.config import HistorySettings
    from modelless.controller.control.messages import Entry, EntryKind
    from modelless.controller.history.entries import write_entries
    from modelless.variants.registry.registry import open_registry

    entry = Entry(EntryKind.UPGRADE, str(details.get("release", "modelless")), reason, details)
    try:
        with closing(open_registry(home)) as registry:
            write_entries(
                registry.store, [(datetime.now(UTC), entry)], HistorySettings().max_entries
            )
    except ModellessError as error:
        say(f"the history has no entry of it: {error}")
