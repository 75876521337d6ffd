"""Spans of sampled queries, from a real gateway's server to an exporter in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from modelless.controller.live.front.spans import SpanLog, open_spans
from modelless.controller.live.knowledge import Knowledge

from .front import INFER, query, serving, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def spans_of(
    knowledge: Knowledge, folder: Path, body: bytes, headers: Mapping[str, str]
) -> dict[str, ReadableSpan]:
    """The spans of one query by name. The device takes 1 ms of a batch's 3 ms or more."""
    exporter = InMemorySpanExporter()

    async def test() -> None:
        async with serving(knowledge, folder) as front:
            log, receipts = SpanLog("g", exporter), front.frontend._dispatcher.receipts
            front.answers_at_once = False
            asked = asyncio.create_task(front.send("POST", INFER, body, headers))
            await until(lambda: front.ran or asked.done())
            for batch in front.ran:
                end_s = time.monotonic() + 0.003
                await until(lambda end_s=end_s: time.monotonic() > end_s)
                front.finish(batch)
            await asked
            log.log_new(receipts)
            assert log._making is not None
            await log._making
            log.close(receipts)  # which exports nothing twice

    asyncio.run(test())
    found = exporter.get_finished_spans()
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def ids(span: ReadableSpan) -> tuple[SpanContext, SpanContext]:
    """The contexts of a span and of its parent."""
    assert span.context is not None
    assert span.parent is not None
    return span.context, span.parent


def times_ns(span: ReadableSpan) -> tuple[int, int]:
    """When a span begins and ends, since 1970."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def test_a_sampled_query_has_spans_of_its_receipts_times(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    earliest_ns = time.time_ns() - 10**6
    found = spans_of(knowledge, tmp_path, query(), SAMPLED)
    latest_ns = time.time_ns() + 10**6
    names = ("gateway", "queue", "batch", "run")
    assert set(found) == set(names)
    context = {name: ids(found[name])[0] for name in names}
    assert {each.trace_id for each in context.values()} == {int(TRACE, 16)}
    parents = {name: ids(found[name])[1] for name in names}
    assert parents["gateway"].span_id == int(PARENT, 16)
    assert parents["gateway"].is_remote
    assert parents["queue"] == parents["batch"] == context["gateway"]
    assert parents["run"] == context["batch"]
    gateway, queue, batch, run = (times_ns(found[name]) for name in names)
    assert earliest_ns <= gateway[0] == queue[0] <= queue[1] == batch[0] <= run[0]
    assert run[1] == batch[1] == gateway[1] <= latest_ns
    assert run[1] - run[0] == pytest.approx(1e6, abs=2)  # as the device said
    assert batch[1] - batch[0] >= 3e6
    told = found["gateway"].attributes or {}
    assert told["modelless.outcome"] == "served"
    assert str(told["modelless.variant"]).startswith("pixels/mean/")
    assert str(told["modelless.receipt_id"]).startswith("g-")
    assert found["gateway"].status.status_code is StatusCode.UNSET
    assert found["gateway"].resource.attributes["service.name"] == "modelless"


def test_a_refused_query_has_a_span_with_the_reason(knowledge: Knowledge, tmp_path: Path) -> None:
    found = spans_of(knowledge, tmp_path, query(min_accuracy=99.0), SAMPLED)
    assert set(found) == {"gateway", "queue"}
    gateway = found["gateway"]
    assert gateway.status.status_code is StatusCode.ERROR
    assert gateway.attributes is not None
    assert gateway.status.description == gateway.attributes["modelless.reason"] == "too-inaccurate"


@pytest.mark.parametrize("headers", [{}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}])
def test_a_query_that_is_not_sampled_has_none(
    knowledge: Knowledge, tmp_path: Path, headers: dict[str, str]
) -> None:
    assert spans_of(knowledge, tmp_path, query(), headers) == {}


def test_spans_are_off_unless_the_environment_asks(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    for off in (
        {},
        {"OTEL_TRACES_EXPORTER": "none", **endpoint},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ):
        assert open_spans("g", off) is None
    assert not caplog.records
    assert isinstance(open_spans("g", {"OTEL_TRACES_EXPORTER": "console"}), SpanLog)
    with caplog.at_level(logging.ERROR):
        assert open_spans("g", {"OTEL_TRACES_EXPORTER": "nowhere"}) is None
    assert "pip install 'modelless[otel]'" in caplog.text
