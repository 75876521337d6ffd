"""OpenTelemetry spans of sampled queries, made from their receipts after the fact.

A query is sampled if its W3C ``traceparent`` says so. Nothing is measured for spans: a receipt has
the times already. https://opentelemetry.io/docs/specs/otel/trace/
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from modelless.controller.dispatch.receipts import Receipt, RecentReceipts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTERS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_GROUP: Final = "opentelemetry_traces_exporter"
_MOST_AT_ONCE: Final = 20_000
_LAST_S: Final = 2.0
"""How long the last spans may take to be sent when a gateway ends."""


class SpanLog:
    """Exports the spans of sampled queries that were closed since the last call, in a thread.

    Args:
        gateway_id: the gateway of the receipts.
        exporter: sends the spans.
    """

    def __init__(self, gateway_id: str, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        resource = Resource({SERVICE_NAME: "modelless", "service.instance.id": gateway_id})
        self._provider = TracerProvider(
            ALWAYS_ON, resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("modelless")
        self._gateway_id = gateway_id
        self._last: Receipt | None = None
        self._making: asyncio.Task[None] | None = None

    def log_new(self, receipts: RecentReceipts) -> None:
        """Begin to export new receipts, unless it still does. Call this about once a second."""
        if self._making is None or self._making.done():
            making = asyncio.to_thread(self._export, self._take_new(receipts))
            self._making = asyncio.get_running_loop().create_task(making)

    def close(self, receipts: RecentReceipts) -> None:
        """Export the last receipts; give up on what a collector does not take."""
        self._export(self._take_new(receipts))
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_LAST_S)

    def _take_new(self, receipts: RecentReceipts) -> list[Receipt]:
        fresh = receipts.newest(self._last, _MOST_AT_ONCE)
        self._last = fresh[-1] if fresh else self._last
        return [each for each in fresh if _is_sampled(each.query.traceparent)]

    def _export(self, receipts: Sequence[Receipt]) -> None:
        zero_ns = time.time_ns() - time.monotonic_ns()
        for receipt in receipts:
            self._export_one(receipt, zero_ns)

    def _export_one(self, receipt: Receipt, zero_ns: int) -> None:
        """Export a receipt's spans; ``zero_ns`` is when its clock was 0, since 1970."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        if receipt.observed_latency_s is None:  # cancelled: nobody waits for an answer
            return
        begin_s = receipt.query.arrival_s
        end_s = begin_s + receipt.observed_latency_s

        def add(name: str, parent: Context, from_s: float, to_s: float, **more: Any) -> Context:
            span = self._tracer.start_span(
                name, parent, start_time=zero_ns + round(from_s * 1e9), **more
            )
            if name == "gateway" and receipt.outcome == "refused":
                reason = receipt.reason.value if receipt.reason else ""
                span.set_status(Status(StatusCode.ERROR, reason))
            span.end(zero_ns + round(to_s * 1e9))
            return set_span_in_context(span)

        known = _attributes(receipt, self._gateway_id)
        parent = _parent(receipt.query.traceparent)
        root = add("gateway", parent, begin_s, end_s, kind=SpanKind.SERVER, attributes=known)
        # (A NaN, where it never started, is not less.)
        started_s = receipt.started_s if receipt.started_s < end_s else end_s
        add("queue", root, begin_s, started_s)
        if receipt.run_s is not None:
            items = {"modelless.batch_items": receipt.batch_items}
            batch = add("batch", root, started_s, end_s, attributes=items)
            add("run", batch, max(end_s - receipt.run_s, started_s), end_s)


def open_spans(gateway_id: str, environment: Mapping[str, str] = os.environ) -> SpanLog | None:
    """Spans as the standard variables ``OTEL_*`` say; None if they ask for none.

    Problems are logged: a gateway serves without spans, too.
    """
    endpoint = next(filter(None, map(environment.get, _ENDPOINTS)), None)
    name = environment.get(_EXPORTER) or ("otlp" if endpoint else "none")
    if name == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if name == "otlp":
        protocol = next(filter(None, map(environment.get, _PROTOCOLS)), "http/protobuf")
        name = _EXPORTERS.get(protocol, protocol)
    try:
        (found,) = entry_points(group=_GROUP, name=name)
        return SpanLog(gateway_id, found.load()())
    except Exception as error:  # noqa: BLE001  (an exporter raises what it likes)
        logger.error(
            "no spans: %s=%s cannot be used (%r): pip install 'modelless[otel]'",
            _EXPORTER, name, error,
        )  # fmt: skip
        return None


def _is_sampled(traceparent: str) -> bool:
    return traceparent != "" and int(traceparent[53:55], 16) & 1 == 1


def _parent(traceparent: str) -> Context:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _attributes(receipt: Receipt, gateway_id: str) -> dict[str, str | int | float]:
    query = receipt.query
    known: dict[str, str | int | float | None] = {
        "modelless.receipt_id": f"{gateway_id}-{query.query_id}",
        "modelless.task": query.scope,
        "modelless.tenant": query.tenant,
        "modelless.request_id": query.request_id,
        "modelless.items": query.items,
        "modelless.outcome": receipt.outcome,
        "modelless.reason": receipt.reason.value if receipt.reason else None,
        "modelless.variant": receipt.variant_id,
        "modelless.device_class": receipt.device_class,
        "modelless.worker": receipt.worker_id,
        "modelless.attempts": receipt.attempts,
        "modelless.cost_usd": receipt.cost_usd,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}
