"""Errors show what was received, however large or odd it is."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.variants.errors import InvalidInputError
from modelless.variants.shown import shown


@pytest.mark.parametrize(
    "value",
    ["it's", "", 1, None, [], (), (1,), {}, [1, [2, ("a",)]], {"b": 1, "a": [None, 2.5]}, {3}],
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


def test_what_has_no_text_has_its_type() -> None:
    assert shown(10**5000) == "<int>"
    assert "got <int>; allowed: less" in str(InvalidInputError.of("a", 10**5000, "less"))
