"""Progress of a use case: steps and notes that a callback receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Step(NamedTuple):
    """An activity has done some of its steps.

    Attributes:
        activity: what is being done, e.g. ``profiling``.
        now: the step that runs or ran last.
        left_s: seconds that the rest takes; None if it is unknown.
    """

    activity: str
    done: int
    total: int
    now: str = ""
    left_s: float | None = None


class Note(NamedTuple):
    """A message for people."""

    message: str


Progress = Callable[[Step | Note], None]
"""Receives steps and notes as they happen."""


def ignore(event: Step | Note) -> None:
    """A ``Progress`` that shows nothing."""
