"""/openapi.json against a real gateway's server: what it promises is what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import validator_for

from modelless.common.errors import ModellessError
from modelless.controller.api.feedback import parse_feedback
from modelless.controller.api.openapi import openapi
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.api.v2_routes import Endpoint, route
from modelless.controller.live.knowledge import Knowledge
from tests.unit.cli.tiny import TASK

from .front import INFER, query, serving

DOCUMENT = json.loads(openapi().body)
NAMES = {"{name}": TASK.name, "{receipt_id}": "g-1", "{batch_id}": "5e0c9a1b2c3d4e5f"}


def filled(path: str) -> str:
    for name, value in NAMES.items():
        path = path.replace(name, value)
    return path


def check(path: str, method: str, status: int, document: Any) -> None:
    """Raise ValidationError unless the answer is as described."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, (path, status)
    schema = responses[str(status)]["content"]["application/json"]["schema"]
    schema = {**schema, "components": DOCUMENT["components"]}
    assert validator_for(schema, Draft202012Validator) is Draft202012Validator
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)


def test_every_endpoint_is_described_with_its_methods() -> None:
    found = set()
    for path, item in DOCUMENT["paths"].items():
        (method,) = item.keys() - {"parameters"}
        found.add(route(method.upper(), filled(path)).endpoint)
        named = {each["name"] for each in item.get("parameters", ())}
        assert named == {name.strip("{}") for name in NAMES if name in path}
    assert found == set(Endpoint) - {Endpoint.NOT_FOUND, Endpoint.METHOD_NOT_ALLOWED}


@pytest.mark.parametrize("has_keys", [False, True])
def test_answers_and_refusals_are_as_described(
    knowledge: Knowledge, tmp_path: Path, has_keys: bool
) -> None:
    bodies: Mapping[str, list[bytes]] = {
        INFER: [
            query(), query(min_accuracy=99.0), query(latncy_ms=1), b"", b"{}", b"[1]", b"\xff",
            query((9, 2, 2, 3)), query(latency_ms=0), query(slo="none"),
            query(explain=True), query(explain=1), query(min_accuracy=99.0, explain=True),
        ],
        "/modelless/quote": [
            json.dumps({"task": TASK.name, "parameters": limits}).encode()
            for limits in ({}, {"latency_ms": 0.01}, {"min_accuracy": 99}, {"x": 1})
        ] + [b"{}", b'{"task": "none"}'],
        "/modelless/feedback": [b"{}", b"", b'{"feedback": []}'],
        "/modelless/batches": [
            json.dumps({"input": "a.npy", "output": "b", "task": TASK.name, **more}).encode()
            for more in ({}, {"top": 0}, {"task": "none"}, {"x": 1})
        ],
    }  # fmt: skip

    async def test() -> None:
        async with serving(knowledge, tmp_path) as front:
            if has_keys:
                from modelless.controller.api.keys import KeyRing, make_key

                front.ring = KeyRing([make_key("shop", ("infer",), 0, 0.0, None)[0]])
            statuses = set()
            for path, item in DOCUMENT["paths"].items():
                if path in ("/metrics", "/console", "/console/policies"):  # no JSON
                    continue
                (method,) = item.keys() - {"parameters"}
                for body in bodies.get(filled(path), [b""]):
                    for name in (TASK.name, "none"):
                        asked = filled(path).replace(TASK.name, name)
                        answer = await front.send(method.upper(), asked, body)
                        check(path, method, answer.status, answer.document)
                        statuses.add(answer.status)
            assert statuses == ({200, 401} if has_keys else {200, 400, 404, 422})

    asyncio.run(test())


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        (query(), True),
        (query(latency_ms=40, min_accuracy=74, when_late="serve", triton_x=1), True),
        (query(explain=True), True),
        (query(explain=1), False),
        (query(latncy_ms=40), False),
        (query(latency_ms=0), False),
        (query(latency_ms="40"), False),
        (query(priority=10), False),
        (query(priority=2.0), True),
        (query(priority=2.5), False),
        (query(tenant="a b"), False),
        (query(when_late="maybe"), False),
        (query(binary_data_output=1), False),
        (query().replace(b"UINT8", b"UINT9"), False),
        (query().replace(b'"inputs"', b'"input"'), False),
        (query().replace(b'"shape": [1', b'"shape": [-1'), False),
        (query().replace(b'"data"', b'"parameters"'), False),
        (query().replace(b"UINT8", b"BF16"), False),
    ],
)
def test_a_query_is_valid_by_the_description_if_the_server_reads_it(
    body: bytes, is_valid: bool
) -> None:
    operation = DOCUMENT["paths"]["/v2/models/{name}/infer"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    try:
        Draft202012Validator(schema).validate(json.loads(body))
        assert is_valid
    except ValidationError:
        assert not is_valid
    try:
        parse_infer(body)
        assert is_valid
    except Exception:  # noqa: BLE001  (any refusal)
        assert not is_valid


RECEIPT = "k2j5h8-17.5e0c9a1b2c3d4e5f60718293"


@pytest.mark.parametrize(
    ("entry", "is_valid"),
    [
        ({"receipt_id": RECEIPT, "correct": True}, True),
        ({"receipt_id": RECEIPT, "correct": [True, False], "label": None}, True),
        ({"receipt_id": RECEIPT, "label": [1, "cat"]}, True),
        ({"receipt_id": RECEIPT, "label": [1.0, 2]}, True),
        ({"receipt_id": RECEIPT, "label": 1.5}, False),
        ({"receipt_id": RECEIPT, "correct": 1.0}, False),
        ({"receipt_id": RECEIPT}, False),
        ({"receipt_id": RECEIPT, "correct": True, "label": 1}, False),
        ({"receipt_id": "none", "correct": True}, False),
        ({"receipt_id": RECEIPT, "correct": 1}, False),
        ({"receipt_id": RECEIPT, "correct": True, "more": 1}, False),
    ],
)
def test_feedback_is_valid_by_the_description_if_the_server_reads_it(
    entry: dict[str, Any], is_valid: bool
) -> None:
    operation = DOCUMENT["paths"]["/modelless/feedback"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    document = {"feedback": [entry]}
    assert Draft202012Validator(schema).is_valid(document) is is_valid
    try:
        parse_feedback(json.dumps(document).encode())
        assert is_valid
    except ModellessError:
        assert not is_valid


@pytest.mark.parametrize(
    ("asked", "is_valid"),
    [
        ({"task": "pixels/mean/small@1", "items": 2.0, "item_size": 7.0}, True),
        ({"task": "pixels", "parameters": {"priority": 1.0}}, True),
        ({"task": "0" * 65}, False),
        ({"task": "a/b/c/d"}, False),
        ({"task": "pixels", "items": 1 << 40}, False),
        ({"task": "pixels", "items": 1.5}, False),
    ],
)
def test_a_quote_is_valid_by_the_description_if_the_server_reads_it(
    knowledge: Knowledge, tmp_path: Path, asked: dict[str, Any], is_valid: bool
) -> None:
    operation = DOCUMENT["paths"]["/modelless/quote"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert Draft202012Validator(schema).is_valid(asked) is is_valid

    async def test() -> int:
        async with serving(knowledge, tmp_path) as front:
            return (await front.send("POST", "/modelless/quote", json.dumps(asked).encode())).status

    assert asyncio.run(test()) == (200 if is_valid else 400)
