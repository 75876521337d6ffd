"""Request headers: the length of the JSON part, SLO headers, and a compressed body."""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from modelless.common.errors import InvalidInputError
from modelless.controller.api.v2_errors import (
    PayloadTooLargeError,
    UnsupportedEncodingError,
    Words,
    invalid,
    member,
    nearest,
)

SLO_PARAMETERS = ("latency_ms", "min_accuracy", "max_cost_usd", "priority", "when_late")
"""The parameters of a request that set its SLO; each may come as a header instead."""

REQUEST_ID = b"x-request-id"

TENANT_PARAMETER = "tenant"

SLO_NAME_PARAMETER = "slo"

HEADER_PREFIX = "x-modelless-"

SLO_HEADERS: Mapping[bytes, str] = {
    f"{HEADER_PREFIX}{name.replace('_', '-')}".encode(): name
    for name in (*SLO_PARAMETERS, TENANT_PARAMETER, SLO_NAME_PARAMETER)
}
"""Lower-case header to the parameter it stands for."""

_PREFIX = HEADER_PREFIX.encode()
_PIECE_BYTES = 1 << 16
_JSON_LENGTH = b"inference-header-content-length"
_ENCODING = b"content-encoding"
_TRACE = b"traceparent"
_CACHE_CONTROL = b"cache-control"
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}.*")
_MOST_DIGITS = 12
"""Of a length."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3})?")


class RequestHeaders(NamedTuple):
    """What the codec needs of a request's headers.

    Attributes:
        json_length: bytes of the body's JSON part; None if all of the body is JSON.
        content_encoding: how the body is compressed; None if it is not.
        parameters: request parameters given as ``x-modelless-...`` headers, by parameter name.
        request_id: of ``X-Request-Id``; empty if there is none.
        traceparent: of W3C's trace context; empty if there is none, or it is malformed.
        cache_control: the words of ``Cache-Control``; empty if there is none.
    """

    json_length: int | None = None
    content_encoding: str | None = None
    parameters: Mapping[str, Any] = MappingProxyType({})
    request_id: str = ""
    traceparent: str = ""
    cache_control: frozenset[str] = frozenset()


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """Pick what concerns the codec from ASGI's headers (names in lower case), in one pass.

    Raises:
        InvalidInputError: a malformed value, a misspelt ``x-modelless-...`` name, or two headers
            of one name that contradict each other.
    """
    json_length: int | None = None
    encoding: str | None = None
    parameters: dict[str, Any] = {}
    request_id = traceparent = ""
    cache_control: frozenset[str] = frozenset()
    for name, value in headers:
        if name == _JSON_LENGTH:
            length = _read_length(name, value)
            if json_length is not None and length != json_length:
                raise _contradiction(_JSON_LENGTH.decode(), json_length, length)
            json_length = length
        elif name == _ENCODING:
            if encoding is not None:
                raise UnsupportedEncodingError("content-encoding: given twice; allowed: one.")
            encoding = value.decode("latin-1").strip().lower()
        elif name == REQUEST_ID:
            request_id = value.decode("latin-1")
        elif name == _TRACE:
            traceparent = value[:55].decode() if _TRACEPARENT.fullmatch(value) else ""
        elif name == _CACHE_CONTROL:
            words = value.decode("latin-1").lower().split(",")
            cache_control |= {word.strip() for word in words}
        elif name.startswith(_PREFIX):
            parameter = SLO_HEADERS.get(name)
            if parameter is None:
                raise _unknown_header(name)
            found = _read_parameter(parameter, name, value)
            if parameters.setdefault(parameter, found) != found:
                raise _contradiction(name.decode(), parameters[parameter], found)
    if encoding in ("", "identity"):
        encoding = None
    return RequestHeaders(json_length, encoding, parameters, request_id, traceparent, cache_control)


def find_header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """Return the value of the first header of a name, in lower case; None if there is none."""
    for name, value in headers:
        if name == wanted:
            return value
    return None


def decode_body(
    body: bytes | memoryview,
    encoding: str,
    max_bytes: int,
    take: Callable[[int], None] = lambda _: None,
) -> memoryview:
    """Undo ``gzip`` or ``deflate`` (zlib), stopping where a bomb would pass the limit.

    Args:
        body: as it came.
        encoding: of the body.
        max_bytes: that it may have in plain.
        take: sets memory aside for each piece before the next is decompressed; may raise.

    Raises:
        UnsupportedEncodingError: another encoding.
        PayloadTooLargeError: it grows beyond ``max_bytes``.
        InvalidInputError: truncated, corrupt, or followed by something else.
    """
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedEncodingError.of(
            "content-encoding", encoding[:80], "gzip, deflate, identity or none"
        )
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    # Pages that are not written to take no memory.
    plain = mmap.mmap(-1, max(max_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # 16,000 small ones take 12 ms to free
        plain.madvise(mmap.MADV_HUGEPAGE)
    filled = unused = 0
    for begin in range(0, len(body), _PIECE_BYTES):
        piece: bytes | memoryview = body[begin : begin + _PIECE_BYTES]
        if inflate.eof:
            unused += len(piece)
            continue
        is_full = True
        while (piece or is_full) and not inflate.eof:
            try:
                found = inflate.decompress(piece, _PIECE_BYTES)
            except zlib.error as error:
                raise invalid("body", Words(error), f"a {encoding} stream") from None
            if filled + len(found) > max_bytes:
                allowed = f"up to {max_bytes} bytes in plain"
                raise PayloadTooLargeError.of("body", Words("a compressed body"), allowed)
            take(len(found))
            plain[filled : filled + len(found)] = found
            filled += len(found)
            piece = inflate.unconsumed_tail
            is_full = len(found) == _PIECE_BYTES  # there may be more of it
        unused += len(inflate.unused_data)
    if not inflate.eof:
        raise invalid(
            "body", Words(f"{len(body)} bytes"), f"a whole {encoding} stream", "It is cut off."
        )
    if unused:
        raise invalid("body", Words(f"{unused} bytes more"), f"none after the {encoding} stream")
    return memoryview(plain)[:filled]


def _read_length(name: bytes, value: bytes) -> int:
    digits = value.strip()
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise invalid(name.decode(), value.decode("latin-1"), "a whole number of bytes")
    return int(value)


def _read_parameter(parameter: str, name: bytes, value: bytes) -> Any:
    text = value.decode("latin-1").strip()
    if parameter in (TENANT_PARAMETER, SLO_NAME_PARAMETER, "when_late"):
        return text
    if parameter == "priority":
        if not _WHOLE.fullmatch(text):
            raise invalid(name.decode(), text, "a whole number, -1 to 9")
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise invalid(name.decode(), text, "a number", "Leave it out for no limit.")
    return float(text)


def _contradiction(name: str, first: object, second: object) -> InvalidInputError:
    return invalid(
        name, Words(f"{first!r:.40} and {second!r:.40}"), "one value", "Send the header once."
    )


def _unknown_header(name: bytes) -> InvalidInputError:
    shown = name.decode("latin-1")
    known = [header.decode() for header in SLO_HEADERS]
    suffix = shown.removeprefix(HEADER_PREFIX)
    hint = nearest(suffix, SLO_HEADERS.values())
    for header, parameter in SLO_HEADERS.items():
        hint = hint.replace(f"'{parameter}'", f"'{header.decode()}'")
    return invalid(member("", shown), suffix, ", ".join(known), hint)
