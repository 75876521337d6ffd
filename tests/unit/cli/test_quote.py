"""``modelless quote``: a question to a running server, without a query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from modelless.controller.api.quotes import quote_document
from modelless.controller.api.v2_reply import render_json
from modelless.controller.dispatch.quotes import Quote, QuotedPlacement
from modelless.controller.dispatch.refusal_messages import Offer
from modelless.policies.reasons import Reason

from .conftest import Run
from .servers import Server, running

SMALL = QuotedPlacement("pixels/mean/small@1", "cpu-1", 0.97, 0.002, 0.007, 0.009, 70.0, 1e-7)


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def answer(server: Server, quote: Quote) -> dict[str, Any]:
    document = quote_document("pixels", 0.04, quote)
    server.answers["/modelless/quote"] = render_json(document)
    return document


def test_a_quote_is_shown(run: Run, server: Server) -> None:
    answer(server, Quote(0.98, None, SMALL, SMALL, SMALL, None, (), None))
    ran = run("quote", "--task", "pixels", "--latency-ms", 40, "--url", server.url)
    assert ran.code == 0, ran.err
    assert "pixels within 40 ms: in time with 98.0%" in ran.out
    assert "pixels/mean/small@1" in ran.out
    assert "cheapest" not in ran.out
    assert server.paths == ["/modelless/quote"]


def test_programs_get_json(run: Run, server: Server) -> None:
    document = answer(server, Quote(0.98, None, SMALL, SMALL, SMALL, SMALL, (), None))
    ran = run("quote", "--task", "pixels", "--url", server.url, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == document


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_is_not_feasible_has_its_code_and_the_nearest_limits(
    run: Run, server: Server, flags: tuple[str, ...]
) -> None:
    nearest = (Offer(latency_ms=9.1), Offer(min_accuracy=60.0))
    answer(server, Quote(0.01, Reason.TOO_SLOW, None, SMALL, None, None, nearest, None))
    ran = run("quote", "--task", "pixels", "--url", server.url, *flags)
    assert ran.code == 4
    told = json.loads(ran.out)["error"] if flags else ran.err
    assert "too-slow" in told
    assert "latency_ms 9.1, or min_accuracy 60" in told
