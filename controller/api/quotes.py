"""Quotes over HTTP: what a query would get now, without sending it (``POST /modelless/quote``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from modelless.controller.api.json_reader import as_whole, read_json
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError, invalid, nearest
from modelless.controller.api.v2_request import read_parameters
from modelless.controller.dispatch.quotes import Quote, QuotedPlacement
from modelless.variants.vocabulary import SLO

_FIELDS: Final = ("task", "items", "item_size", "parameters")

PLACEMENT_FIELDS: Final[Mapping[str, str]] = {
    "variant": "id of the variant",
    "device": "device class that would run it",
    "probability": "of an answer in time from it, 0 to 1",
    "wait_ms": "until it could begin",
    "latency_ms": "from now to the answer, wait included: the median",
    "p99_latency_ms": "the same with the 99th percentile of the run time",
    "accuracy": "accuracy of the variant, per cent",
    "cost_usd": "price of the device time for the query alone",
}
"""What a quote says of a placement, and what each means."""


class QuoteRequest(NamedTuple):
    """A query that is not sent yet.

    Attributes:
        task: its scope.
        items: number of its items.
        item_size: numbers in one item's inputs together, where the task leaves sizes free; 0 for
            items as they were profiled.
        slo, tenant: see ``InferRequest``.
    """

    task: str
    items: int
    item_size: int
    slo: SLO
    tenant: str | None


def parse_quote(
    body: bytes | memoryview,
    limits: Limits,
    header_parameters: Mapping[str, Any],
    slos: Mapping[str, Mapping[str, Any]],
) -> QuoteRequest:
    """Read a body: ``{"task": ..., "items": 1, "parameters": {"latency_ms": 40, ...}}``.

    Args:
        body: all of it.
        limits, header_parameters, slos: see ``parse_infer``.

    Raises:
        InvalidInputError: names the field that is wrong.
        PayloadTooLargeError: it has too many bytes.
    """
    if len(body) > limits.small_json_bytes:
        allowed = f"up to {limits.small_json_bytes} bytes"
        raise PayloadTooLargeError(f"body: got {len(body)} bytes; allowed: {allowed} for a quote.")
    document = read_json(body, len(body), limits)
    if type(document) is not dict:
        raise invalid("body", document, "a JSON object")
    for name in document.keys() - set(_FIELDS):
        raise invalid("body", name, ", ".join(_FIELDS), nearest(name, _FIELDS))
    task = document.get("task")
    if type(task) is not str or not 0 < len(task) <= 512:
        raise invalid("task", task, "a task, task/model or task/model/variant")
    items = as_whole(document.get("items", 1))
    item_size = as_whole(document.get("item_size", 0))
    for name, value, least in (("items", items, 1), ("item_size", item_size, 0)):
        if type(value) is not int or not least <= value <= limits.max_body_bytes:
            raise invalid(name, value, f"a whole number, {least} to {limits.max_body_bytes}")
    slo, tenant, _ = read_parameters(document.get("parameters"), header_parameters, slos)
    return QuoteRequest(task, items, item_size, slo, tenant)


def quote_document(task: str, latency_s: float, quote: Quote) -> dict[str, Any]:
    """Return a quote as plain JSON.

    Args:
        task: as it was asked for.
        latency_s: the query's limit, or the default.
        quote: the quote.
    """
    return {
        "task": task,
        "latency_ms": latency_s * 1e3,
        "feasible": quote.reason is None,
        "reason": quote.reason.value if quote.reason is not None else None,
        "probability": quote.probability,
        "serves": placement_document(quote.serves),
        "fastest": placement_document(quote.fastest),
        "most_accurate": placement_document(quote.most_accurate),
        "cheapest": placement_document(quote.cheapest),
        "nearest_limits": [
            {name: value for name, value in limits._asdict().items() if value is not None}
            for limits in quote.nearest
        ],
        "load_ms": None if quote.load_s is None else quote.load_s * 1e3,
    }


def placement_document(found: QuotedPlacement | None) -> dict[str, Any] | None:
    """Return a placement with ``PLACEMENT_FIELDS``."""
    if found is None:
        return None
    figures = (
        found.variant_id,
        found.device_class,
        found.probability,
        found.wait_s * 1e3,
        found.latency_s * 1e3,
        found.p99_latency_s * 1e3,
        found.accuracy_percent,
        found.cost_usd,
    )
    return dict(zip(PLACEMENT_FIELDS, figures, strict=True))
