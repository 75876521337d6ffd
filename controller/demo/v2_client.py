"""A small client of the Open Inference Protocol v2: tensors as bytes, the standard library's HTTP.

``encode_infer`` and ``decode_infer`` are pure, so that who needs many queries a second prepares the
bytes beforehand and reads the replies by other means (see ``load``).
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError, UnavailableError
from modelless.controller.api.v2_tensors import NUMBERS, datatype_of, to_binary
from modelless.controller.demo.slos import parameters_of
from modelless.variants.vocabulary import SLO

JSON_LENGTH = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """One request, ready to be sent as often as one likes.

    Attributes:
        path: of the URL.
        headers: name to value, without ``host``.
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
    """What came back.

    Attributes:
        status: of HTTP; 200 for an answer.
        parameters: of the reply: variant, accuracy, latencies, ...; of
            a refusal only ``receipt_id``.
        tensors: outputs by name.
        classes: for outputs asked for as classes: for each item (score, index, label), best first.
        error: the server's words; empty with an answer.
        latency_ms: from sending to having read the reply, by the client's clock; 0 if not timed.
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


def encode_infer(
    name: str,
    inputs: Mapping[str, NDArray[Any]],
    slo: SLO | None = None,
    *,
    classes: Mapping[str, int] | None = None,
    query_id: str | None = None,
) -> EncodedQuery:
    """A query whose tensors go as binary data.

    Args:
        name: a task, ``task/model`` or ``task/model/variant``.
        inputs: by name; any shape, dtypes of the protocol.
        slo: the limits; none if None.
        classes: outputs wanted as that many likeliest classes; all outputs as binary tensors if
            None.
        query_id: comes back with the reply.
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
    parameters: dict[str, Any] = parameters_of(slo) if slo is not None else {}
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
        body: all of it.

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
    """One keep-alive connection. Use as a context manager.

    Args:
        url: ``http://host:port``.
        timeout_s: for connecting and for each reply.
    """

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise InvalidInputError.of("url", url, "http://host:port")
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=timeout_s
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def infer(self, query: EncodedQuery) -> InferReply:
        """Send a query and wait for its reply, which may be a refusal.

        Raises:
            UnavailableError: there is no server, or it went away.
            InvalidInputError: the reply is not of this protocol.
        """
        started_s = time.perf_counter()
        status, headers, body = self._exchange("POST", query.path, query.headers, query.body)
        latency_ms = (time.perf_counter() - started_s) * 1e3
        length = headers.get(JSON_LENGTH)
        reply = decode_infer(status, int(length) if length is not None else None, body)
        return InferReply(
            reply.status, reply.parameters, reply.tensors, reply.classes, reply.error, latency_ms
        )

    def get(self, path: str) -> Any:
        """The JSON document at ``path``; raises as ``infer`` does."""
        status, _, body = self._exchange("GET", path, {}, None)
        try:
            if status != 200:
                raise ValueError(f"status {status}")
            return json.loads(body)
        except ValueError as error:
            raise InvalidInputError.of(f"GET {path}", body[:80], "JSON", str(error)) from error

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection
        try:
            if connection.sock is None:
                connection.connect()
                made: Any = connection.sock
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.request(method, path, body, dict(headers))
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnavailableError(
                f"no reply from {connection.host}:{connection.port} ({error!r}): is it up?"
            ) from error
