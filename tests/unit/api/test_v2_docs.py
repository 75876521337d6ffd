"""docs/api.md against the code it describes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from grpc import StatusCode

import modelless.controller.api.keys
import modelless.controller.api.v2_errors  # noqa: F401  (their errors are walked below)
from modelless.common.errors import ModellessError
from modelless.controller.api.grpc_calls import STATUS_CODES
from modelless.controller.api.v2_headers import SLO_HEADERS
from modelless.controller.api.v2_reply import REPLY_PARAMETERS, render_error
from modelless.controller.api.v2_request import PROTOCOL_PARAMETERS, parse_infer
from modelless.controller.api.v2_routes import Endpoint, route
from modelless.controller.api.v2_tensors import DATATYPES
from modelless.variants.vocabulary import SLO

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def statuses(error: type[ModellessError]) -> set[int]:
    return {error.http_status}.union(*(statuses(kind) for kind in error.__subclasses__()))


@pytest.mark.parametrize("word", [*PROTOCOL_PARAMETERS, *DATATYPES])
def test_words_are_explained(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_limits_and_their_headers_are_tabled() -> None:
    for header, parameter in SLO_HEADERS.items():
        assert f"| `{parameter}` | `{header.decode()}` |" in PAGE


def test_reply_parameters_are_tabled_as_the_code_means_them() -> None:
    for parameter, meaning in REPLY_PARAMETERS.items():
        assert f"| `{parameter}` | {meaning} |" in PAGE


def test_statuses_are_tabled() -> None:
    tabled = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)}
    assert tabled == statuses(ModellessError)


def test_codes_of_calls_are_tabled() -> None:
    tabled = {
        int(status): name
        for name, told in re.findall(r"^\| `([A-Z_]+)` \| (\d{3}.*) \|$", PAGE, re.MULTILINE)
        for status in re.findall(r"\d{3}(?! for)", told)
    }
    names = {code.value[0]: code.name for code in StatusCode}
    codes = {status: names[code] for status, code in STATUS_CODES.items()}
    assert tabled == {status: name for status, name in codes.items() if status != 200}


def test_endpoints_are_tabled() -> None:
    pattern = r"^\| `(GET|POST) (/(?:v2|modelless|metrics|openapi|console)[^`]*)` \|"
    tabled = re.findall(pattern, PAGE, re.MULTILINE)
    assert ("GET", "/modelless/receipts/{receipt_id}") in tabled
    filled = [(method, re.sub(r"{\w+}", "imagenet", path)) for method, path in tabled]
    found = {route(method, path).endpoint for method, path in filled}
    assert found == set(Endpoint) - {Endpoint.NOT_FOUND, Endpoint.METHOD_NOT_ALLOWED}


def test_the_curl_example_is_a_valid_request() -> None:
    (body,) = re.findall(r"/infer -d '(.*?)'\n```", PAGE, re.DOTALL)
    request = parse_infer(body.encode())
    assert request.slo == SLO(latency_ms=40, min_accuracy=74)
    assert request.tensors["image"].shape == (1, 2, 2, 3)


def test_the_python_examples_compile() -> None:
    over_http, over_grpc = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for code in (over_http, over_grpc):
        compile(code, "docs/api.md", "exec")


def test_the_error_shown_is_the_error_given() -> None:
    tensor = '{"name": "x", "shape": [1, 224, 224, 3], "datatype": "UINT8", '
    body = b'{"inputs": [' + tensor.encode() + b'"parameters": {"binary_data_size": 12}}]}'
    with pytest.raises(ModellessError) as caught:
        parse_infer(body + bytes(12), len(body))
    shown = re.search(r'^\{"error": .*?\}$', PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    given = json.loads(render_error(caught.value).body)
    assert json.loads(shown[0]) == {**given, "request_id": "5e0c9a1b2c3d-17"}
