"""Rendering replies: outputs as binary, JSON or classes, and errors."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from json import JSONEncoder
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import ModellessError
from modelless.controller.api.v2_errors import MethodNotAllowedError, invalid
from modelless.controller.api.v2_headers import REQUEST_ID
from modelless.controller.api.v2_request import InferRequest, RequestedOutput
from modelless.controller.api.v2_tensors import datatype_of, to_binary, to_json

Headers = list[tuple[bytes, bytes]]

REPLY_PARAMETERS: Mapping[str, str] = {
    "variant": "id of the variant that answered: `task/model/variant@version`",
    "device": "device class that ran it",
    "cached": "true if the answer came from the cache: nothing ran, and `cost_usd` is 0",
    "predicted_latency_ms": "latency predicted when the variant was chosen, from arrival to reply",
    "observed_latency_ms": "latency observed, from arrival to reply",
    "accuracy": "accuracy of the variant, per cent",
    "accuracy_provenance": "how the accuracy is known: `measured`, `published` or `derived`",
    "cost_usd": "the query's share, by items, of the price of the device time that its batch took",
    "predicted_cost_usd": "price of the device time for the query alone, as predicted",
    "receipt_id": "id of the receipt, the record of the decision",
    "explanation": "with `explain: true`: the choice, the runners-up, and what ruled each out",
}
"""What a reply's ``parameters`` say, and what each means. A value that is not known is left out."""

_PLAIN_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")

RECEIPT_HEADER = b"modelless-receipt-id"
"""Of a refusal: the id that ``modelless why`` takes."""

_OCTETS = (b"content-type", b"application/octet-stream")
_JSON = (b"content-type", b"application/json")


class Reader(Protocol):
    """A client that reads a reply without a known end.

    Attributes:
        is_slow: whether it has not read what was written before.
    """

    @property
    def is_slow(self) -> bool: ...

    def write_stream(self, data: bytes) -> None:
        """Write a part of the reply's body, a chunk of HTTP/1.1."""
        ...

    def end_stream(self, *, is_whole: bool) -> None:
        """Go on to the next request; close the connection if the body is not whole."""
        ...


class Reply(NamedTuple):
    """An HTTP reply.

    Attributes:
        headers: names in lower case, as ASGI wants them.
        begin: of a reply in chunks without a known end: takes its reader once the head is written,
            and returns what is called when that is gone. None: ``body`` is all there is.
    """

    status: int
    body: bytes
    headers: Headers
    begin: Callable[[Reader], Callable[[], None]] | None = None


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"not JSON: {type(value).__name__}")


_SLICE = 1 << 11
"""Elements of an output that are encoded in one call, which holds the interpreter: 1 ms."""
_encode = JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode


def render_infer(
    request: InferRequest,
    outputs: Mapping[str, NDArray[Any]],
    *,
    model_name: str,
    model_version: str,
    parameters: Mapping[str, Any],
    labels: Sequence[str] = (),
) -> tuple[bytes, Headers]:
    """The body and headers of a successful inference reply (status 200).

    A tensor is copied once, into the body, when it goes as binary data. In JSON, or as classes, it
    takes half a microsecond an element; in another thread, the interpreter is free meanwhile.

    Args:
        request: what was asked: its id, outputs and their form.
        outputs: what came out, by name; every array has one item of axis 0 an item of the query.
        model_name: the name to show, usually as asked for.
        model_version: the version that answered.
        parameters: ``REPLY_PARAMETERS`` and whatever else; a NaN or infinite number becomes null.
        labels: class names by index, for outputs asked for as classes.

    Raises:
        InvalidInputError: an output was asked for that does not exist, or in a form it cannot take.
    """
    document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
    if request.id is not None:
        document["id"] = request.id
    document["parameters"] = parameters
    try:
        head = [_encode(document)[:-1].encode(), b',"outputs":[']
    except ValueError:
        document["parameters"] = _finite(parameters)
        head = [_encode(document)[:-1].encode(), b',"outputs":[']
    contents: list[Any] = []
    for index, (wanted, array) in enumerate(select_outputs(request, outputs, labels)):
        size = None
        if wanted.binary:
            raw = to_binary(array)
            size = len(raw) if isinstance(raw, bytes) else raw.nbytes
            contents.append(raw)
        if index:
            head.append(b",")
        head.append(_encode_head(wanted.name, datatype_of(array), array.shape, size))
        if not wanted.binary:
            head += (b',"data":[', *_encode_elements(f"outputs[{index}]", array), b"]")
        head.append(b"}")
    head.append(b"]}")
    body = b"".join([*head, *contents])
    length = (b"content-length", b"%d" % len(body))
    if not contents:
        return body, [_JSON, length]
    head_bytes = sum(map(len, head))
    return body, [_OCTETS, (b"inference-header-content-length", b"%d" % head_bytes), length]


@lru_cache(maxsize=1024)
def _encode_head(
    name: str, datatype: str | None, shape: tuple[int, ...], size_bytes: int | None
) -> bytes:
    """Encode the description of an output, without the brace at the end."""
    told: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if size_bytes is not None:
        told["parameters"] = {"binary_data_size": size_bytes}
    return _encode(told)[:-1].encode()


def _encode_elements(field: str, array: NDArray[Any]) -> Iterator[bytes]:
    """The array's elements in JSON, row-major, a slice at a time."""
    flat = array.ravel()
    for begin in range(0, flat.size, _SLICE):
        values = to_json(field, flat[begin : begin + _SLICE])
        try:
            text = _encode(values)[1:-1]
        except ValueError:
            odd = next(value for value in values if not math.isfinite(value))
            hint = "Ask for this output as binary_data."
            raise invalid(field, odd, "in JSON, finite numbers", hint) from None
        yield (f",{text}" if begin else text).encode()


def count_elements(request: InferRequest, outputs: Mapping[str, NDArray[Any]]) -> int:
    """Return how many elements a reply has that do not go as binary data, or go as classes."""
    if request.binary_default and not request.requested_outputs:
        return 0
    return sum(
        outputs[each.name].size
        for each in _wanted(request, outputs)
        if each.name in outputs and (each.class_count or not each.binary)
    )


def _wanted(
    request: InferRequest, outputs: Mapping[str, NDArray[Any]]
) -> tuple[RequestedOutput, ...]:
    return request.requested_outputs or tuple(
        RequestedOutput(name, request.binary_default) for name in outputs
    )


def select_outputs(
    request: InferRequest, outputs: Mapping[str, NDArray[Any]], labels: Sequence[str]
) -> Iterator[tuple[RequestedOutput, NDArray[Any]]]:
    """Yield what a request asks for, in its order; arguments and errors as in ``render_infer``."""
    for index, wanted in enumerate(_wanted(request, outputs)):
        array = outputs.get(wanted.name)
        if array is None:
            raise invalid(f"outputs[{index}].name", wanted.name, ", ".join(outputs))
        yield wanted, classify(array, wanted.class_count, labels) if wanted.class_count else array


def classify(array: NDArray[Any], class_count: int, labels: Sequence[str] = ()) -> NDArray[Any]:
    """The ``class_count`` highest scores of every item: ``score:index`` or ``score:index:label``.

    Scores have six decimals if they are fractions; equal ones come by index; NaN comes last.

    Args:
        array: numbers, shape (items, ...); what follows axis 0 counts as the classes.

    Returns:
        Bytes objects, shape (items, min(class_count, classes)).
    """
    if array.dtype.kind not in "iuf":
        datatype = datatype_of(array)
        raise invalid("outputs.parameters.classification", datatype, "an output of numbers")
    items = array.shape[0] if array.ndim else 1
    rows = array.reshape(items, math.prod(array.shape[1:]))
    form = "%.6f:%d" if array.dtype.kind == "f" else "%d:%d"
    found = np.empty((items, min(class_count, rows.shape[1])), np.object_)
    for item, row in enumerate(rows):
        if array.dtype.kind == "f":
            order = np.argsort(-row, kind="stable")
        else:  # unsigned numbers have no negative: turn the row round, twice
            order = row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]
        for place, index in enumerate(order[: found.shape[1]].tolist()):
            text = form % (row[index], index)
            if index < len(labels):
                text += f":{labels[index]}"
            found[item, place] = text.encode("utf-8", "replace")
    return found


def render_text(body: bytes, content_type: str) -> Reply:
    """A reply that is text of a kind."""
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    return Reply(200, body, headers)


def render_json(document: object, status: int = 200) -> Reply:
    """A JSON reply."""
    body = _encode(document).encode()
    return Reply(status, body, [_JSON, (b"content-length", b"%d" % len(body))])


def render_error(
    error: Exception,
    receipt_id: str | None = None,
    explanation: Mapping[str, Any] | None = None,
) -> Reply:
    """The reply to a failed request: ``{"error": "...", "code": "..."}`` and the error's status.

    The error's field and hint stand beside it, if it has them. Of a query that was refused, the
    receipt's id stands there and in a header, and the explanation if it was asked for. An
    exception that is no ModellessError is a bug: its text stays inside, the status is 500.
    """
    if not isinstance(error, ModellessError):
        message = "internal error; the server's log says more"
        return render_json({"error": message, "code": "internal"}, 500)
    document: dict[str, Any] = {"error": str(error), "code": code_of(type(error).__name__)}
    document |= {key: value for key in ("field", "hint") if (value := getattr(error, key))}
    if receipt_id is not None:
        document["receipt_id"] = receipt_id
    if explanation is not None:
        document["explanation"] = explanation
    reply = render_json(document, error.http_status)
    if receipt_id is not None:
        reply.headers.append((RECEIPT_HEADER, receipt_id.encode()))
    wait_s = error.retry_after_s
    if wait_s is not None:
        wait_s = min(max(wait_s, 0.001), 86400.0) if math.isfinite(wait_s) else 60.0
        reply.headers.append((b"retry-after", b"%d" % math.ceil(wait_s)))
        reply.headers.append((b"retry-after-ms", b"%d" % math.ceil(wait_s * 1e3)))
    if error.http_status == 401:
        reply.headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowedError):
        reply.headers.append((b"allow", ", ".join(error.allow).encode()))
    return reply


@lru_cache
def code_of(name: str) -> str:
    """The code of a kind of errors: ``invalid-input`` of InvalidInputError."""
    return re.sub(r"(?<=.)([A-Z])", r"-\1", name.removesuffix("Error")).lower()


def with_request_id(reply: Reply, request_id: bytes) -> Reply:
    """The reply with the id of its request in a header, and in the body of an error."""
    status, body, headers, begin = reply
    if status >= 400 and body.startswith(b'{"error":'):
        body = b'%b,"request_id":"%b"}' % (body[:-1], request_id)
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
    return Reply(status, body, [*headers, (REQUEST_ID, request_id)], begin)


class RequestIds:
    """Takes the ids of requests from their headers, and makes some where there are none."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6).encode()
        self._last = 0

    def of(self, headers: Headers) -> bytes:
        """Return the request's ``X-Request-Id`` if it is a plain one; else put a new one there."""
        for name, value in headers:
            if name == REQUEST_ID and _PLAIN_ID.fullmatch(value):
                return value
        self._last += 1
        made = b"%b-%x" % (self._prefix, self._last)
        headers[:] = [pair for pair in headers if pair[0] != REQUEST_ID]
        headers.append((REQUEST_ID, made))
        return made


def _finite(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, (float, np.floating)) and not math.isfinite(value) else value
        for key, value in parameters.items()
    }
