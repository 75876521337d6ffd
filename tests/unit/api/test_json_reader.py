"""Large JSON is read as Python's own parser reads it, in small steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelless.common.errors import InvalidInputError
from modelless.controller.api.json_reader import read_json
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError

LARGE = Limits(small_json_bytes=1)
"""Everything counts as large."""

NUMBERS = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


def read_large(text: str) -> Any:
    body = text.encode()
    return read_json(body, len(body), LARGE)


@given(VALUES, st.sampled_from([None, 1]))
def test_it_reads_what_json_reads(value: Any, indent: int | None) -> None:
    assert read_large(json.dumps(value, indent=indent)) == value


@given(st.text('[]{},:-0.1e \n"a', max_size=14))
def test_it_refuses_what_json_refuses(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(InvalidInputError):
            read_large(text)
    else:
        if len(text) > 1 and not has_repeated_keys(text):
            assert read_large(text) == expected


def has_repeated_keys(text: str) -> bool:
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append([key for key, _ in pairs]))
    return any(len(keys) != len(set(keys)) for keys in found)


@pytest.mark.parametrize("count", [1, 5000, 40_000])
@pytest.mark.parametrize("number", ["7", "-0.25", "1e3", "  255 "])
def test_long_lists_of_numbers_are_whole(count: int, number: str) -> None:
    text = "[" + ",".join([number] * count) + "]"
    assert read_large(text) == [json.loads(number)] * count


@pytest.mark.parametrize("text", ["[1,,2]", "[1,]", "[,1]", "[1,2", "[1 2]", "[1,[2],]", "[1;2]"])
def test_wrong_commas_are_wrong_wherever_a_slice_ends(text: str) -> None:
    for fill in (0, 8000, 8191, 8192, 8193):
        with pytest.raises(InvalidInputError, match="valid JSON"):
            read_large(text.replace("[1", "[" + "0," * fill + "1", 1))


def test_an_error_tells_its_place() -> None:
    text = "[" + "1," * 20_000 + "x]"
    with pytest.raises(InvalidInputError, match=r"at character 40001\)"):
        read_large(text)


def test_keys_are_there_once_and_there_are_no_nans() -> None:
    with pytest.raises(InvalidInputError, match="each key of a JSON object once"):
        read_large('{"a": 1, "a": 2}')
    with pytest.raises(InvalidInputError, match="no NaN"):
        read_large("[1, NaN]")


def test_a_document_of_too_many_values_is_never_parsed() -> None:
    limits = Limits(small_json_bytes=1, max_parsed_bytes=1000)
    for text in (
        "[" + "1," * 40 + "1]",
        "[" * 20,
        '{"a":' * 5,
        '["a","b","c","d","e","f","g"]' * 3,
    ):
        with pytest.raises(PayloadTooLargeError, match="more than 1000 bytes of memory"):
            read_json(text.encode(), len(text), limits)


def test_a_small_document_is_parsed_once() -> None:
    body = b'{"a": [1, 2]}'
    assert read_json(body, len(body), Limits()) is read_json(memoryview(body), len(body), Limits())
    padded = b'{"a": [1,' + b" " * 1024 + b"2]}"
    found = [read_json(padded, len(padded), Limits()) for _ in range(2)]
    assert found[0] == found[1] == {"a": [1, 2]}
    assert found[0] is not found[1]
