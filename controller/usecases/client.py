"""A client of a running modelless: the Open Inference Protocol v2 over the standard library's HTTP.

``encode_infer`` and ``decode_infer`` are pure: a load generator encodes its queries beforehand and
reads the replies by other means.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import (
    DeadlineExceededError,
    InfeasibleError,
    InvalidInputError,
    ModellessError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from modelless.controller.api.keys import ForbiddenError, UnauthorizedError
from modelless.controller.api.v2_errors import PayloadTooLargeError, UnsupportedEncodingError
from modelless.controller.api.v2_tensors import NUMBERS, datatype_of, to_binary
from modelless.controller.live.cluster.cluster import read_state
from modelless.controller.usecases.home import Home, home_folder
from modelless.variants.vocabulary import SLO

KEY_VARIABLE: Final = "MODELLESS_KEY"
"""The environment variable with the key that requests bear."""

JSON_LENGTH = "inference-header-content-length"

_ERRORS: Final = (
    *(InvalidInputError, NotFoundError, PayloadTooLargeError, UnsupportedEncodingError),
    *(InfeasibleError, OverloadedError, UnavailableError, DeadlineExceededError),
    *(UnauthorizedError, ForbiddenError),
)
_BY_STATUS: Final = {error.http_status: error for error in _ERRORS}


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """One request, which may be sent any number of times.

    Attributes:
        body: JSON and tensors.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes

    def to_bytes(self, host: str) -> bytes:
        """The whole HTTP/1.1 request for a connection to ``host``."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body


@dataclass(frozen=True, slots=True, eq=False)
class InferReply:
    """A reply.

    Attributes:
        status: of HTTP; 200 for an answer.
        parameters: of the reply: variant, accuracy, latencies, ...; a refusal has only
            ``receipt_id``.
        classes: for outputs asked for as classes: for each item (score, index, label), best first.
        error: the server's message; empty with an answer.
        latency_ms: until the end of the reply, by the client's clock; 0 if it is not timed.
    """

    status: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    classes: Mapping[str, Sequence[Sequence[tuple[float, int, str]]]] = field(default_factory=dict)
    error: str = ""
    latency_ms: float = 0.0

    @property
    def is_answer(self) -> bool:
        """Whether it holds an answer, not a refusal or an error."""
        return self.status == 200

    def raise_for_status(self) -> None:
        """Raise the error that the status stands for, in the server's words; nothing if it is 200.

        Raises:
            InfeasibleError: nothing meets the limits.
            OverloadedError, DeadlineExceededError, UnavailableError: it may succeed later.
            InvalidInputError, NotFoundError: the query is wrong.
        """
        if not self.is_answer:
            raise error_of(self.status, self.error)


def encode_infer(
    name: str,
    inputs: Mapping[str, NDArray[Any]],
    slo: SLO | None = None,
    *,
    classes: Mapping[str, int] | None = None,
    query_id: str | None = None,
) -> EncodedQuery:
    """A query with its tensors as binary data.

    Args:
        name: a task, ``task/model`` or ``task/model/variant``.
        inputs: by name; any shape, dtypes of the protocol.
        slo: the limits; none if None.
        classes: outputs wanted as that many likeliest classes; all outputs as binary tensors if
            None.
    """
    described, chunks = [], []
    for input_name, array in inputs.items():
        raw = np.asarray(to_binary(array))
        described.append(
            {
                "name": input_name,
                "shape": list(array.shape),
                "datatype": datatype_of(array),
                "parameters": {"binary_data_size": raw.nbytes},
            }
        )
        chunks.append(raw.tobytes())
    document: dict[str, Any] = {"inputs": described}
    if query_id is not None:
        document["id"] = query_id
    parameters: dict[str, Any] = {**parameters_of(slo or SLO())}
    if classes is None:
        parameters["binary_data_output"] = True
    else:
        document["outputs"] = [
            {"name": output, "parameters": {"classification": count}}
            for output, count in classes.items()
        ]
    if parameters:
        document["parameters"] = parameters
    head = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    body = b"".join([head, *chunks])
    headers = {
        "content-type": "application/octet-stream",
        JSON_LENGTH: str(len(head)),
        "content-length": str(len(body)),
    }
    return EncodedQuery(f"/v2/models/{quote(name)}/infer", headers, body)


def decode_infer(status: int, json_length: int | None, body: bytes) -> InferReply:
    """Read a reply.

    Args:
        status: of HTTP.
        json_length: the header ``Inference-Header-Content-Length``; None if there is none.

    Raises:
        InvalidInputError: it is not a reply of this protocol.
    """
    try:
        document = json.loads(body[:json_length])
        if status != 200:
            told = {key: document[key] for key in ("receipt_id",) if key in document}
            return InferReply(status, told, error=str(document["error"]))
        tensors: dict[str, NDArray[Any]] = {}
        classes: dict[str, list[list[tuple[float, int, str]]]] = {}
        offset = len(body) if json_length is None else json_length
        for output in document["outputs"]:
            name, shape, datatype = output["name"], output["shape"], output["datatype"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                if offset + size > len(body):
                    raise ValueError("the body is shorter than it says")
                dtype = NUMBERS[datatype]
                array = np.frombuffer(body, dtype, size // dtype.itemsize, offset)
                tensors[name] = array.reshape(shape)
                offset += size
            elif datatype == "BYTES":
                found = [read_class(text) for text in output["data"]]
                width = shape[-1]
                classes[name] = [found[i : i + width] for i in range(0, len(found), width)]
            else:
                tensors[name] = np.array(output["data"], NUMBERS[datatype]).reshape(shape)
        return InferReply(status, document.get("parameters", {}), tensors, classes)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidInputError.of(
            f"reply with status {status}", body[:80], "a reply of the protocol v2", str(error)
        ) from error


def read_class(text: str) -> tuple[float, int, str]:
    """``score:index:label`` as (score, index, label); the label may be missing."""
    score, index, *label = text.split(":", 2)
    return float(score), int(index), label[0] if label else ""


class Client:
    """A keep-alive connection to a running modelless; a context manager.

    Args:
        url: ``http://host:port``; default: the modelless that runs from ``home``.
        timeout_s: for connecting and for each reply.
        key: to send with each request; default: $MODELLESS_KEY.
        home: see ``home_folder``.

    Raises:
        InvalidInputError: the URL is not one.
        ModellessError: nothing is up.

    Examples:
        >>> with modelless.Client() as client:  # doctest: +SKIP
        ...     reply = client.infer("imagenet", {"image": photo}, latency_ms=40, min_accuracy=74)
        >>> reply.tensors["probabilities"].argmax(), reply.parameters["variant"]  # doctest: +SKIP
        (285, 'imagenet/efficientnet-lite2/int8-260@1')
    """

    def __init__(
        self,
        url: str | None = None,
        timeout_s: float = 30.0,
        *,
        key: str | None = None,
        home: Home = None,
    ) -> None:
        found = find_url(home, url)
        host, port = _split(found)
        is_tls = found.startswith("https:")
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=timeout_s)
        secret = key or os.environ.get(KEY_VARIABLE)
        self._headers = {"authorization": f"Bearer {secret}"} if secret else {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def infer(
        self,
        task: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        latency_ms: float | None = None,
        min_accuracy: float | None = None,
        max_cost_usd: float | None = None,
        classes: Mapping[str, int] | None = None,
    ) -> InferReply:
        """The reply to one query, which may be a refusal: see ``InferReply.raise_for_status``.

        Args:
            task: ``task``, ``task/model`` or ``task/model/variant``.
            inputs: tensors by name; the first axis counts items.
            latency_ms: deadline, milliseconds from arrival.
            min_accuracy: per cent.
            max_cost_usd: highest price of the query.
            classes: outputs wanted as that many likeliest classes; None for tensors.

        Raises:
            UnavailableError: there is no reply.
            InvalidInputError: a limit is out of range, or the reply is not of the protocol v2.
        """
        slo = SLO(latency_ms, min_accuracy, max_cost_usd)
        return self.send(encode_infer(task, inputs, slo, classes=classes))

    def send(self, query: EncodedQuery) -> InferReply:
        """The reply to an encoded query; raises as ``infer`` does."""
        started_s = time.perf_counter()
        status, headers, body = self._exchange("POST", query.path, query.headers, query.body)
        latency_ms = (time.perf_counter() - started_s) * 1e3
        length = headers.get(JSON_LENGTH)
        reply = decode_infer(status, int(length) if length is not None else None, body)
        return replace(reply, latency_ms=latency_ms)

    def get(self, path: str, document: object = None) -> Any:
        """The JSON document at ``path``, or the answer to ``document`` posted there.

        Raises:
            UnavailableError: there is no answer, or it is not JSON.
            ModellessError: the server's refusal, of the kind that its status stands for.
        """
        sent = None if document is None else json.dumps(document).encode()
        status, _, body = self._exchange("GET" if sent is None else "POST", path, {}, sent)
        url = f"http://{self._connection.host}:{self._connection.port}{path}"
        try:
            document = json.loads(body)
        except ValueError:
            raise UnavailableError(
                f"{url} answers {status} and no JSON: is that modelless?"
            ) from None
        if status != 200:
            words = document.get("error", "") if isinstance(document, dict) else ""
            raise error_of(status, str(words) or f"{url} answers {status}")
        return document

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection
        try:
            if connection.sock is None:
                connection.connect()
                made: Any = connection.sock
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.request(method, path, body, {**headers, **self._headers})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnavailableError(
                f"http://{connection.host}:{connection.port} does not answer "
                f"({getattr(error, 'strerror', None) or error!r}); "
                "'modelless status' says what is up"
            ) from error


def parameters_of(slo: SLO) -> dict[str, float]:
    """The limits that are set, as the ``parameters`` of a request."""
    names = ("latency_ms", "min_accuracy", "max_cost_usd")
    return {name: value for name in names if (value := getattr(slo, name)) is not None}


def find_url(home: Home, url: str | None) -> str:
    """``url``, or that of the modelless that runs from ``home``.

    Raises:
        ModellessError: nothing is up (exit code 1).
        InvalidInputError: ``url`` is not one.
    """
    if url is not None:
        written = url if "://" in url else f"http://{url}"
        _split(written)
        return written.rstrip("/")
    state = read_state(home_folder(home))
    if state is None:
        raise ModellessError("nothing is up: start it with 'modelless up'")
    return state.operators_url or state.url


def get_json(url: str, path: str, timeout_s: float = 10.0) -> Any:
    """The JSON document at ``path`` of a server; raises as ``Client.get`` does."""
    with Client(url, timeout_s) as client:
        return client.get(path)


def error_of(status: int, message: str) -> ModellessError:
    """The error that a reply with this HTTP status stands for."""
    return _BY_STATUS.get(status, ModellessError)(message)


def _split(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError.of("url", url, "http://host:port or https://host:port")
    return parts.hostname, port
