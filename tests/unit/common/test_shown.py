"""Errors show what was received, however large or odd it is."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, shown


@pytest.mark.parametrize(
    "value",
    [
        *("it's", "", b"", b"a'\xff", 1, None, [], (), (1,), {}, set(), frozenset(), {3}),
        *([1, [2, ("a",)]], {"b": 1, "a": [None, 2.5]}, {(1, 2), 3}, frozenset({3})),
        OrderedDict(a=1),
    ],
)
def test_small_values_are_shown_as_python_does(value: object) -> None:
    assert shown(value) == repr(value)


def test_of_large_ones_no_more_is_looked_at_than_is_shown() -> None:
    laughs: list[Any] = ["x"] * 10
    for _ in range(30):  # written out, more than there are atoms in a cat
        laughs = [laughs] * 10
    text = shown({"a": laughs}, 40)
    assert len(text) == 40
    assert text.startswith("{'a': [[[[")
    assert text.endswith("...")
    assert shown("y" * 10**6, 20) == "'" + "y" * 16 + "..."
    assert shown(b"y" * 10**6, 20) == "b'" + "y" * 15 + "..."


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_of_many_entries_only_those_shown_are_written_out(kind: type) -> None:
    written: list[int] = []

    class Entry:
        def __repr__(self) -> str:
            written.append(1)
            return "entry"

    assert len(shown(kind(Entry() for _ in range(1000)), 40)) == 40
    assert len(written) < 10


def test_what_has_no_text_has_its_type() -> None:
    assert shown(10**5000) == "<int>"
    assert "got <int>; allowed: less" in str(InvalidInputError.of("a", 10**5000, "less"))
