"""Errors only an HTTP client can cause, and the wording all refusals of this codec share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from modelless.common.errors import InvalidInputError, NotFoundError, did_you_mean, shown


class PayloadTooLargeError(InvalidInputError):
    """A request body beyond what the server reads."""

    http_status: ClassVar[int] = 413


class TooSlowError(InvalidInputError):
    """A request that takes too long to arrive."""

    http_status: ClassVar[int] = 408


class LengthRequiredError(InvalidInputError):
    """A large body that does not say beforehand how long it is."""

    http_status: ClassVar[int] = 411


class UnsupportedEncodingError(InvalidInputError):
    """A request body compressed in a way the server does not read."""

    http_status: ClassVar[int] = 415


class MethodNotAllowedError(InvalidInputError):
    """A path that exists, asked for with a method it lacks. ``allow`` names those it has."""

    http_status: ClassVar[int] = 405

    def __init__(self, method: str, allow: tuple[str, ...]) -> None:
        super().__init__(f"method: got {shown(method, 80)}; allowed here: {', '.join(allow)}.")
        self.allow = allow


class NoSuchPathError(NotFoundError):
    """A path that is none of the interface's."""

    def __init__(self, path: bytes) -> None:
        super().__init__(
            f"no such path: {path.decode('latin-1')[:120]!r}. POST /v2/models/TASK/infer asks; "
            "POST /v2/repository/index lists the tasks"
        )


class Words:
    """Text of ours in place of a client's value: shown without quotes."""

    __slots__ = ("_text",)

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


invalid: Final = InvalidInputError.of
"""The error of a malformed request, in the house's form."""


def member(parent: str, key: str) -> str:
    """The path ``parent.key``, quoted and cut where a client's key is no plain word."""
    plain = len(key) <= 64 and key.replace("-", "_").isidentifier() and key.isascii()
    name = key if plain else shown(key, 80)
    return f"{parent}.{name}" if parent else name


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'latency_ms'?`` if ``name`` looks like a known word, else nothing."""
    return did_you_mean(name[:64].lower().replace("-", "_"), known)
