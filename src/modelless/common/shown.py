"""A value as an error shows it: what ``repr`` says, as far as there is room for it.

What was received may be of any size: of text, bytes, dicts, lists, tuples and sets no more is
looked at than is shown. Anything else, such as a class derived from ``dict``, is asked for all of
its ``repr``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
