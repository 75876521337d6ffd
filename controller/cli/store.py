"""``modelless store migrate``, ``backup`` and ``restore``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from modelless.controller.cli.screen import Json, emit, say, show_progress, show_table

_Backup = Annotated[Path, Argument(metavar="FILE", help="The backup, a zip file.")]


def migrate(
    source: Annotated[str, Argument(metavar="SOURCE", help="sqlite:///... or postgresql://...")],
    target: Annotated[str, Argument(metavar="TARGET", help="An empty database, named so, too.")],
    as_json: Json = False,
) -> None:
    """Copy the store into another database, all of it or nothing, and compare what arrived.

    A cluster may go on working with SOURCE, but what it writes later is not in the copy: take it
    down, migrate, and start it with MODELLESS_STORE_URL=TARGET.

    Example: modelless store migrate sqlite:////home/ann/.modelless/store.db
    postgresql+psycopg://ann:secret@db/modelless
    """
    from modelless.controller.usecases.storing import migrate_store

    _show(migrate_store(source, target), as_json)


def backup(ctx: typer.Context, file: _Backup, as_json: Json = False) -> None:
    """Write the store and its artifacts into one file, as they are at one moment.

    Serving goes on. The settings and the history are in the store. Hashes of keys, pins, feedback,
    what tenants spent today and what was loaded come with it. The file is for your user alone.

    Example: modelless store backup modelless-monday.zip
    """
    from modelless.controller.usecases.storing import backup_store

    with show_progress() as progress:
        rows = backup_store(file, home=ctx.obj, on_progress=progress)
    _show(rows, as_json)


def restore(
    ctx: typer.Context,
    file: _Backup,
    replace: Annotated[
        bool, Option("--replace", help="Remove what is there; else there must be nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring back all that a backup has; every hash is checked.

    Serving goes on. A running cluster sees the old rows or the new ones, and nothing between. Keys,
    pins and feedback come back only while nothing runs from the home.

    Example: modelless store restore modelless-monday.zip
    """
    from modelless.controller.usecases.storing import restore_store

    with show_progress() as progress:
        rows, is_whole = restore_store(file, replace=replace, home=ctx.obj, on_progress=progress)
    _show(rows, as_json)
    if not is_whole:
        say("keys, pins and feedback are as they were: for these, 'modelless down', and again")


def _show(rows: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        emit({"rows": dict(rows)})
        return
    show_table(["table", "rows"], [(name, str(count)) for name, count in rows.items()], right=[1])
    say("all rows are there: they were read again and compared")
