"""Which endpoint a method and a path mean. Model names have slashes: no common router does it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote_to_bytes

_MAX_PATH_BYTES = 512
_CACHED_PATHS = 2048


class Endpoint(StrEnum):
    """The kind of a request, by its path."""

    HEALTH_LIVE = "health_live"
    HEALTH_READY = "health_ready"
    SERVER_METADATA = "server_metadata"
    MODEL_METADATA = "model_metadata"
    MODEL_READY = "model_ready"
    MODEL_CONFIG = "model_config"
    STATISTICS = "statistics"
    INFER = "infer"
    REPOSITORY_INDEX = "repository_index"
    LOAD = "load"
    UNLOAD = "unload"
    OPENAPI = "openapi"
    FEEDBACK = "feedback"
    QUOTE = "quote"
    BATCHES = "batches"
    BATCH = "batch"
    BATCH_CANCEL = "batch_cancel"
    METRICS = "metrics"
    STATUS = "status"
    CONSOLE = "console"
    CONSOLE_ACT = "console_act"
    RECEIPT = "receipt"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint and what the path says of it.

    Attributes:
        name: of the model, slashes and all: ``imagenet``, ``imagenet/efficientnet-lite0``; of a
            receipt or an offline run its id; of the console the page; else "".
        version: as written in the path; None if it is not.
        allow: for METHOD_NOT_ALLOWED, the methods the path has.
    """

    endpoint: Endpoint
    name: str = ""
    version: str | None = None
    allow: tuple[str, ...] = ()


_NOT_FOUND = Route(Endpoint.NOT_FOUND)
_GET = ("GET", "HEAD")
_POST = ("POST",)
_FIXED = {
    "v2": (Endpoint.SERVER_METADATA, _GET),
    "v2/health/live": (Endpoint.HEALTH_LIVE, _GET),
    "v2/health/ready": (Endpoint.HEALTH_READY, _GET),
    "v2/models/stats": (Endpoint.STATISTICS, _GET),
    "v2/repository/index": (Endpoint.REPOSITORY_INDEX, _POST),
    "modelless/feedback": (Endpoint.FEEDBACK, _POST),
    "modelless/quote": (Endpoint.QUOTE, _POST),
    "modelless/batches": (Endpoint.BATCHES, _POST),
    "modelless/status": (Endpoint.STATUS, _GET),
    "console": (Endpoint.CONSOLE, _GET),
    "metrics": (Endpoint.METRICS, _GET),
    "openapi.json": (Endpoint.OPENAPI, _GET),
}
_ACTIONS = {
    "infer": (Endpoint.INFER, _POST),
    "ready": (Endpoint.MODEL_READY, _GET),
    "config": (Endpoint.MODEL_CONFIG, _GET),
    "stats": (Endpoint.STATISTICS, _GET),
}
_REPOSITORY = "v2/repository/models/"
_CHANGES = {"load": Endpoint.LOAD, "unload": Endpoint.UNLOAD}
_BY_ID = {
    ("receipts",): (Endpoint.RECEIPT, _GET),
    ("batches",): (Endpoint.BATCH, _GET),
    ("batches", "cancel"): (Endpoint.BATCH_CANCEL, _POST),
}
"""By the parts of ``modelless/.../{id}/...`` around the id."""
_CONSOLE = "console/"
_ACTS = frozenset({"console/policies", "console/try"})
_SEGMENT = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,127}")


def route(method: str, raw_path: bytes | str) -> Route:
    """The route of a request. Pure; the paths seen lately are remembered, a bounded number of them.

    Args:
        method: in capitals.
        raw_path: as it came, still percent-encoded; a query string is left aside.
    """
    if len(raw_path) > _MAX_PATH_BYTES:
        return _NOT_FOUND
    return _route(method, raw_path)


@lru_cache(maxsize=_CACHED_PATHS)
def _route(method: str, raw_path: bytes | str) -> Route:
    path = _decode_path(raw_path)
    if path is None:
        return _NOT_FOUND
    name, version = "", None
    if path in _FIXED:
        endpoint, methods = _FIXED[path]
    elif path.startswith("modelless/"):
        _, kind, *rest = path.split("/")
        found = _BY_ID.get((kind, *rest[1:]))
        if found is None or not rest:
            return _NOT_FOUND
        (endpoint, methods), name = found, rest[0]
    elif path in _ACTS and method == "POST":
        endpoint, methods, name = Endpoint.CONSOLE_ACT, _POST, path.removeprefix(_CONSOLE)
    elif path.startswith(_CONSOLE):
        endpoint, methods, name = Endpoint.CONSOLE, _GET, path.removeprefix(_CONSOLE)
    elif path.startswith("v2/models/"):
        segments = path.split("/")[2:]
        endpoint, methods = _ACTIONS.get(segments[-1], (Endpoint.MODEL_METADATA, _GET))
        if endpoint is not Endpoint.MODEL_METADATA:
            segments.pop()
        if len(segments) > 2 and segments[-2] == "versions":
            version = segments[-1]
            del segments[-2:]
        if not segments:
            return _NOT_FOUND
        name = "/".join(segments)
    elif path.startswith(_REPOSITORY) and path.rpartition("/")[2] in _CHANGES:
        name, _, change = path.removeprefix(_REPOSITORY).rpartition("/")
        if not name:
            return _NOT_FOUND
        endpoint, methods = _CHANGES[change], _POST
    else:
        return _NOT_FOUND
    if method not in methods:
        return Route(Endpoint.METHOD_NOT_ALLOWED, name, version, methods)
    return Route(endpoint, name, version)


def _decode_path(raw_path: bytes | str) -> str | None:
    """The path decoded once, without its outer slashes; None if any segment is not a plain name."""
    try:
        raw = raw_path.encode("ascii") if isinstance(raw_path, str) else raw_path
        path = unquote_to_bytes(raw.partition(b"?")[0]).decode("ascii")
    except UnicodeError:
        return None
    if not path.startswith("/"):
        return None
    path = path[1:].removesuffix("/")
    if all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        return path
    return None
