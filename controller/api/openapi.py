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


def _list(of: _Schema, **bounds: int) -> _Schema:
    return {"type": "array", "items": of, **bounds}


def _optional(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_SHAPE: Final = _list(_COUNT, maxItems=DEFAULT_LIMITS.max_dims)
_SPEC: Final = _object(
    {"name": _TEXT, "datatype": _TEXT, "shape": _list({"type": "integer"})},
    "name", "datatype", "shape",
)  # fmt: skip
_CONFIGURED: Final = _object(
    {"name": _TEXT, "data_type": _TEXT, "dims": _list({"type": "integer"})},
    "name", "data_type", "dims",
)  # fmt: skip
_DURATION: Final = _object({"count": _COUNT, "ns": _COUNT}, "count", "ns")

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
                    "parameters": _object({"binary_data_size": _COUNT}, "binary_data_size"),
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

_STATISTICS: Final = _object(
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
    },
    "model_stats",
)

_FEEDBACK: Final = _object(
    dict.fromkeys(("counted", "passed_on", "ignored"), _COUNT),
    "counted", "passed_on", "ignored",
)  # fmt: skip

_PLACEMENT: Final = _optional(
    _object(
        {
            name: {"type": ["string", "number"], "description": meaning}
            for name, meaning in PLACEMENT_FIELDS.items()
        },
        *PLACEMENT_FIELDS,
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


_ENTRIES: Final = _object(
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
    },
    "feedback",
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

_PINNED: Final = _object({"name": _TEXT, "pinned": _FLAG}, "name", "pinned")
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
}  # fmt: skip

_UNREADY: Final = ("/v2/health/live", "/v2/health/ready", "/v2/models/{name}/ready")
_OPEN_TO_ALL: Final = ("/v2", "/v2/health/live", "/v2/health/ready", "/openapi.json")
_INDEX: Final = _list(
    _object({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT}, "name", "state")
)


def _content(schema: _Schema, kind: str = "application/json") -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _operation(path: str, summary: str, answer: _Schema, *errors: int) -> dict[str, Any]:
    """Return an operation whose errors are these statuses, besides those of any request."""
    known = {400, 405, 408, 413, 429, 500, 503, *errors}
    if path not in _OPEN_TO_ALL:
        known |= {401, 403}
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": _content(answer)}}
    error = {"$ref": "#/components/schemas/Error"}
    for status in sorted(known):
        schema = {"anyOf": [error, answer]} if status == 503 and path in _UNREADY else error
        responses[str(status)] = {"description": "An error", "content": _content(schema)}
    found: dict[str, Any] = {"summary": summary, "responses": responses}
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
    paths: dict[str, Any] = {}
    for path, (summary, answer) in _GETS.items():
        errors = (404,) if "{" in path or path == "/modelless/status" else ()
        operation = _operation(path, summary, answer, *errors)
        paths[path] = {"get": operation, "parameters": _path_parameters(path)}
    metrics = _operation("/metrics", "For operators: metrics for Prometheus", _TEXT, 404)
    metrics["responses"]["200"]["content"] = {
        **_content(_TEXT, "text/plain"),
        **_content(_TEXT, "application/openmetrics-text"),
    }
    paths["/metrics"] = {"get": metrics}
    console = _operation("/console", "For operators: the cluster now, as a page", _TEXT, 404)
    console["responses"]["200"]["content"] = _content(_TEXT, "text/html")
    paths["/console"] = {"get": console}
    act = _operation("/console/policies", "For operators: a form of a console's page", _TEXT, 404)
    act["requestBody"] = {"content": _content({}, "application/x-www-form-urlencoded")}
    act["responses"]["200"]["content"] = _content(_TEXT, "text/html")
    act["responses"]["303"] = {"description": "Done: the page that says so"}
    act["responses"]["400"]["content"] |= _content(_TEXT, "text/html")
    paths["/console/policies"] = {"post": act}

    infer = _operation("/v2/models/{name}/infer", "Inference", _ANSWER, 404, 411, 415, 422, 504)
    infer["requestBody"] = {
        "required": True,
        "content": _content(_QUERY) | _content({}, "application/octet-stream"),
    }
    infer["responses"]["200"]["content"] |= _content({}, "application/octet-stream")
    infer["parameters"] = [
        {"name": header.decode(), "in": "header", "schema": _LIMITS[parameter]}
        for header, parameter in SLO_HEADERS.items()
    ]
    paths["/v2/models/{name}/infer"] = {
        "post": infer,
        "parameters": _path_parameters("/v2/models/{name}/infer"),
    }
    index = _operation("/v2/repository/index", "The names that clients can ask for", _INDEX)
    paths["/v2/repository/index"] = {"post": index}
    for change, summary in (("load", "For operators: pin"), ("unload", "For operators: unpin")):
        path = f"/v2/repository/models/{{name}}/{change}"
        operation = _operation(path, summary, _PINNED, 404)
        paths[path] = {"post": operation, "parameters": _path_parameters(path)}
    feedback = _operation("/modelless/feedback", "Right answers of past queries", _FEEDBACK, 404)
    feedback["requestBody"] = {"required": True, "content": _content(_ENTRIES)}
    paths["/modelless/feedback"] = {"post": feedback}
    quote = _operation("/modelless/quote", "What a query would get now", _QUOTE, 404)
    quote["requestBody"] = {"required": True, "content": _content(_ASKED)}
    paths["/modelless/quote"] = {"post": quote}
    batch = _operation("/modelless/batches", "Begin an offline run, or go on with it", _BATCH, 404)
    asked = BatchRequest.model_json_schema()
    asked["properties"]["task"] = _PARTS["name"]
    batch["requestBody"] = {"required": True, "content": _content(asked)}
    paths["/modelless/batches"] = {"post": batch}
    path = "/modelless/batches/{batch_id}/cancel"
    cancel = _operation(path, "End an offline run", _BATCH, 404)
    paths[path] = {"post": cancel, "parameters": _path_parameters(path)}
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
