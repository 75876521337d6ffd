"""``modelless remove`` and ``retire``."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from modelless.controller.cli.screen import Json, emit, mebibytes, say

Why = Annotated[str | None, Option("--reason", help="A sentence for the history.")]


def remove(
    ctx: typer.Context,
    name: Annotated[
        str,
        Argument(metavar="NAME", help="task, task/model, task/model/variant, or with @version"),
    ],
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Remove a task, a model, a variant or one version, with its profiles and files.

    Files that another variant has, or was made of, stay. The history stays, too, and a version that
    was removed is never given again. What is in use is refused: what is loaded, on trial, or
    current while there are other versions.

    Examples: modelless remove imagenet/mynet/int8-224@2; modelless remove imagenet/mynet
    """
    from modelless.controller.usecases.removing import remove as remove_name

    found = remove_name(name, reason=reason, home=ctx.obj)
    if as_json:
        emit(
            {
                "removed": found.name, "variants": list(found.variants), "files": found.files,
                "bytes": found.file_bytes,
            }
        )  # fmt: skip
        return
    for variant in found.variants:
        typer.echo(f"removed {variant}")
    if found.name not in found.variants:
        typer.echo(f"removed {found.name}")
    say(f"{found.files} files collected, {mebibytes(found.file_bytes)} MiB")


def retire(
    ctx: typer.Context,
    name: Annotated[str, Argument(metavar="NAME", help="task, task/model or task/model/variant")],
    undo: Annotated[bool, Option("--undo", help="Take them back into service.")] = False,
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Take variants out of service; they stay registered, with their profiles and files.

    Examples: modelless retire imagenet/mynet; modelless retire imagenet/mynet --undo
    """
    from modelless.controller.usecases.removing import retire as retire_name

    found = retire_name(name, undo=undo, reason=reason, home=ctx.obj)
    if as_json:
        emit({"undone" if undo else "retired": list(found)})
        return
    for each in found:
        typer.echo(f"{each}: {'in service again' if undo else 'out of service'}")
