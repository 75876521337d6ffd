"""The errors a person can cause: each names the field, the value, what is allowed, what to do.

Drivers translate them once, at the edge: the API to an HTTP status, the CLI to an exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, ClassVar, Final

_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def shown(value: object, most: int = 120) -> str:
    """``repr(value)``, but of at most ``most`` characters; ``...`` stands for the rest."""
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) > most:
            return text[: most - 3] + "..."
    return text


def _pieces(value: Any, most: int) -> Iterator[str]:
    brackets = _BRACKETS.get(type(value))
    if isinstance(value, (str, bytes)):
        yield repr(value[: most + 1])
    elif type(value) is dict:
        yield "{"
        for number, (key, each) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, most)
            yield ": "
            yield from _pieces(each, most)
        yield "}"
    elif brackets and value:  # without entries there may be other words: set()
        begin, end = brackets
        yield begin
        for number, each in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(each, most)
        yield f",{end}" if type(value) is tuple and len(value) == 1 else end
    else:
        yield _plain(value)


def _plain(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  (an integer of thousands of digits; somebody else's class)
        return f"<{type(value).__name__}>"


FOREIGN_ERRORS: Final = (Exception, SystemExit)
"""Exceptions that foreign code may raise. A script that calls ``sys.exit`` must not end this
process silently, with an exit code that means something else here."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'lru'?`` with the name that is most like ``name``; empty if none is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {str(near[0])!r}?" if near else ""


class ModellessError(Exception):
    """Base of every error that is not a bug. ``str(error)`` is fit to be shown to a person.

    Attributes:
        http_status: status an HTTP reply carries.
        exit_code: exit code of the command line.
        retry_after_s: when trying again makes sense, seconds from now; None if unknown or never.
        field: what the error is about, such as ``inputs[0].shape``; empty if unknown.
        hint: the next step; empty if the message has none of its own.
    """

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retry_after_s: float | None = None
    field: str = ""
    hint: str = ""


class InvalidInputError(ModellessError):
    """A request, a file or a setting that is malformed."""

    http_status = 400
    exit_code = 2

    @classmethod
    def of(cls, field: str, value: object, allowed: str, hint: str = "") -> InvalidInputError:
        """An error in the house's form: field, value received, what is allowed, next step."""
        error = cls(
            f"{field}: got {shown(value)}; allowed: {allowed}." + (f" {hint}" if hint else "")
        )
        error.field, error.hint = field, hint
        return error


class NotFoundError(ModellessError):
    """A task, model, variant or policy of that name does not exist."""

    http_status = 404
    exit_code = 3


class InfeasibleError(ModellessError):
    """No placement can meet the SLO. The message says what is the nearest feasible one."""

    http_status = 422
    exit_code = 4


class IntegrityError(ModellessError):
    """An artifact is corrupt, was replaced, or asks for something that is not allowed."""

    exit_code = 5


class StoreError(ModellessError):
    """The store cannot be opened or written: read-only, full, locked or from a newer version."""

    http_status = 503
    exit_code = 6


class EnvironmentUnfitError(ModellessError):
    """The machine cannot do what was asked: a port is taken, an engine missing."""

    exit_code = 7


def require(module: str, what: str, install: str) -> Any:
    """The module that ``what`` needs; EnvironmentUnfitError if it is not installed.

    Args:
        install: what installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{what} needs {module}, which is not installed ({error}): {install}"
        ) from error


class OverloadedError(ModellessError):
    """The system is overloaded, or nothing can serve the query at the moment: try again later.

    ``retry_after_s`` says when.
    """

    http_status = 429
    exit_code = 8

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(OverloadedError):
    """Nothing can serve it just now, whoever asks. ``retry_after_s`` says when it may."""

    http_status = 503


class DeadlineExceededError(ModellessError):
    """The query's deadline cannot be met any more."""

    http_status = 504
    exit_code = 9

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
