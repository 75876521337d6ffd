"""The terminal: tables on stdout, messages and progress on stderr; and JSON for programs."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from modelless.controller.usecases.progress import Note, Progress, Step
from modelless.variants.vocabulary import Accuracy

if TYPE_CHECKING:
    from rich.text import Text

Json = Annotated[bool, Option("--json", help="Print JSON on stdout, for programs.")]

PIPED_WIDTH: Final = 200
"""Columns of a table that does not go to a terminal: nothing is cut off or folded."""

PLAIN_EVERY_S: Final = 5.0

_STDOUT: Final = 1
_STDERR: Final = 2


def say(message: str) -> None:
    """A message for a person, on stderr."""
    typer.echo(message, err=True)


def emit(document: Mapping[str, Any]) -> None:
    """The command's whole answer as JSON, on stdout."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


@contextmanager
def others_print_to_stderr() -> Iterator[None]:
    """Send to stderr what policies print as they are imported or run: it is no part of the answer.

    So is the output of native libraries, such as the solver HiGHS.
    """
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)  # its buffer is another
    stdout = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        libc.fflush(None)
        os.dup2(stdout, _STDOUT)
        os.close(stdout)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    caption: str = "",
    right: Iterable[int] = (),
    whole: int | None = None,
) -> None:
    """A table on stdout.

    Args:
        title, caption: above and below it; they may be wider than the table.
        right: numbers of the columns to be aligned to the right.
        whole: number of the column that is not folded where the terminal is narrow.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    numbers = set(right)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if number in numbers else "left",
            overflow="fold",
            no_wrap=number == whole,
        )
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    if title:
        console.print(title, style="table.title", soft_wrap=True)
    console.print(table)
    if caption:
        console.print(caption, style="table.caption", soft_wrap=True)


class Steps:
    """Progress through a number of steps, on stderr.

    A bar with the time left where stderr is a terminal; a line every few seconds where it is not.

    Args:
        activity: what is being done, e.g. ``profiling``.
        clock: seconds, monotonic.
    """

    def __init__(self, activity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.activity = activity
        self._clock = clock
        self._bar: Any = None
        self._bar_task: Any = None
        self._started_s = clock()
        self._said_s = -float("inf")
        self._said_done = -1

    def __enter__(self) -> Steps:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                TextColumn("{task.fields[now]}", markup=False),
                console=Console(stderr=True, highlight=False),
                transient=True,
                auto_refresh=False,  # a thread that draws would disturb what is being measured
            )
            self._bar_task = self._bar.add_task(self.activity, total=None, left="", now="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, done: int, total: int, now: str = "", eta_s: float | None = None) -> None:
        """``done`` of ``total`` steps are done; ``now`` is being done or was done last.

        Args:
            eta_s: seconds the rest will take; None to estimate it from the time so far.
        """
        now_s, left = self._clock(), ""
        if eta_s is None and done > 0:
            eta_s = (now_s - self._started_s) / done * (total - done)
        if eta_s is not None and eta_s >= 1.0 and done < total:
            left = f"about {duration(eta_s)} left"
        if self._bar is not None:
            self._bar.update(self._bar_task, completed=done, total=total, left=left, now=now)
            self._bar.refresh()
            return
        is_last = done == total and done != self._said_done
        if is_last or now_s - self._said_s >= PLAIN_EVERY_S:
            self._said_s, self._said_done = now_s, done
            say(": ".join(part for part in (f"{self.activity} {done}/{total}", left, now) if part))

    def note(self, message: str) -> None:
        if self._bar is not None:
            self._bar.console.print(message, markup=False)
        else:
            say(message)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A callback that shows the progress of a use case on stderr: a bar for each activity."""
    with ExitStack() as shown:
        steps: Steps | None = None

        def show(event: Step | Note) -> None:
            nonlocal steps
            if isinstance(event, Step):
                if steps is None or steps.activity != event.activity:
                    shown.close()
                    steps = shown.enter_context(Steps(event.activity))
                steps.at(event.done, event.total, event.now, event.left_s)
            elif steps is not None:
                steps.note(event.message)
            else:
                say(event.message)

        yield show


def clock_text(at: datetime, *, day: bool = False) -> str:
    """``18:30:05.123`` on this machine's clock, with the date if ``day``."""
    shown = at.astimezone()
    text = shown.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}"


def duration(seconds: float) -> str:
    """``8 s``, ``2 min 5 s``, ``1 h 4 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")


def number_text(value: float | None, form: str = "{:.1f}") -> str:
    """``24.1`` by the template ``form``; ``-`` if there is no number."""
    return "-" if value is None else form.format(value)


def mebibytes(size_bytes: float) -> str:
    """``24.1``."""
    return f"{size_bytes / 2**20:.1f}"


def feedback_text(told: Mapping[str, Any] | None) -> str:
    """An accuracy by feedback, as ``VariantFeedback.status`` gives it; empty if there is none."""
    if told is None:
        return ""
    interval = f"({told['low']:.1f} to {told['high']:.1f})"
    text = f"{told['accuracy']:.1f} % {interval} of {told['items']:g}"
    demoted_to = told["demoted_to"]
    return text if demoted_to is None else f"{text}; demoted, counts for {demoted_to:.1f} %"


def accuracy_text(accuracy: Accuracy) -> str:
    """``91.2 % measured (90.6 to 91.8)``."""
    text = f"{accuracy.percent:.1f} % {accuracy.provenance.value}"
    if accuracy.low_percent is not None and accuracy.high_percent is not None:
        text += f" ({accuracy.low_percent:.1f} to {accuracy.high_percent:.1f})"
    return text
