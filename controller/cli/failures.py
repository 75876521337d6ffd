"""How a command ends badly: one line on stderr, an exit code of its own, never a traceback.

=====  ============================================================================================
code   meaning
=====  ============================================================================================
0      done
1      an error without a code of its own; ``status`` and ``infer``: nothing is up
2 - 9  the kinds of ``modelless.common.errors``: bad input 2, unknown name 3, limits that nothing
       meets 4, damaged artifact 5, store 6, unfit machine 7, overloaded 8, too late 9
11     no key, or one that is not valid or not for this
70     a bug; ``MODELLESS_TRACEBACK=1`` shows where
130    interrupted (Ctrl-C)
=====  ============================================================================================
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from modelless.common.errors import ModellessError

BUG: Final = 70
INTERRUPTED: Final = 130
TRACEBACK: Final = "MODELLESS_TRACEBACK"
GLOBAL_OPTIONS: Final = ("--home", "--store")
_UNFIT: Final = 7


class Failed(Exception):
    """An error together with what else a program reading ``--json`` should get.

    Args:
        details: goes into the JSON document beside ``error`` and ``exit_code``.
    """

    def __init__(self, error: ModellessError, details: Mapping[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.details = details


class ReportingGroup(TyperGroup):
    """The top of the command line: translates whatever a command raises, once, here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, report, and exit with the code."""
        del prog_name  # however it was started
        words = globals_first(sys.argv[1:] if args is None else args)
        try:
            code = super().main(
                words, "modelless", complete_var, False, windows_expand_args, **extra
            )
        except Exception as error:
            if os.environ.get(TRACEBACK) and not _is_expected(error):
                raise
            code = report(error, as_json="--json" in words)
        code = code if type(code) is int else 0
        if standalone_mode:
            sys.exit(code)
        return code

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Two words name a command where there is one of that name, such as ``profile report``.

        So ``profile report`` never profiles a task called ``report``; ``profile -- report`` does.
        """
        pair = " ".join(args[:2])
        words = [pair, *args[2:]] if pair in self.commands else args
        return super().resolve_command(ctx, words)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the work: it begins with the zoo."""
        return sorted(super().list_commands(ctx), key=lambda name: name != "zoo")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with a word, whatever Typer would make of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def globals_first(words: Sequence[str]) -> list[str]:
    """``--home`` and ``--store`` may stand anywhere: bring them to the front, where they belong."""
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
        elif word in GLOBAL_OPTIONS and (value := next(remaining, None)) is not None:
            front += [word, value]
        elif word.partition("=")[0] in GLOBAL_OPTIONS and "=" in word:
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def report(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong on stderr, and on stdout too if ``as_json``; return the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of the output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    message, code = _explain(error)
    typer.echo(f"error: {message}", err=True)
    if as_json:
        details = error.details if isinstance(error, Failed) else {}
        document = {"error": message, "exit_code": code, **details}
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    return code


def one_line(text: str) -> str:
    """``text`` with every run of white space made one blank."""
    return " ".join(text.split())


def _is_expected(error: Exception) -> bool:
    return isinstance(error, (ModellessError, Failed, typer.Abort)) or _is_usage(error)


def _is_usage(error: Exception) -> bool:
    # Typer brings its own copy of click or uses the real one, by version: known by its methods.
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _explain(error: Exception) -> tuple[str, int]:
    """The message for a person, and the exit code."""
    if isinstance(error, Failed):
        return _explain(error.error)
    if isinstance(error, ModellessError):
        return one_line(str(error)), error.exit_code
    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    if _is_usage(error):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "modelless"
        message = one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        message = message.replace("Value error, ", "", 1)  # said by what checks it, of Python
        end = "" if message.endswith("?") else "."
        return f"{message}{end} See: {command} --help", int(error.exit_code)  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return one_line(f"{where}{error.strerror or error}"), _UNFIT
    if isinstance(error, MemoryError):
        return one_line(f"there is not enough memory: {error}"), _UNFIT
    kind = type(error).__name__
    return (
        one_line(f"unexpected {kind}: {error}. This is a bug: {TRACEBACK}=1 shows where it is."),
        BUG,
    )
