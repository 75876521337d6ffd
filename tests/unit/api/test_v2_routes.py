"""Methods and paths."""

from __future__ import annotations

import tracemalloc
from urllib.parse import quote

import pytest

from modelless.controller.api.v2_routes import Endpoint, Route, route

VARIANT = "imagenet/efficientnet-lite0/int8-224"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v2", Route(Endpoint.SERVER_METADATA)),
        ("GET", "/v2/", Route(Endpoint.SERVER_METADATA)),
        ("GET", "/v2/health/live", Route(Endpoint.HEALTH_LIVE)),
        ("HEAD", "/v2/health/ready", Route(Endpoint.HEALTH_READY)),
        ("POST", "/v2/repository/index", Route(Endpoint.REPOSITORY_INDEX)),
        ("GET", "/v2/models/imagenet", Route(Endpoint.MODEL_METADATA, "imagenet")),
        ("GET", f"/v2/models/{VARIANT}", Route(Endpoint.MODEL_METADATA, VARIANT)),
        (
            "GET",
            f"/v2/models/{VARIANT}/versions/3",
            Route(Endpoint.MODEL_METADATA, VARIANT, "3"),
        ),
        ("GET", "/v2/models/imagenet/ready", Route(Endpoint.MODEL_READY, "imagenet")),
        ("GET", "/v2/models/imagenet/config", Route(Endpoint.MODEL_CONFIG, "imagenet")),
        ("GET", "/v2/models/imagenet/stats", Route(Endpoint.STATISTICS, "imagenet")),
        ("GET", "/v2/models/stats", Route(Endpoint.STATISTICS)),
        ("POST", "/v2/models/imagenet/infer", Route(Endpoint.INFER, "imagenet")),
        ("POST", f"/v2/models/{VARIANT}/infer", Route(Endpoint.INFER, VARIANT)),
        (
            "POST",
            f"/v2/models/{VARIANT}/versions/12/infer",
            Route(Endpoint.INFER, VARIANT, "12"),
        ),
        ("POST", "/v2/models/imagenet/infer?a=b/../c", Route(Endpoint.INFER, "imagenet")),
        (
            "POST",
            "/v2/models/" + quote(VARIANT, safe="") + "/infer",
            Route(Endpoint.INFER, VARIANT),
        ),
        ("POST", f"/v2/models/{quote(VARIANT)}@2/infer", Route(Endpoint.INFER, VARIANT + "@2")),
    ],
)
def test_route(method: str, path: str, expected: Route) -> None:
    assert route(method, path.encode()) == expected
    assert route(method, path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "v2",
        "/v1/models/imagenet/infer",
        "/v2/models",
        "/v2/models/",
        "/v2/models/infer",
        "/v2/models//infer",
        "/v2//models/imagenet/infer",
        "//v2",
        "/v2/models/../imagenet/infer",
        "/v2/models/a/../b/infer",
        "/v2/models/./infer",
        "/v2/models/%2e%2e/infer",
        "/v2/models/%2E%2E%2Fa/infer",
        "/v2/models/a%2f..%2fb/infer",
        "/v2/models/%252e%252e/infer",
        "/v2/models/a%00/infer",
        "/v2/models/a%zz/infer",
        "/v2/models/a\\b/infer",
        "/v2/models/.hidden/infer",
        "/v2/models/a b/infer",
        "/v2/models/%C3%A9/infer",
        "/v2/models/%FF/infer",
        "/v2/models/" + "a" * 129 + "/infer",
        "/v2/models/" + "a/" * 300 + "infer",
        "/v2/health",
        "/v2/repository/models/imagenet/load/x/..",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_not_found(method: str, path: str) -> None:
    assert route(method, path.encode()).endpoint is Endpoint.NOT_FOUND


def test_not_ascii_text() -> None:
    assert route("GET", "/v2/models/é").endpoint is Endpoint.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v2/models/imagenet/infer", ("POST",)),
        ("POST", "/v2/models/imagenet", ("GET", "HEAD")),
        ("DELETE", "/v2", ("GET", "HEAD")),
        ("GET", "/v2/repository/index", ("POST",)),
    ],
)
def test_method_not_allowed(method: str, path: str, allow: tuple[str, ...]) -> None:
    found = route(method, path.encode())
    assert found.endpoint is Endpoint.METHOD_NOT_ALLOWED
    assert found.allow == allow


def test_memory_of_paths_is_bounded() -> None:
    def ask_for(first: int, count: int) -> None:
        for number in range(first, first + count):
            route("POST", b"/v2/models/m%d/infer" % number)

    tracemalloc.start()
    try:
        ask_for(0, 10_000)
        before_bytes, _ = tracemalloc.get_traced_memory()
        ask_for(10_000, 10_000)
        grown_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 100_000  # 10,000 routes are some megabytes
