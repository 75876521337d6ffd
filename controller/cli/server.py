"""Talking to the running modelless: where it is, what it says, and what its refusals mean here."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from modelless.common.errors import (
    DeadlineExceededError,
    InfeasibleError,
    InvalidInputError,
    ModellessError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)

NOTHING_UP: Final = "nothing is up: start it with 'modelless up'"
_TIMEOUT_S: Final = 10.0
_BY_STATUS: Final[dict[int, type[ModellessError]]] = {
    400: InvalidInputError,
    404: NotFoundError,
    413: InvalidInputError,
    415: InvalidInputError,
    422: InfeasibleError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def find_url(home: Path, url: str | None) -> str:
    """``url``, or that of the modelless that runs from ``home``.

    Raises:
        ModellessError: nothing is up (exit code 1).
        InvalidInputError: ``url`` is not one.
    """
    if url is not None:
        written = url if "://" in url else f"http://{url}"
        _split(written)
        return written.rstrip("/")
    from modelless.controller.live.cluster.cluster import read_state

    state = read_state(home)
    if state is None:
        raise ModellessError(NOTHING_UP)
    return state.url


def get_json(url: str, path: str, timeout_s: float = _TIMEOUT_S) -> Any:
    """The JSON document at ``path``.

    Raises:
        UnavailableError: there is no answer.
        ModellessError: the server's refusal, in its own words, of the kind its status means.
    """
    host, port = _split(url)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        status, body = reply.status, reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"{url} does not answer ({getattr(error, 'strerror', None) or error!r}); "
            "'modelless status' says what is up"
        ) from None
    finally:
        connection.close()
    try:
        document = json.loads(body)
    except ValueError:
        raise UnavailableError(
            f"{url}{path} answers {status} and no JSON: is that modelless?"
        ) from None
    if status != 200:
        words = document.get("error", "") if isinstance(document, dict) else ""
        raise error_of(status, str(words) or f"{url}{path} answers {status}")
    return document


def error_of(status: int, message: str) -> ModellessError:
    """The error that a reply with this HTTP status stands for."""
    return _BY_STATUS.get(status, ModellessError)(message)


def _split(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidInputError.of("url", url, "http://host:port")
    return parts.hostname, port
