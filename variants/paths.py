"""How clients name what shall serve them: ``imagenet``, ``imagenet/lite0/int8-224@2``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.vocabulary import check_name

_ALLOWED: Final = "task, task/model, task/model/variant or task/model/variant@version"
_MAX_VERSION: Final = 2**31 - 1
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class ScopePath:
    """A parsed path. None stands for any model, any variant, the latest version."""

    task: str
    model: str | None = None
    variant: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        named = "/".join(part for part in (self.task, self.model, self.variant) if part is not None)
        return named if self.version is None else f"{named}@{self.version}"


def parse_path(path: str, version: str | int | None = None) -> ScopePath:
    """Parse what a client wrote, without looking whether it exists.

    Args:
        path: ``task``, ``task/model``, ``task/model/variant`` or ``task/model/variant@version``.
        version: the same version by another way, as in a URL's ``/versions/2``; None or empty if
            none was given.

    Raises:
        InvalidInputError: malformed, a version of what has none, or two different versions.
    """
    if not isinstance(path, str):
        raise InvalidInputError.of("path", path, _ALLOWED)
    name, at, written = path.partition("@")
    parts = name.split("/")
    if not 1 <= len(parts) <= 3 or (at and len(parts) != 3):
        raise InvalidInputError.of("path", path, _ALLOWED)
    for field, part in zip(("task", "model", "variant"), parts, strict=False):
        check_name(f"path {path[:200]!r}: {field}", part)
    number = _version(written, path) if at else None
    if version not in (None, ""):
        other = _version(version, path)
        if len(parts) != 3:
            raise InvalidInputError.of(
                "version",
                version,
                f"none for {path!r}: only a variant (task/model/variant) has one",
            )
        if number not in (None, other):
            raise InvalidInputError.of("version", version, f"{number}, as {path!r} says")
        number = other
    return ScopePath(
        parts[0], parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else None, number
    )


def _version(value: str | int | None, path: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidInputError.of(f"version of {path[:200]!r}", value, "a whole number, 1 or more")
    number = int(text)
    if not 1 <= number <= _MAX_VERSION:
        raise InvalidInputError.of(f"version of {path[:200]!r}", value, f"1 to {_MAX_VERSION}")
    return number


def not_found(what: str, name: str, known: Iterable[str], next_step: str) -> NotFoundError:
    """A NotFoundError that lists names near ``name`` and what exists."""
    names = sorted(known)
    message = f"No {what} is called {name!r}."
    if not names:
        return NotFoundError(f"{message} There is none yet: {next_step}")
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        message += f" Did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return NotFoundError(f"{message} There is: {shown}{more}.")
