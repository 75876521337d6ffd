"""``modelless rebuild``: a variant's very bytes, made again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.controller.cli.screen import Json, emit, home_of, say

EPILOG = (
    "Examples: modelless rebuild imagenet/mynet/int8; "
    "modelless rebuild imagenet/mynet/int8@2 --output int8.onnx"
)


def rebuild(
    ctx: typer.Context,
    variant: Annotated[
        str, typer.Argument(metavar="VARIANT", help="task/model/variant, or with its @version")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the file there, too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild a variant bit for bit from what 'modelless make' kept, or say why it is impossible.

    A variant whose own file is missing or damaged gets it back. Exit code 5 if a tool, the kind of
    processor or what it was made of has changed, 3 if it was not made by 'modelless make'.
    """
    from modelless.common.files import write_whole
    from modelless.variants.making.origins import rebuild_variant
    from modelless.variants.registry.registry import open_registry

    with closing(open_registry(home_of(ctx))) as registry:
        found = registry.variant(variant)
        made = rebuild_variant(registry.store, registry.artifacts, found)
        try:
            registry.artifacts.fetch(found.artifact_sha256)
            restored = False
        except IntegrityError as damage:
            say(f"note: {damage}")
            registry.artifacts.put(made)
            restored = True
    if output is not None:
        try:
            write_whole(output, made)
        except OSError as error:
            raise InvalidInputError.of(
                "--output", str(output), f"a file that can be written ({error.strerror})"
            ) from None
    if as_json:
        emit(
            {
                "variant": found.id,
                "sha256": found.artifact_sha256,
                "bytes": len(made),
                "restored": restored,
                "output": None if output is None else str(output),
            }
        )
        return
    typer.echo(
        f"rebuilt {found.id}: the same {len(made)} bytes, sha256 {found.artifact_sha256[:12]}"
        + ("; its file was damaged and is whole again" if restored else "")
    )
