"""What the server reads of one request at most, so that no client can make it run out of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from modelless.controller.api.v2_errors import LengthRequiredError, PayloadTooLargeError

_MIB = 1 << 20
MOST_PICTURE_BYTES: Final = 10 * _MIB
"""Of a picture that the console's page *Try it* sends."""
_TRY = b"/console/try"
GRPC_SERVICE = b"/inference.GRPCInferenceService/"
"""What the paths of all gRPC calls begin with."""
_QUERIES = (b"/v2/models/", GRPC_SERVICE + b"ModelInfer", GRPC_SERVICE + b"ModelStreamInfer")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request.

    Attributes:
        max_body_bytes: of the whole body, after decompression.
        max_chunked_bytes: of a body that comes in chunks: it has to be copied as it grows.
        max_json_bytes: of its JSON part.
        max_parsed_bytes: of memory that its JSON takes once it is parsed; see ``json_reader``.
        small_json_bytes: of JSON that the event loop parses itself, in a millisecond.
        small_message_bytes: of a gRPC message, without raw tensors, that the event loop reads
            itself.
        small_body_bytes: of a body that the event loop looks through itself, in a millisecond.
        small_reply_elements: of outputs in JSON or as classes that the event loop renders itself.
        max_feedback_bytes: of the body of feedback, and of whatever is no query or picture.
        max_tensors: inputs, and likewise requested outputs.
        max_dims: axes of one tensor.
        max_strings: elements of all BYTES tensors, each of which is an object of its own.
        max_id_chars: of the request's ``id``, which the reply repeats.
    """

    max_body_bytes: int = 64 * _MIB
    max_chunked_bytes: int = 8 * _MIB
    max_json_bytes: int = 4 * _MIB
    max_parsed_bytes: int = 10 * _MIB
    small_json_bytes: int = 16 * 1024
    small_message_bytes: int = 4 * 1024
    small_body_bytes: int = _MIB
    small_reply_elements: int = 2048
    max_feedback_bytes: int = 256 * 1024
    max_tensors: int = 64
    max_dims: int = 8
    max_strings: int = 16_384
    max_id_chars: int = 256

    def check_body_bytes(self, size_bytes: int, path: bytes = _QUERIES[0]) -> None:
        """Raise PayloadTooLargeError if a body of this size for a path is more than is read."""
        most_bytes = self.max_body_bytes
        if path.partition(b"?")[0] == _TRY:
            most_bytes = min(most_bytes, MOST_PICTURE_BYTES)
        elif not path.startswith(_QUERIES):
            most_bytes = min(most_bytes, self.max_feedback_bytes)
        if size_bytes > most_bytes:
            raise PayloadTooLargeError(
                f"body: got {size_bytes} bytes; allowed: up to {most_bytes}. "
                "Send fewer items a request."
            )

    def check_chunked_bytes(self, size_bytes: int, path: bytes = _QUERIES[0]) -> None:
        """Raise if a body that comes in chunks has more than is read."""
        self.check_body_bytes(size_bytes, path)
        if size_bytes > self.max_chunked_bytes:
            raise LengthRequiredError(
                f"body: got more than {self.max_chunked_bytes} bytes in chunks; allowed: a body of "
                "that size has a Content-Length. Send one."
            )


DEFAULT_LIMITS = Limits()
