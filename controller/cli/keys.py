"""``modelless key create``, ``list`` and ``revoke``."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from modelless.controller.cli.arguments import days_of
from modelless.controller.cli.screen import Json, emit, say, show_table

if TYPE_CHECKING:
    from modelless.controller.api.keys import Key


def create(
    ctx: typer.Context,
    tenant: Annotated[str, Option(help="Tenant of its bearer.")],
    scope: Annotated[
        str,
        Option(
            metavar="NAME,...",
            help="What it is for, with commas: infer, feedback, operate, admin (all of them).",
        ),
    ] = "infer",
    max_priority: Annotated[
        int, Option(help="Highest priority that its bearer's queries may have, 0 to 9.")
    ] = 0,
    expires: Annotated[
        str | None, Option(metavar="TIME", help="Lasts so long, e.g. 90d; default: for ever.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key, and show it this once.

    Only its hash is kept. A running cluster takes it within a second. With the first key of a home
    every request needs a key, for good.

    Example: modelless key create --tenant shop --scope infer,feedback --expires 90d
    """
    from modelless.controller.usecases.keys import create_key

    lasts_s = None if expires is None else days_of("--expires", expires)
    scopes = [name.strip() for name in scope.split(",")]
    key, secret = create_key(
        tenant, scopes, max_priority=max_priority, lasts_s=lasts_s, home=ctx.obj
    )
    if as_json:
        emit({**_fields(key), "secret": secret})
        return
    typer.echo(secret)
    say(f"key {key.key_id} of {tenant}: keep it, it is not shown again; clients send it as")
    say("Authorization: Bearer KEY")


def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the keys, also those that were revoked or have expired.

    Example: modelless key list
    """
    from modelless.controller.usecases.keys import list_keys

    keys = list_keys(home=ctx.obj)
    if as_json:
        emit({"keys": [_fields(key) for key in keys]})
        return
    if not keys:
        typer.echo("there are no keys: everybody on this machine may do everything")
        return
    show_table(
        ["key", "tenant", "for", "priority", "made", "expires", "state"],
        [
            (
                key.key_id,
                key.tenant,
                ", ".join(key.scopes),
                f"0 to {key.max_priority}",
                _day(key.created_at),
                _day(key.expires_at),
                key.problem(time.time()) or "valid",
            )
            for key in keys
        ],
    )


def revoke(
    ctx: typer.Context,
    key: Annotated[str, Argument(metavar="KEY", help="Its id, as 'modelless key list' shows it.")],
    as_json: Json = False,
) -> None:
    """Revoke a key. A running cluster refuses it within a second.

    Example: modelless key revoke 5e0c9a1b
    """
    from modelless.controller.usecases.keys import revoke_key

    revoked = revoke_key(key, home=ctx.obj)
    if as_json:
        emit(_fields(revoked))
    else:
        typer.echo(f"key {revoked.key_id} of {revoked.tenant} is revoked")


def _fields(key: Key) -> dict[str, Any]:
    told = asdict(key)
    del told["sha256"]
    return {**told, "state": key.problem(time.time()) or "valid"}


def _day(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, UTC).date().isoformat()
