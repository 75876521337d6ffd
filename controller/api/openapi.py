"""Describes the HTTP interface in OpenAPI, by the constants with which requests are checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import modelless
from modelless.controller.api.batches import BatchRequest
from modelless.controller.api.feedback import MOST_AT_ONCE, RECEIPT
from modelless.controller.api.quotes import PLACEMENT_FIELDS
from modelless.controller.api.request_limits import DEFAULT_LIMITS
from modelless.controller.api.v2_headers import (
    SLO_HEADERS,
    SLO_NAME_PARAMETER,
    TENANT_PARAMETER,
)
from modelless.controller.api.v2_reply import REPLY_PARAMETERS, Reply, render_json
from modelless.controller.api.v2_request import (
    CACHE_CONTROLS,
    CACHE_PARAMETER,
    EXPLAIN_PARAMETER,
    PROTOCOL_PARAMETERS,
)
from modelless.controller.api.v2_tensors import BF16, DATATYPES
from modelless.variants.signature import MAX_ITEMS
from modelless.variants.vocabulary import WHEN_LATE

_Schema = Mapping[str, Any]

_TEXT: Final[_Schema] = {"type": "string"}
_NUMBER: Final[_Schema] = {"type": "number"}
_FLAG: Final[_Schema] = {"type": "boolean"}
_COUNT: Final[_Schema] = {"type": "integer", "minimum": 0}
_SHORT: Final[_Schema] = {"type": "string", "minLength": 1, "maxLength": 256}
_PLAIN: Final = "[a-z0-9][a-z0-9._-]{0,63}"
_NO_DOTS: Final = {"pattern": r"\.\."}
_NAME: Final[_Schema] = {"type": "string", "pattern": f"^{_PLAIN}$", "not": _NO_DOTS}
_PARTS: Final[Mapping[str, _Schema]] = {
    "name": {
        "type": "string",
        "description": "A task, `task/model` or `task/model/variant`, which may have `@version`",
        "pattern": rf"^{_PLAIN}(/{_PLAIN}(/{_PLAIN}(@[1-9][0-9]{{0,5}})?)?)?$",
        "not": _NO_DOTS,
    },
    "receipt_id": {"type": "string", "pattern": f"^{RECEIPT.pattern}$"},
    "batch_id": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
}
"""The parts of paths that clients fill in."""

_LIMITS: Final[Mapping[str, _Schema]] = {
    "latency_ms": {"type": "number", "exclusiveMinimum": 0, "maximum": 3_600_000},
    "min_accuracy": {"type": "number", "minimum": 0, "maximum": 100},
    "max_cost_usd": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000},
    "priority": {"type": "integer", "minimum": -1, "maximum": 9},
    "when_late": {"enum": list(WHEN_LATE)},
    TENANT_PARAMETER: _NAME,
    SLO_NAME_PARAMETER: _TEXT,
}


def _object(properties: Mapping[str, _Schema], *required: str, closed: bool = True) -> _Schema:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return found


def _whole(properties: Mapping[str, _Schema]) -> _Schema:
    """Return the schema of an object that has all of these properties."""
    return _object(properties, *properties)


def _list(of: _Schema, **bounds: int) -> _Schema:
    return {"type": "array", "items": of, **bounds}


def _optional(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_SHAPE: Final = _list(_COUNT, maxItems=DEFAULT_LIMITS.max_dims)
_SPEC: Final = _whole({"name": _TEXT, "datatype": _TEXT, "shape": _list({"type": "integer"})})
_CONFIGURED: Final = _whole({"name": _TEXT, "data_type": _TEXT, "dims": _list({"type": "integer"})})
_DURATION: Final = _whole({"count": _COUNT, "ns": _COUNT})

_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        **{name: _optional(schema) for name, schema in _LIMITS.items()},
        **{name: {} for name in PROTOCOL_PARAMETERS},
        "binary_data_output": _optional(_FLAG),
        EXPLAIN_PARAMETER: _optional(_FLAG),
        CACHE_PARAMETER: _optional({"enum": [*CACHE_CONTROLS]}),
    },
    "patternProperties": {"^triton_": {}},
    "additionalProperties": False,
}
_QUERY: Final = _object(
    {
        "id": _optional({"type": "string", "maxLength": DEFAULT_LIMITS.max_id_chars}),
        "model_name": {},
        "model_version": {},
        "parameters": _optional(_PARAMETERS),
        "inputs": _list(
            _object(
                {
                    "name": _SHORT,
                    "datatype": {"enum": [each for each in DATATYPES if each != BF16]},
                    "shape": _SHAPE,
                    "data": _list({}),
                    "parameters": _optional(
                        _object({"binary_data_size": {"type": "null"}, "content_type": {}})
                    ),
                },
                "name", "datatype", "shape", "data",
            ),
            minItems=1,
            maxItems=DEFAULT_LIMITS.max_tensors,
        ),
        "outputs": _optional(
            _list(
                _object(
                    {
                        "name": _SHORT,
                        "parameters": _optional(
                            _object(
                                {
                                    "binary_data": _FLAG,
                                    "classification": {**_COUNT, "maximum": 2**31 - 1},
                                    "content_type": {},
                                }
                            )
                        ),
                    },
                    "name",
                ),
                maxItems=DEFAULT_LIMITS.max_tensors,
            )
        ),
    },
    "inputs",
)  # fmt: skip

_ANSWER: Final = _object(
    {
        "model_name": _TEXT,
        "model_version": _TEXT,
        "id": _TEXT,
        "parameters": _object(
            {
                name: {"type": ["string", "number", "object", "null"], "description": meaning}
                for name, meaning in REPLY_PARAMETERS.items()
            },
            closed=False,
        ),
        "outputs": _list(
            _object(
                {
                    "name": _TEXT,
                    "datatype": {"enum": list(DATATYPES)},
                    "shape": _list(_COUNT),
                    "data": _list({}),
                    "parameters": _whole({"binary_data_size": _COUNT}),
                },
                "name", "datatype", "shape",
            )
        ),
    },
    "model_name", "model_version", "parameters", "outputs",
)  # fmt: skip

_ERROR: Final = _object(
    {
        "error": _TEXT,
        "code": _TEXT,
        "field": _TEXT,
        "hint": _TEXT,
        "request_id": _TEXT,
        "receipt_id": _TEXT,
        "explanation": {"type": "object"},
    },
    "error", "code",
)  # fmt: skip

_STATISTICS: Final = _whole(
    {
        "model_stats": _list(
            _object(
                {
                    "name": _TEXT,
                    "version": _TEXT,
                    "inference_count": _COUNT,
                    "execution_count": _COUNT,
                    "inference_stats": _object(
                        {"success": _DURATION, "fail": _DURATION, "compute_infer": _DURATION}
                    ),
                }
            )
        )
    }
)

_FEEDBACK: Final = _whole(dict.fromkeys(("counted", "passed_on", "ignored"), _COUNT))

_PLACEMENT: Final = _optional(
    _whole(
        {
            name: {"type": ["string", "number"], "description": meaning}
            for name, meaning in PLACEMENT_FIELDS.items()
        }
    )
)
_ASKED: Final = _object(
    {
        "task": _PARTS["name"],
        "items": {"type": "integer", "minimum": 1, "maximum": DEFAULT_LIMITS.max_body_bytes},
        "item_size": {**_COUNT, "maximum": DEFAULT_LIMITS.max_body_bytes},
        "parameters": _optional(_PARAMETERS),
    },
    "task",
)
_QUOTE: Final = _object(
    {
        "task": _TEXT,
        "latency_ms": _NUMBER,
        "feasible": _FLAG,
        "reason": _optional(_TEXT),
        "probability": {"type": "number", "minimum": 0, "maximum": 1},
        **dict.fromkeys(("serves", "fastest", "most_accurate", "cheapest"), _PLACEMENT),
        "nearest_limits": _list({"type": "object"}),
        "load_ms": _optional(_NUMBER),
    },
    "task", "feasible", "probability",
)  # fmt: skip


def _told(name: str, value: _Schema) -> _Schema:
    """Return an entry of feedback: one value, or one for each item of the query."""
    entry = {"receipt_id": _PARTS["receipt_id"]}
    entry |= {other: {"type": "null"} for other in ("correct", "label", "score")}
    entry[name] = {"anyOf": [value, _list(value, maxItems=MAX_ITEMS)]}
    return _object(entry, "receipt_id", name)


_ENTRIES: Final = _whole(
    {
        "feedback": _list(
            {
                "anyOf": [
                    _told("correct", _FLAG),
                    _told("label", {"type": ["integer", "string"]}),
                    _told("score", {"type": "number", "minimum": 0, "maximum": 1}),
                ]
            },
            minItems=1,
            maxItems=MOST_AT_ONCE,
        )
    }
)

_BATCH: Final = _object(
    {
        **dict.fromkeys(("id", "task", "input", "output"), _TEXT),
        "state": {"enum": ["running", "done", "failed", "cancelled"]},
        "rows": _optional(_COUNT),
        "rows_done": _COUNT,
        "error": _optional(_TEXT),
        "served_by": {"type": "object", "additionalProperties": _COUNT},
    },
    "id", "state", "rows_done",
)  # fmt: skip

_RUN: Final = BatchRequest.model_json_schema()
_RUN["properties"]["task"] = _PARTS["name"]

_PINNED: Final = _whole({"name": _TEXT, "pinned": _FLAG})
_READY: Final = _object({"live": _FLAG, "ready": _FLAG, "not_served": {"type": "object"}}, "ready")

_GETS: Final[Mapping[str, tuple[str, _Schema]]] = {
    "/v2": (
        "The server's name, version and extensions",
        _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}, "name", "version"),
    ),
    "/v2/health/live": (
        "Whether the gateway is alive",
        _object({"live": _FLAG, "problem": _TEXT}, "live"),
    ),
    "/v2/health/ready": ("Whether every task is served", _READY),
    "/v2/models/stats": ("Counts and times of queries and batches, by task", _STATISTICS),
    "/v2/models/{name}": (
        "The inputs and outputs of a task",
        _object(
            {
                "name": _TEXT,
                "versions": _list(_TEXT),
                "platform": _TEXT,
                "inputs": _list(_SPEC),
                "outputs": _list(_SPEC),
                "parameters": {"type": "object"},
            },
            "name", "versions", "platform", "inputs", "outputs",
        ),
    ),
    "/v2/models/{name}/ready": (
        "Whether a query for the name can be answered",
        _object({"name": _TEXT, "ready": _FLAG, "reason": _TEXT}, "name", "ready"),
    ),
    "/v2/models/{name}/config": (
        "Triton's model configuration, as far as it applies",
        _object(
            {
                "name": _TEXT,
                "platform": _TEXT,
                "backend": _TEXT,
                "max_batch_size": _COUNT,
                "input": _list(_CONFIGURED),
                "output": _list(_CONFIGURED),
            },
            "name", "max_batch_size", "input", "output",
        ),
    ),
    "/v2/models/{name}/stats": ("Counts and times of queries and batches", _STATISTICS),
    "/modelless/receipts/{receipt_id}": ("The record of a decision", {"type": "object"}),
    "/modelless/batches/{batch_id}": ("What has become of an offline run", _BATCH),
    "/modelless/status": ("For operators: the cluster now", {"type": "object"}),
    "/openapi.json": ("This document", {"type": "object"}),
    "/metrics": ("For operators: metrics for Prometheus", _TEXT),
    "/console": ("For operators: the cluster now, as a page", _TEXT),
}  # fmt: skip
"""What each tells, and the schema of the answer."""

_INDEX: Final = _list(
    _object({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT}, "name", "state")
)
_POSTS: Final[Mapping[str, tuple[str, _Schema, _Schema | None]]] = {
    "/v2/models/{name}/infer": ("Inference", _ANSWER, _QUERY),
    "/v2/repository/index": ("The names that clients can ask for", _INDEX, None),
    "/v2/repository/models/{name}/load": ("For operators: pin", _PINNED, None),
    "/v2/repository/models/{name}/unload": ("For operators: unpin", _PINNED, None),
    "/modelless/feedback": ("Right answers of past queries", _FEEDBACK, _ENTRIES),
    "/modelless/quote": ("What a query would get now", _QUOTE, _ASKED),
    "/modelless/batches": ("Begin an offline run, or go on with it", _BATCH, _RUN),
    "/modelless/batches/{batch_id}/cancel": ("End an offline run", _BATCH, None),
    "/console/policies": ("For operators: a form of a console's page", _TEXT, None),
}
"""The same, and the schema of the body."""

_UNREADY: Final = ("/v2/health/live", "/v2/health/ready", "/v2/models/{name}/ready")
_OPEN_TO_ALL: Final = ("/v2", "/v2/health/live", "/v2/health/ready", "/openapi.json")
_ALWAYS_FOUND: Final = (*_OPEN_TO_ALL, "/v2/models/stats", "/v2/repository/index")
_OF_ANY: Final = (400, 405, 408, 413, 429, 500, 503)
_OF_QUERIES: Final = (411, 415, 422, 504)
"""Statuses of errors."""


def _content(schema: _Schema, kind: str = "application/json") -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _operation(path: str, summary: str, answer: _Schema, asked: _Schema | None) -> dict[str, Any]:
    statuses = {*_OF_ANY}
    if path not in _ALWAYS_FOUND:
        statuses.add(404)
    if path not in _OPEN_TO_ALL:
        statuses |= {401, 403}
    if asked is _QUERY:
        statuses |= {*_OF_QUERIES}
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": _content(answer)}}
    error = {"$ref": "#/components/schemas/Error"}
    for status in sorted(statuses):
        schema = {"anyOf": [error, answer]} if status == 503 and path in _UNREADY else error
        responses[str(status)] = {"description": "An error", "content": _content(schema)}
    found: dict[str, Any] = {"summary": summary, "responses": responses}
    if asked is not None:
        found["requestBody"] = {"required": True, "content": _content(asked)}
    if path not in _OPEN_TO_ALL:
        found["security"] = [{"key": []}, {}]
    return found


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _PARTS.items()
        if f"{{{name}}}" in path
    ]


@cache
def openapi() -> Reply:
    """``GET /openapi.json``: the description, OpenAPI 3.1."""
    gets = {path: _operation(path, *each, None) for path, each in _GETS.items()}
    posts = {path: _operation(path, *each) for path, each in _POSTS.items()}
    octets, page = _content({}, "application/octet-stream"), _content(_TEXT, "text/html")
    infer, act = posts["/v2/models/{name}/infer"], posts["/console/policies"]
    infer["requestBody"]["content"] |= octets
    infer["responses"]["200"]["content"] |= octets
    infer["parameters"] = [
        {"name": header.decode(), "in": "header", "schema": _LIMITS[parameter]}
        for header, parameter in SLO_HEADERS.items()
    ]
    gets["/metrics"]["responses"]["200"]["content"] = {
        **_content(_TEXT, "text/plain"),
        **_content(_TEXT, "application/openmetrics-text"),
    }
    gets["/console"]["responses"]["200"]["content"] = page
    act["requestBody"] = {"content": _content({}, "application/x-www-form-urlencoded")}
    act["responses"]["200"]["content"] = page
    act["responses"]["303"] = {"description": "Done: the page that says so"}
    act["responses"]["400"]["content"] |= page
    paths = {
        path: {method: operation, "parameters": _path_parameters(path)}
        for method, operations in (("get", gets), ("post", posts))
        for path, operation in operations.items()
    }
    return render_json(
        {
            "openapi": "3.1.0",
            "info": {"title": "modelless", "version": modelless.__version__},
            "paths": paths,
            "components": {
                "schemas": {"Error": _ERROR},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )
