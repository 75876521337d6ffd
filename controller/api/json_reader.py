"""Reading a client's JSON: never a long time in one piece, never far more memory than its bytes.

Python's parser holds the interpreter while it parses: 2.8 million empty lists, 8 MiB, take it more
than a second and 250 MB. So a document is weighed before it is parsed, by counting the characters
that begin a value. One that is not small is for another thread: lists of numbers are
parsed a slice at a time, and everything else in steps of Python, so that the event loop runs
meanwhile. The interpreter's limit on recursion, 1,000, bounds the depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from json import JSONDecodeError, JSONDecoder
from json.decoder import JSONArray  # type: ignore[attr-defined]  # the stubs leave it out
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, Final

from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError, Words, invalid

_SLICE_CHARS: Final = 1 << 14
_COUNTED_CHARS: Final = 1 << 16
_KEPT_CHARS: Final = 1024
"""Documents of so many characters are kept: most queries with binary tensors say the same."""
_WEIGHTS: Final = ((",", 32), ("[", 64), ("{", 240), ('"', 32))
"""Bytes of memory that what begins with the character may take: a number beside its place in a
list, a list, an object with one key, and half a string."""
_NUMBERS: Final = re.compile(rf"[-+0-9.eE,\s]{{0,{_SLICE_CHARS}}}")


def read_json(body: bytes | memoryview, end: int, limits: Limits) -> Any:
    """Parse ``body[:end]``; a document that is not small belongs into another thread.

    The result must not be changed: it may be another request's, too.

    Raises:
        PayloadTooLargeError: it has too many bytes or too many values.
        InvalidInputError: it is not JSON, repeats a key, or has NaN or Infinity.
    """
    if end > limits.max_json_bytes:
        raise PayloadTooLargeError(
            f"the body's JSON: got {end} bytes; allowed: up to {limits.max_json_bytes}. "
            "Send tensors as binary data."
        )
    try:
        text = str(body[:end], "utf-8")
        if end <= limits.small_json_bytes:
            return _decode_kept(text) if end <= _KEPT_CHARS else _decode(text)
        _check_weight(text, limits)
        return _decode_large(text)
    except JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        place = f"valid JSON ({error.msg}, at character {error.pos})"
        part = "" if end == len(body) else f"By Inference-Header-Content-Length it has {end} bytes."
        raise invalid("body", near, place, part) from None
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        raise invalid("body", Words(error), "valid JSON in UTF-8") from None
    except RecursionError:
        raise invalid(
            "body", Words("JSON nested too deeply"), "as deep as a tensor's shape"
        ) from None


def _check_weight(text: str, limits: Limits) -> None:
    """Refuse a document whose values would take too much memory.

    The characters also count where they stand inside of strings: the true weight is never more.
    """
    weight = 0
    for begin in range(0, len(text), _COUNTED_CHARS):  # in pieces: counting holds the interpreter
        piece = text[begin : begin + _COUNTED_CHARS]
        if len(piece) == _COUNTED_CHARS and piece.isdigit():  # it would be read in one call
            raise invalid("body", Words(f"a number of {len(piece)} digits"), "shorter numbers")
        weight += sum(piece.count(sign) * bytes_ for sign, bytes_ in _WEIGHTS)
        if weight > limits.max_parsed_bytes:
            raise PayloadTooLargeError(
                f"the body's JSON: its numbers, strings and lists take more than "
                f"{limits.max_parsed_bytes} bytes of memory; allowed: up to that, which is about "
                f"{limits.max_parsed_bytes // 32} numbers in a flat list. Send tensors as binary "
                "data."
            )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise invalid("body", key, "each key of a JSON object once")
            seen.add(key)
    return found


def _refuse_constant(constant: str) -> Any:
    raise invalid("body", constant, "JSON, which has no NaN or Infinity", "Leave the limit out.")


_decode: Final = JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant).decode
_decode_kept: Final = lru_cache(maxsize=256)(_decode)


def _decode_large(text: str) -> Any:
    """Parse a document that is not small."""
    decoder = JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    decoder.parse_array = _parse_array  # type: ignore[attr-defined]
    decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(text)


def _parse_array(
    at: tuple[str, int], scan_once: Callable[[str, int], tuple[Any, int]]
) -> tuple[list[Any], int]:
    """Parse the list that begins at a place of a text; returns it, and where it ends.

    Does what ``json.decoder.JSONArray`` does, but numbers at the head of the list in slices.
    """
    text, begin = at
    values: list[Any] = []
    while True:
        end = _NUMBERS.match(text, begin).end()  # type: ignore[union-attr]  # an empty match, too
        is_last = text[end : end + 1] == "]"
        if not is_last:
            end = text.rfind(",", begin, end)
            if end < 0:
                break
        if (values or not is_last) and not text[begin:end].strip():
            raise JSONDecodeError("Expecting value", text, end)
        try:
            values += _decode(f"[{text[begin:end]}]")
        except JSONDecodeError as error:
            raise JSONDecodeError(error.msg, text, begin + error.pos - 1) from None
        begin = end + 1
        if is_last:
            return values, begin
    rest, end = JSONArray((text, begin), scan_once)
    if values and not rest:
        raise JSONDecodeError("Expecting value", text, begin)
    return values + rest, end


def as_whole(value: Any) -> Any:
    """2 for 2.0, which is the same number in JSON; any other value as it is."""
    return int(value) if type(value) is float and value.is_integer() else value
