"""Errors only an HTTP client can cause, and the wording all refusals of this codec share."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

from modelless.common.errors import InvalidInputError, NotFoundError


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
        super().__init__(f"method: got {_brief.repr(method)}; allowed here: {', '.join(allow)}.")
        self.allow = allow


class NoSuchPathError(NotFoundError):
    """A path that is none of the interface's."""

    def __init__(self, path: bytes) -> None:
        super().__init__(
            f"no such path: {path.decode('latin-1')[:120]!r}. POST /v2/models/TASK/infer asks; "
            "POST /v2/repository/index lists the tasks"
        )


class Words(str):
    """Text of ours in place of a client's value: shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 80
_brief.maxlevel = 2


class _Shown:
    """Shows as ``text``: a client's megabyte must not be written out whole to be cut to a line."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def invalid(field: str, value: object, allowed: str, hint: str = "") -> InvalidInputError:
    """An InvalidInputError in the house's form whose cost does not grow with ``value``."""
    return InvalidInputError.of(field, _Shown(_brief.repr(value)), allowed, hint)


def member(parent: str, key: str) -> str:
    """The path ``parent.key``, quoted and cut where a client's key is no plain word."""
    plain = len(key) <= 64 and key.replace("-", "_").isidentifier() and key.isascii()
    shown = key if plain else _brief.repr(key)
    return f"{parent}.{shown}" if parent else shown


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'latency_ms'?`` if ``name`` looks like a known word, else nothing."""
    folded = name[:64].lower().replace("-", "_")
    close = get_close_matches(folded, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""
