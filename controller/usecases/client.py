"""Clients of a running modelless: the Open Inference Protocol v2 over HTTP.

``encode_infer`` and ``decode_infer`` are pure: a load generator encodes its queries beforehand and
reads the replies by other means.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypedDict, Unpack
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
from modelless.controller.api.v2_errors import (
    LengthRequiredError,
    PayloadTooLargeError,
    TooSlowError,
    UnsupportedEncodingError,
)
from modelless.controller.api.v2_tensors import BYTES, NUMBERS, datatype_of, from_binary, to_binary
from modelless.controller.live.cluster.running import read_state
from modelless.controller.usecases.home import Home, home_folder
from modelless.variants.vocabulary import SLO

KEY_VARIABLE: Final = "MODELLESS_KEY"
"""The environment variable with the key that requests bear."""

JSON_LENGTH: Final = "inference-header-content-length"
LATENCY: Final = "x-modelless-latency-ms"
IDEMPOTENCY_KEY: Final = "idempotency-key"

_FIRST_PAUSE_S: Final = 0.1
_TRIES: Final = 16
"""So many keys in a row for each known gateway lead to no other: then there is probably none."""
_ERRORS: Final = (
    *(InvalidInputError, NotFoundError, PayloadTooLargeError, UnsupportedEncodingError),
    *(InfeasibleError, OverloadedError, UnavailableError, DeadlineExceededError),
    *(UnauthorizedError, ForbiddenError, LengthRequiredError, TooSlowError),
)
_BY_STATUS: Final = {error.http_status: error for error in _ERRORS}


class QueryOptions(TypedDict, total=False):
    """What a query may say besides its task and inputs.

    Attributes:
        latency_ms: limit in milliseconds from arrival.
        min_accuracy: per cent.
        max_cost_usd: of the query.
        priority: 0 to 9, the most urgent.
        when_late: ``refuse`` or ``serve``.
        classes: outputs wanted as that many likeliest classes; None for tensors.
        slo: the name of limits in the server's settings.
        tenant: that the query belongs to; with keys, the key says it.
        cache_control: ``no-cache`` for an answer that is not from the cache, ``no-store`` for one
            that is not kept there either.
    """

    latency_ms: float | None
    min_accuracy: float | None
    max_cost_usd: float | None
    priority: int
    when_late: str | None
    classes: Mapping[str, int] | None
    slo: str | None
    tenant: str | None
    cache_control: str | None


_NAMES: Final = ("slo", "tenant", "cache_control")


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
        parameters: of the reply: variant, accuracy, latencies, ...; of a refusal or an error its
            ``code``, and ``field``, ``hint``, ``request_id``, ``receipt_id`` if they are known.
        tensors: outputs by name.
        classes: for outputs asked for as classes: for each item (score, index, label), best first.
        error: the server's message; empty with an answer.
        retry_after_s: when trying again makes sense; None if unknown or never.
        latency_ms: until the end of the reply, by the client's clock; 0 if it is not timed.
    """

    status: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    classes: Mapping[str, Sequence[Sequence[tuple[float, int, str]]]] = field(default_factory=dict)
    error: str = ""
    retry_after_s: float | None = None
    latency_ms: float = 0.0

    @property
    def is_answer(self) -> bool:
        """Whether it holds an answer, not a refusal or an error."""
        return self.status == 200

    def raise_for_status(self) -> InferReply:
        """Return the reply if it is an answer; else raise the error that its status stands for.

        Raises:
            InfeasibleError: nothing meets the limits.
            OverloadedError, DeadlineExceededError, UnavailableError: it may succeed later.
            InvalidInputError, NotFoundError: the query is wrong.
            UnauthorizedError, ForbiddenError: the key is not enough.
        """
        if self.is_answer:
            return self
        error = error_of(self.status, self.error)
        error.retry_after_s = self.retry_after_s
        error.field, error.hint = self.parameters.get("field", ""), self.parameters.get("hint", "")
        raise error


def encode_infer(
    name: str,
    inputs: Mapping[str, NDArray[Any]],
    slo: SLO | None = None,
    *,
    classes: Mapping[str, int] | None = None,
    query_id: str | None = None,
    names: Mapping[str, str | None] | None = None,
) -> EncodedQuery:
    """A query with its tensors as binary data. Its deadline is a header, which may be replaced.

    Args:
        name: a task, ``task/model`` or ``task/model/variant``.
        inputs: by name; any shape, dtypes of the protocol.
        slo: the limits; none if None.
        classes: outputs wanted as that many likeliest classes; all outputs as binary tensors if
            None.
        query_id: comes back with the reply.
        names: the parameters ``slo``, ``tenant`` and ``cache_control``.

    Raises:
        InvalidInputError: the protocol has no such dtype.
    """
    described, chunks = [], []
    for input_name, array in inputs.items():
        array = np.asarray(array)
        if datatype_of(array) is None:
            raise InvalidInputError.of(f"inputs.{input_name}: dtype", array.dtype.name, _DTYPES)
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
    slo = slo or SLO()
    parameters: dict[str, Any] = parameters_of(slo)
    latency_ms = parameters.pop("latency_ms", None)
    if slo.priority:
        parameters["priority"] = slo.priority
    if slo.when_late:
        parameters["when_late"] = slo.when_late
    parameters |= {key: value for key, value in (names or {}).items() if value is not None}
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
    if latency_ms is not None:
        headers[LATENCY] = repr(float(latency_ms))
    return EncodedQuery(f"/v2/models/{quote(name)}/infer", headers, body)


def _encode(
    task: str, inputs: Mapping[str, NDArray[Any]], options: Mapping[str, Any]
) -> EncodedQuery:
    """A query with these ``QueryOptions``."""
    names = {name: options.get(name) for name in _NAMES}
    limits = {key: each for key, each in options.items() if key not in (*_NAMES, "classes")}
    return encode_infer(task, inputs, SLO(**limits), classes=options.get("classes"), names=names)


_DTYPES: Final = f"{', '.join(str(dtype) for dtype in NUMBERS.values())}, bytes or text"


def decode_infer(status: int, headers: Mapping[str, str], body: bytes) -> InferReply:
    """Read a reply.

    Args:
        status: of HTTP.
        headers: of HTTP; names in lower case, or a mapping to which their case is the same.
        body: all of it.

    Raises:
        InvalidInputError: it is not a reply of this protocol.
    """
    try:
        offset = int(headers.get(JSON_LENGTH, len(body)))
        document = json.loads(body[:offset])
        if status != 200:
            error = str(document.pop("error"))
            return InferReply(status, document, error=error, retry_after_s=_retry_after_s(headers))
        tensors: dict[str, NDArray[Any]] = {}
        classes: dict[str, list[list[tuple[float, int, str]]]] = {}
        for output in document["outputs"]:
            name, shape, datatype = output["name"], output["shape"], output["datatype"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                if offset + size > len(body):
                    raise ValueError("the body is shorter than it says")
                if datatype not in NUMBERS and datatype != BYTES:
                    raise ValueError(f"datatype {datatype!r}")
                tensors[name] = from_binary(name, body, offset, size, datatype, shape)
                offset += size
            elif datatype == BYTES:
                found = [read_class(text) for text in output["data"]]
                width = shape[-1]
                classes[name] = [found[i : i + width] for i in range(0, len(found), width)]
            else:
                tensors[name] = np.array(output["data"], NUMBERS[datatype]).reshape(shape)
        return InferReply(status, document.get("parameters", {}), tensors, classes)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InvalidInputError.of(
            f"reply with status {status}", body[:80], "a reply of the protocol v2", str(error)
        ) from error


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if text.isdecimal():
            return int(text) * unit_s
    return None


def read_class(text: str) -> tuple[float, int, str]:
    """``score:index:label`` as (score, index, label); the label may be missing."""
    score, index, *label = text.split(":", 2)
    return float(score), int(index), label[0] if label else ""


class _Attempt(NamedTuple):
    """A query to be sent after a pause, with these headers, for a reply within ``left_s``."""

    pause_s: float
    headers: Mapping[str, str]
    left_s: float


_Came = tuple[int, Mapping[str, str], bytes] | UnavailableError
"""Status, headers and body of a reply; or that there is none."""


class _Keys:
    """The idempotency keys of a client's queries, which decide where a query goes.

    Keys that begin alike, up to the dot, go to one gateway. Replies tell to which; so a query gets
    a key for the gateway at which this client has the fewest open, of equals the last one: its
    model has just run. Until all gateways seem known, a query that would wait tries a new
    beginning, which leads to any of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateways = {secrets.token_hex(8): ""}  # by beginning; "": not known yet
        self._open: Counter[str] = Counter()  # by beginning
        self._last = ""
        self._in_vain = 0

    @contextmanager
    def key(self) -> Iterator[str]:
        """Yield a key for one query, which is open until this ends."""
        with self._lock:
            beginning = self._last = self._choose()
            self._open[beginning] += 1
        try:
            yield f"{beginning}.{secrets.token_hex(16)}"
        finally:
            with self._lock:
                self._open[beginning] -= 1
                if not self._open[beginning]:
                    del self._open[beginning]

    def _choose(self) -> str:
        best = min(self._gateways, key=lambda each: (self._open[each], each != self._last))
        all_known = self._in_vain >= _TRIES * len(self._gateways)
        return best if all_known or not self._open[best] else secrets.token_hex(8)

    def learn(self, key: str, reply: InferReply) -> None:
        """Note which gateway a query with the key went to."""
        gateway = str(reply.parameters.get("receipt_id", "")).rpartition("-")[0]
        beginning = key.partition(".")[0]
        with self._lock:
            before = self._gateways.get(beginning, "")
            if gateway in ("", before):
                return
            if before:  # gateways have come or gone: other keys go elsewhere, too
                self._gateways.clear()
            if gateway in self._gateways.values():
                self._gateways.pop(beginning, None)
                self._in_vain += 1
            else:
                self._gateways[beginning] = gateway
                self._in_vain = 0


class _Server:
    """The address of a server, and what every request to it has.

    Args:
        url, key, home: as of ``Client``.
    """

    def __init__(self, url: str | None, key: str | None, home: Home) -> None:
        self.url = find_url(home, url)
        self.host, self.port = _split(self.url)
        secret = _secret_of(key)
        self.headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self.keys = _Keys()

    def attempts(
        self, query: EncodedQuery, timeout_s: float, retries: int
    ) -> Generator[_Attempt, _Came, InferReply]:
        """Yield the attempts at a query, each for what came of it; return the reply.

        A query is sent again if its connection broke, or if nothing listened, or if the server
        refused it and said when to try again; each time with the same idempotency key and with what
        is left of its deadline.

        Args:
            query: the query.
            timeout_s: for all attempts.
            retries: how often it may be sent again.

        Raises:
            UnavailableError: there is no reply, and no attempt is left.
        """
        began_s, headers, wait_s, next_s = time.monotonic(), dict(query.headers), 0.0, 0.0
        end_s, latency_s = began_s + timeout_s, float(query.headers.get(LATENCY, "inf")) / 1e3
        with self.keys.key() as key:
            if retries:
                headers[IDEMPOTENCY_KEY] = key
            for left in range(retries, -1, -1):
                came = yield _Attempt(wait_s, headers, max(end_s - time.monotonic(), 1e-3))
                wait_s = next_s * random.uniform(0.5, 1.0)  # noqa: S311  (spreads retries)
                reply = None if isinstance(came, UnavailableError) else decode_infer(*came)
                if reply is not None:
                    wait_s = max(wait_s, reply.retry_after_s or 0.0)
                at_s = time.monotonic() + wait_s
                latency_left_s = latency_s - (at_s - began_s)
                is_last = not left or at_s >= end_s or latency_left_s <= 0.0
                if reply is None:
                    if is_last and isinstance(came, UnavailableError):
                        raise came
                elif is_last or reply.status not in (429, 503) or reply.retry_after_s is None:
                    if retries:
                        self.keys.learn(key, reply)
                    return replace(reply, latency_ms=(time.monotonic() - began_s) * 1e3)
                next_s = 2.0 * next_s or _FIRST_PAUSE_S
                if LATENCY in headers:
                    headers[LATENCY] = repr(latency_left_s * 1e3)
        raise AssertionError("the last attempt ends it")

    def unavailable(self, error: Exception) -> UnavailableError:
        """Return the error for a connection that broke, or that there is none to."""
        reason = getattr(error, "strerror", None) or repr(error)
        return UnavailableError(
            f"{self.url} does not answer ({reason}); 'modelless status' says what is up"
        )

    def too_late(self, timeout_s: float) -> DeadlineExceededError:
        """Return the error for a reply that did not come in time."""
        return DeadlineExceededError(f"{self.url} did not answer within {timeout_s:g} s")

    def read_json(self, path: str, status: int, body: bytes) -> Any:
        """Return the document of a reply; raises as ``Client.get`` does."""
        url = f"{self.url}{path}"
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


class Client:
    """Connections to a running modelless, kept open; a context manager, for any number of threads.

    Args:
        url: ``http://host:port``; default: the modelless that runs from ``home``.
        timeout_s: for each reply, with all attempts.
        retries: how often a query is sent again, if its connection broke or the server said when to
            try again. Its deadline holds for all attempts. Each query has an idempotency key, so
            that none is run twice (see the protocol's docs); without retries it has none.
        key: to send with each request; default: $MODELLESS_KEY.
        home: see ``home_folder``.

    Raises:
        InvalidInputError: the URL or the key is not one.
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
        retries: int = 5,
        key: str | None = None,
        home: Home = None,
    ) -> None:
        self._server = _Server(url, key, home)
        self._timeout_s, self._retries = timeout_s, retries
        self._idle: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def infer(
        self, task: str, inputs: Mapping[str, NDArray[Any]], **options: Unpack[QueryOptions]
    ) -> InferReply:
        """The reply to one query, which may be a refusal: see ``InferReply.raise_for_status``.

        Args:
            task: ``task``, ``task/model`` or ``task/model/variant``.
            inputs: tensors by name; the first axis counts items.
            options: limits and others, see ``QueryOptions``.

        Raises:
            UnavailableError: there is no reply, and no attempt is left.
            DeadlineExceededError: there is none within ``timeout_s``.
            InvalidInputError: a limit is out of range, or the reply is not of the protocol v2.
        """
        return self.send(_encode(task, inputs, options))

    def send(self, query: EncodedQuery) -> InferReply:
        """The reply to an encoded query; raises as ``infer`` does."""
        attempts = self._server.attempts(query, self._timeout_s, self._retries)
        try:
            attempt = next(attempts)
            while True:
                if attempt.pause_s:
                    time.sleep(attempt.pause_s)
                try:
                    came: _Came = self._exchange(
                        "POST", query.path, attempt.headers, query.body, attempt.left_s
                    )
                except UnavailableError as error:
                    came = error
                attempt = attempts.send(came)
        except StopIteration as done:
            reply: InferReply = done.value
            return reply

    def get(self, path: str, document: object = None) -> Any:
        """The JSON document at ``path``, or the answer to ``document`` posted there.

        Raises:
            UnavailableError: there is no answer, or it is not JSON.
            DeadlineExceededError: there is none within ``timeout_s``.
            ModellessError: the server's refusal, of the kind that its status stands for.
        """
        sent = None if document is None else json.dumps(document).encode()
        method = "GET" if sent is None else "POST"
        status, _, body = self._exchange(method, path, {}, sent, self._timeout_s)
        return self._server.read_json(path, status, body)

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, left_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        server = self._server
        try:
            connection = self._idle.pop()
        except IndexError:
            is_tls = server.url.startswith("https:")
            kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
            connection = kind(server.host, server.port)
        connection.timeout = left_s
        try:
            if connection.sock is None:
                connection.connect()
            made: Any = connection.sock
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(left_s)
            connection.request(method, path, body, {**headers, **server.headers})
            reply = connection.getresponse()
            told: Any = reply.headers
            found = reply.status, told, reply.read()
        except TimeoutError as error:
            connection.close()
            raise server.too_late(self._timeout_s) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.close()  # the others are probably broken, too
            raise server.unavailable(error) from error
        self._idle.append(connection)
        return found


class AsyncClient:
    """Connections to a running modelless for asyncio: as ``Client``; use it with ``async with``.

    Args:
        url, timeout_s, retries, key, home: as of ``Client``, which raises the same errors.
        connections: how many may be open; more queries wait.

    Examples:
        >>> async with modelless.AsyncClient() as client:  # doctest: +SKIP
        ...     replies = await asyncio.gather(
        ...         *(client.infer("imagenet", {"image": photo}) for photo in photos)
        ...     )
    """

    def __init__(
        self,
        url: str | None = None,
        timeout_s: float = 30.0,
        *,
        retries: int = 5,
        key: str | None = None,
        home: Home = None,
        connections: int = 100,
    ) -> None:
        self._server = _Server(url, key, home)
        self._timeout_s, self._retries = timeout_s, retries
        self._connections = connections
        self._session: Any = None

    async def __aenter__(self) -> AsyncClient:
        import aiohttp  # which ``import modelless`` does without

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            headers=self._server.headers,
            skip_auto_headers=("accept-encoding", "user-agent"),
            timeout=aiohttp.ClientTimeout(None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def infer(
        self, task: str, inputs: Mapping[str, NDArray[Any]], **options: Unpack[QueryOptions]
    ) -> InferReply:
        """The reply to one query; see ``Client.infer``."""
        return await self.send(_encode(task, inputs, options))

    async def send(self, query: EncodedQuery) -> InferReply:
        """The reply to an encoded query; raises as ``infer`` does."""
        attempts = self._server.attempts(query, self._timeout_s, self._retries)
        try:
            attempt = next(attempts)
            while True:
                await asyncio.sleep(attempt.pause_s)
                try:
                    came: _Came = await self._exchange(
                        "POST", query.path, attempt.headers, query.body, attempt.left_s
                    )
                except UnavailableError as error:
                    came = error
                attempt = attempts.send(came)
        except StopIteration as done:
            reply: InferReply = done.value
            return reply

    async def get(self, path: str) -> Any:
        """The JSON document at ``path``; see ``Client.get``."""
        status, _, body = await self._exchange("GET", path, {}, None, self._timeout_s)
        return self._server.read_json(path, status, body)

    async def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, left_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        import aiohttp

        url = self._server.url + path
        try:
            async with (
                asyncio.timeout(left_s),
                self._session.request(method, url, data=body, headers=headers) as reply,
            ):
                return reply.status, reply.headers, await reply.read()
        except TimeoutError as error:
            raise self._server.too_late(self._timeout_s) from error
        except (OSError, aiohttp.ClientError) as error:
            raise self._server.unavailable(error) from error


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


def _secret_of(key: str | None) -> str:
    """The key, or that of the environment, without white space around it; empty if there is none.

    The error does not tell the key.
    """
    secret = (key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not secret.isascii() or not secret.isprintable():
        error = InvalidInputError(
            f"{'key' if key else KEY_VARIABLE}: got one with other characters than those of "
            "printable ASCII; allowed: a key as 'modelless key create' prints it."
        )
        error.field = "key" if key else KEY_VARIABLE
        raise error
    return secret


def _split(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        host.encode("idna")  # which refuses names with empty or long parts
    except ValueError:
        parts, port, host = urlsplit(""), 0, ""
    is_plain = host.isprintable() and " " not in host
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise InvalidInputError.of("url", url, "http://host:port or https://host:port")
    return host, port
