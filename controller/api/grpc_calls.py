"""Translates gRPC to HTTP and back: methods, frames around messages, deadlines and status codes.

HAProxy speaks HTTP/2 to clients and HTTP/1.1 to gateways, so a call is a chunked POST whose reply
has trailers: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. A gateway answers
calls as it answers HTTP: an error is first an HTTP reply, which ``as_call_reply`` translates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.controller.api import grpc_messages as messages
from modelless.controller.api.request_limits import GRPC_SERVICE
from modelless.controller.api.v2_errors import (
    NoSuchPathError,
    UnsupportedEncodingError,
    Words,
    invalid,
)
from modelless.controller.api.v2_headers import find_header
from modelless.controller.api.v2_reply import Headers, Reply
from modelless.controller.api.v2_request import InferRequest
from modelless.controller.api.v2_routes import Endpoint, Route

INFER: Final = GRPC_SERVICE + b"ModelInfer"
STREAM: Final = GRPC_SERVICE + b"ModelStreamInfer"

_METHODS: Final[Mapping[bytes, Endpoint]] = {
    b"ServerLive": Endpoint.HEALTH_LIVE,
    b"ServerReady": Endpoint.HEALTH_READY,
    b"ServerMetadata": Endpoint.SERVER_METADATA,
    b"ModelReady": Endpoint.MODEL_READY,
    b"ModelMetadata": Endpoint.MODEL_METADATA,
    b"ModelConfig": Endpoint.MODEL_CONFIG,
    b"ModelStatistics": Endpoint.STATISTICS,
    b"ModelInfer": Endpoint.INFER,
    b"ModelStreamInfer": Endpoint.INFER,
    b"RepositoryIndex": Endpoint.REPOSITORY_INDEX,
    b"RepositoryModelLoad": Endpoint.LOAD,
    b"RepositoryModelUnload": Endpoint.UNLOAD,
}
_NAMED: Final = {
    Endpoint.MODEL_READY,
    Endpoint.MODEL_METADATA,
    Endpoint.MODEL_CONFIG,
    Endpoint.STATISTICS,
}

STATUS_CODES: Final[Mapping[int, int]] = {
    200: 0,  # OK
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    405: 12,  # UNIMPLEMENTED
    408: 10,  # ABORTED
    411: 3,  # INVALID_ARGUMENT
    413: 8,  # RESOURCE_EXHAUSTED
    415: 12,  # UNIMPLEMENTED
    422: 9,  # FAILED_PRECONDITION
    429: 8,  # RESOURCE_EXHAUSTED
    500: 13,  # INTERNAL
    503: 14,  # UNAVAILABLE
    504: 4,  # DEADLINE_EXCEEDED
}
"""The code of a call by the HTTP status of the same meaning."""

_UNKNOWN: Final = 2
_UNIMPLEMENTED: Final = 12
PREFIX_BYTES: Final = 5
"""The bytes before each message: whether it is compressed, and its length."""

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_CONTENT: Final = (b"content-type", b"application/grpc")
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_METADATA: Final = ("code", "field", "hint")
_MOST_CHARS: Final = 1000
"""The longest text in metadata, characters; clients accept 8 kB of metadata in all."""


class Call(NamedTuple):
    """A call of one message, or one message of a stream.

    Attributes:
        path: the path of the request, which names the method.
        headers: metadata; names in lower case.
        message: the message without its prefix.
        is_compressed: whether the message is compressed.
        arrival_s: when the message arrived, seconds on the frontend's clock.
        time_left_s: seconds from then until the call's own deadline; None if it has none.
    """

    path: bytes
    headers: Headers
    message: memoryview
    is_compressed: bool
    arrival_s: float
    time_left_s: float | None


def is_call(path: bytes) -> bool:
    """Whether a request is a gRPC call, by its path."""
    return path.startswith(GRPC_SERVICE)


def method_of(path: bytes) -> Endpoint:
    """Return the endpoint that the path of a call names.

    Raises:
        NoSuchPathError: there is no such method.
    """
    endpoint = _METHODS.get(path.removeprefix(GRPC_SERVICE))
    if endpoint is None:
        raise NoSuchPathError(path)
    return endpoint


def route_call(endpoint: Endpoint, message: memoryview) -> Route:
    """Return the route of a call to any endpoint other than ``Endpoint.INFER``.

    Raises:
        InvalidInputError: the message is malformed.
    """
    if endpoint in (Endpoint.LOAD, Endpoint.UNLOAD):
        return Route(endpoint, messages.read_name(message)[1] or "")  # after the repository's
    return Route(endpoint, *messages.read_name(message)) if endpoint in _NAMED else Route(endpoint)


def read_timeout_s(headers: Headers) -> float | None:
    """Return how long a call may take from its beginning, seconds; None without a deadline.

    Raises:
        InvalidInputError: the header ``grpc-timeout`` is malformed.
    """
    given = find_header(headers, b"grpc-timeout")
    if given is None:
        return None
    found = _TIMEOUT.fullmatch(given)
    if found is None:
        raise invalid("grpc-timeout", given, "up to 8 digits and a unit, such as 100m")
    return int(found[1]) * _UNITS_S[found[2]]


def check_content_type(headers: Headers) -> None:
    """Refuse a request that is no gRPC call.

    Raises:
        UnsupportedEncodingError: the content type is not gRPC's.
    """
    given = find_header(headers, b"content-type") or b""
    if not given.startswith(b"application/grpc"):
        raise UnsupportedEncodingError.of(
            "content-type", given.decode("latin-1"), "application/grpc"
        )


def read_prefix(prefix: bytes | memoryview) -> tuple[bool, int]:
    """Return whether the message after these 5 bytes is compressed, and how many bytes it has.

    Raises:
        InvalidInputError: the first byte is neither 0 nor 1.
    """
    if prefix[0] > 1:
        raise invalid("message", prefix[0], "0 (plain) or 1 (compressed) as its first byte")
    return prefix[0] == 1, int.from_bytes(prefix[1:PREFIX_BYTES], "big")


def read_message(body: memoryview) -> tuple[bool, memoryview]:
    """Return the only message of a body, and whether it is compressed.

    Raises:
        InvalidInputError: there is none, it is cut off, or more follows.
    """
    if len(body) >= PREFIX_BYTES:
        is_compressed, size = read_prefix(body)
        if len(body) == PREFIX_BYTES + size:
            return is_compressed, body[PREFIX_BYTES:]
    raise invalid("body", Words(f"{len(body)} bytes"), "one whole message with its length")


def message_encoding(headers: Headers) -> str:
    """Return the name of the compression of a call's messages.

    Raises:
        InvalidInputError: the call names none.
    """
    given = find_header(headers, b"grpc-encoding")
    if given is None or given == b"identity":
        raise InvalidInputError("grpc-encoding: got none; allowed: gzip or deflate, as it is used.")
    return given.decode("latin-1")


def _write_description(endpoint: Endpoint, document: Any) -> bytes:
    """Return a message with the content of a JSON reply."""
    if endpoint is Endpoint.HEALTH_LIVE:
        return messages.write_flag(document["live"])
    if endpoint in (Endpoint.HEALTH_READY, Endpoint.MODEL_READY):
        return messages.write_flag(document["ready"])
    if endpoint is Endpoint.SERVER_METADATA:
        return messages.write_server_metadata(document)
    if endpoint is Endpoint.MODEL_METADATA:
        return messages.write_model_metadata(document)
    if endpoint is Endpoint.MODEL_CONFIG:
        return messages.write_model_config(document)
    if endpoint is Endpoint.STATISTICS:
        return messages.write_statistics(document["model_stats"])
    return messages.write_repository_index(document)


def translate_description(endpoint: Endpoint, reply: Reply) -> Reply:
    """Return a JSON reply as one whose body is a message; "not ready" has the status 200, too."""
    return Reply(200, _write_description(endpoint, json.loads(reply.body)), [_CONTENT])


def without_message(reply: Reply) -> Reply:
    """Return the reply to a call as one whose message is empty, unless it is an error."""
    return Reply(200, b"", [_CONTENT]) if reply.status == 200 else reply


def render_infer_call(
    request: InferRequest, outputs: Mapping[str, NDArray[Any]], **said: Any
) -> tuple[bytes, Headers]:
    """Return the message and headers of a successful inference; see ``render_infer``."""
    return messages.write_infer(request, outputs, **said), [_CONTENT]


def frame(message: bytes) -> bytes:
    """Return a message with its prefix, as a chunk of an HTTP/1.1 body."""
    size = len(message)
    return b"%x\r\n\0%b%b\r\n" % (PREFIX_BYTES + size, size.to_bytes(4, "big"), message)


END: Final = b"0\r\ngrpc-status: 0\r\n\r\n"
"""The end of a reply to a call that succeeded."""

BEGINNING: Final[Headers] = [
    _CONTENT,
    (b"transfer-encoding", b"chunked"),
    (b"trailer", b"grpc-status"),
]
"""Headers of a reply with messages."""


def as_call_reply(reply: Reply) -> Reply:
    """Return the HTTP reply to a call of one message: a message, or an error.

    An error's code, field and hint are metadata, as are its request id, its receipt's id and the
    time after which to try again.
    """
    if reply.status == 200:
        others = [pair for pair in reply.headers if pair[0] != b"content-type"]
        return Reply(200, frame(reply.body) + END, BEGINNING + others)
    return Reply(200, b"", [_CONTENT, (b"content-length", b"0"), *error_metadata(reply)])


def error_metadata(reply: Reply) -> Headers:
    """Return the status, message and metadata of a call that failed with an HTTP reply."""
    told = json.loads(reply.body)
    code = STATUS_CODES.get(reply.status, _UNKNOWN)
    if told["code"] == "no-such-path":
        code = _UNIMPLEMENTED
    found = [(b"grpc-status", b"%d" % code), (b"grpc-message", _percent_encoded(told["error"]))]
    found += [
        (b"modelless-" + n.encode(), _percent_encoded(told[n])) for n in _METADATA if n in told
    ]
    return found + [pair for pair in reply.headers if not pair[0].startswith(b"content-")]


def error_text(reply: Reply) -> str:
    """Return the text of an error's HTTP reply."""
    text: str = json.loads(reply.body)["error"]
    return text


def _percent_encoded(text: str) -> bytes:
    return quote(text[:_MOST_CHARS], safe=_PLAIN).encode()
