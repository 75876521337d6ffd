"""``modelless replay``: a recorded run through the cores again, or as a world to simulate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelless.common.errors import ModellessError
from modelless.controller.cli.screen import Json, emit, others_print_to_stderr, say, show_table

if TYPE_CHECKING:
    from modelless.controller.replay.replay import Replayed

EPILOG = (
    "Examples: modelless up --record run-1; modelless replay run-1; "
    "modelless replay run-1 --as-world world.yaml && modelless simulate world.yaml"
)


class ReplayDiffersError(ModellessError):
    """The cores answered otherwise than they had."""


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What 'up --record' wrote.")],
    as_world: Annotated[
        Path | None,
        typer.Option(
            "--as-world",
            metavar="WORLD.yaml",
            help="Do not replay: write the recorded arrivals, devices and profiles as a world.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Feed a recording's inputs to the same policies, and compare every effect.

    Exit code 0 if all are what they were, 1 with the first difference if not.
    """
    if as_world is not None:
        from modelless.controller.replay.as_world import write_world

        with others_print_to_stderr():
            told = write_world(folder, as_world)
        if as_json:
            emit(told)
        else:
            typer.echo(
                f"{told['queries']} queries in {told['span_s']:.1f} s: {as_world}, {told['trace']}"
            )
            if told["too_large"]:
                say(f"note: {told['too_large']} queries are left out: more items than max_batch")
        return
    from modelless.controller.replay.replay import replay as replay_tape
    from modelless.controller.replay.replay import tapes_in

    with others_print_to_stderr():
        found = [replay_tape(tape) for tape in tapes_in(folder)]
    if as_json:
        emit({"identical": all(one.difference is None for one in found),
              "tapes": [_document(one) for one in found]})  # fmt: skip
    else:
        _show(found)
    different = [one for one in found if one.difference is not None]
    if different and as_json:  # the document has said it
        raise typer.Exit(ReplayDiffersError.exit_code)
    if different:
        raise ReplayDiffersError(
            f"{len(different)} of {len(found)} tapes differ: another version, another policy or "
            "another machine's arithmetic; if none of these, it is a bug"
        )


def _document(one: Replayed) -> dict[str, object]:
    difference = one.difference
    return {
        "tape": str(one.tape),
        "core": one.what,
        "name": one.name,
        "inputs": one.inputs,
        "effects": one.effects,
        "ending": one.ending,
        "difference": None
        if difference is None
        else {
            "input": difference.number,
            "asked": difference.asked,
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        },
    }


def _show(found: Sequence[Replayed]) -> None:
    show_table(
        ["core", "name", "inputs", "effects", "result"],
        [
            (
                one.what,
                one.name,
                str(one.inputs),
                str(one.effects),
                "identical" if one.difference is None else f"differs at {one.difference.number}",
            )
            for one in found
        ],
        right=[2, 3],
        whole=1,
    )
    for one in found:
        if one.difference is not None:
            typer.echo(f"{one.tape}, input {one.difference.number}: {one.difference.asked:.2000}")
            typer.echo(f"  recorded: {one.difference.recorded:.2000}")
            typer.echo(f"  replayed: {one.difference.replayed:.2000}")
        elif one.ending == "unfinished":
            say(f"note: {one.tape} breaks off after {one.inputs} inputs: its process was ended")
        elif one.ending != "end":
            say(f"note: {one.tape} was cut after {one.inputs} inputs: {one.ending}")
