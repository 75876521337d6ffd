"""The console's pages as HTML, of plain data; every text is escaped.

Names come from whoever registers models, so nothing here is marked as safe HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from statistics import median
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined

from modelless.controller.api.v2_reply import Headers, Reply
from modelless.controller.history.why import reason_text
from modelless.variants.vocabulary import Accuracy

MOST_ROWS: Final = 200
"""Of a table; the page says so when there are more."""

PAGES: Final = (
    ("", "Now"), ("/why", "Why"), ("/frontier", "Frontier"), ("/policies", "Policies"),
    ("/variants", "Variants"), ("/try", "Try it"),
)  # fmt: skip

CHARTS: Final = (
    ("Rate", "queries per second"),
    ("Attainment", "% of queries in time"),
    ("Latency", "mean of answers, ms"),
)
CANDIDATE_HEADS: Final = (
    "candidate", "device", "accuracy, %", "p50, ms", "p99, ms", "wait, ms", "USD", "why",
)  # fmt: skip
"""Of the candidates of a receipt."""

RECEIPT_HEADS: Final = (
    "receipt", "when (UTC)", "asked for", "tenant", "outcome", "latency asked, ms",
    "latency, ms", "least accuracy, %", "variant or reason",
)  # fmt: skip
UNMET_HEADS: Final = ("asked for", "limit", "queries", "asked, median", "lacking, median",
                      "lacking, most")  # fmt: skip

_MIB: Final = 2**20
_TYPES: Final = {"css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8"}
_HERE: Final = files(__package__)
_SECURITY: Final[Headers] = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # a form tells its origin then
]

Table = tuple[str, Sequence[str], Sequence[Sequence[str]], str]
"""Heading, column heads, rows, and a sentence; all plain text."""


class VariantRow(NamedTuple):
    """A variant and what one item takes there, as predicted.

    Attributes:
        p50_s: seconds by device class.
        usd_per_1000: price of so many items by device class.
    """

    variant_id: str
    accuracy: Accuracy
    p50_s: Mapping[str, float]
    usd_per_1000: Mapping[str, float]


def _source(name: str) -> str:
    return (_HERE / "templates" / name).read_text(encoding="utf-8")


_TEMPLATES: Final = Environment(
    loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, auto_reload=False,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_ASSETS: Final = {
    each.name: each.read_bytes()
    for each in (_HERE / "assets").iterdir()
    if each.name.rpartition(".")[2] in _TYPES
}
_VERSIONS: Final = {name: sha256(body).hexdigest()[:12] for name, body in _ASSETS.items()}
_TEMPLATES.globals.update(
    pages=PAGES,
    most=MOST_ROWS,
    stream=None,
    asset=lambda name: f"/console/assets/{name}?v={_VERSIONS[name]}",
)
for _each in (_HERE / "templates").iterdir():  # compiling one takes 2 to 10 ms, which queries wait
    _TEMPLATES.get_template(_each.name)


def render_page(template: str, title: str, status: int = 200, **values: Any) -> Reply:
    """Return a page; ``values`` are the template's own."""
    body = render_text(template, title=title, **values).encode()
    return _reply(body, b"text/html; charset=utf-8", status, b"no-store")


def render_text(template: str, **values: Any) -> str:
    """Return a template's text."""
    return _TEMPLATES.get_template(template).render(**values)


def render_asset(name: str, version: str) -> Reply | None:
    """Return a style sheet or a script, which browsers keep; None if there is none of that name.

    Args:
        version: as the pages name it; another one is not kept.
    """
    body = _ASSETS.get(name)
    if body is None:
        return None
    kept = b"max-age=31536000, immutable" if version == _VERSIONS[name] else b"no-store"
    return _reply(body, _TYPES[name.rpartition(".")[2]], 200, kept)


def _reply(body: bytes, content_type: bytes, status: int, kept: bytes) -> Reply:
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", content_type), length, (b"cache-control", kept), *_SECURITY]
    return Reply(status, body, headers)


# Now.


def tiles(
    status: Mapping[str, Any], accuracies_percent: Mapping[str, float]
) -> list[tuple[str, str, str]]:
    """Figure, name and explanation of the most important figures.

    Args:
        accuracies_percent: by variant.
    """
    members = status["members"]
    rate = sum(member["arrivals_per_s"] for member in members)
    waiting = sum(member["queued"] for member in members if member["role"] == "gateway")
    outcomes = status.get("outcomes", {})
    ended = sum(outcomes.get(name, 0) for name in ("served", "served-late", "refused"))
    in_time = f"{outcomes.get('served', 0) / ended:.2%}" if ended else "-"
    answered = {
        name: count
        for name, count in status.get("served_by_variant", {}).items()
        if name in accuracies_percent
    }
    right = sum(count * accuracies_percent[name] for name, count in answered.items())
    usd_per_hour = status.get("usd_per_hour")
    return [
        (f"{rate:.1f}", "Queries a second", f"{waiting} wait"),
        (in_time, "In time", f"of {ended:,} queries since the start"),
        (_ratio(right, sum(answered.values())) + " %", "Mean accuracy", "of all answers"),
        ("-" if usd_per_hour is None else f"{usd_per_hour:.4g}", "USD an hour", "for the devices"),
        (
            "-" if usd_per_hour is None or not rate else f"{usd_per_hour / (3.6 * rate):.3g}",
            "USD per 1,000 queries",
            "devices' price at this rate",
        ),
    ]  # fmt: skip


def now_tables(status: Mapping[str, Any]) -> list[Table]:
    """The tables of the page *Now*, from ``/modelless/status``."""
    queries = status.get("statistics", {}).get("queries", {})
    return [
        (
            "Tasks",
            ["task", "served", "late", "refused", "in time, %", "mean latency, ms", "USD"],
            [_task_row(name, each, queries) for name, each in sorted(_by_task(status).items())],
            "Queries since the start; USD is the price of the time that devices were busy.",
        ),
        (
            "Tenants",
            ["tenant", "queries/s", "open", "USD today"],
            [
                (name, f"{use['queries_per_s']:.1f}", f"{use['open']}", f"{use['usd_today']:.4g}")
                for name, use in sorted(status.get("tenants", {}).items())
            ],
            "Tenants of keys.",
        ),
        (
            "Gateways and workers",
            ["name", "role", "device", "loaded", "loading", "MiB used", "MiB allowed", "waiting",
             "queries/s", "state"],
            [_member_row(member) for member in status["members"]],
            "",
        ),
        (
            "Memory by variant",
            ["name", "variant", "MiB"],
            [
                (member["id"], variant, f"{size / _MIB:.1f}")
                for member in status["members"]
                for variant, size in sorted(member.get("loaded_bytes", {}).items())
            ],
            "What each gateway and worker holds.",
        ),
        (
            "Not served",
            ["task", "reason"],
            list(status.get("not_served", {}).items()),
            "",
        ),
    ]  # fmt: skip


def _by_task(status: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    found: Mapping[str, Mapping[str, float]] = status.get("tasks", {})
    return found


def _task_row(
    name: str, counts: Mapping[str, float], queries: Mapping[str, Sequence[float]]
) -> Sequence[str]:
    served, late, refused = (counts.get(key, 0) for key in ("served", "served-late", "refused"))
    rows = [row for scope, row in queries.items() if scope.partition("/")[0] == name]
    took_s, answered = sum(row[2] for row in rows), sum(row[0] for row in rows)
    return (
        name,
        f"{served:,.0f}",
        f"{late:,.0f}",
        f"{refused:,.0f}",
        _ratio(100.0 * served, served + late + refused, 2),
        _ratio(1e3 * took_s, answered),
        f"{counts.get('cost_usd', 0.0):.3g}",
    )


def _member_row(member: Mapping[str, Any]) -> Sequence[str]:
    unusual = [
        "starting" if member["is_starting"] else "",
        f"becomes {member['resizing_to']}" if member["resizing_to"] else "",
        f"quarantined: {member['quarantine']}" if member["quarantine"] else "",
        f"{len(member['failed_loads'])} failed loads" if member["failed_loads"] else "",
    ]
    return (
        member["id"],
        member["role"],
        member["device_class"] or "-",
        f"{len(member['loaded'])}",
        f"{len(member['loading'])}",
        f"{member['memory_bytes'] / _MIB:.1f}",
        f"{member['memory_budget_bytes'] / _MIB:.1f}",
        f"{member['queued']}",
        f"{member['arrivals_per_s']:.1f}",
        "; ".join(filter(None, unusual)) or "-",
    )


# Variants.


def variant_tables(status: Mapping[str, Any], variants: Sequence[VariantRow]) -> list[Table]:
    """The tables of the page *Variants*."""
    holders = Counter(name for member in status["members"] for name in member["loaded"])
    answered = status.get("served_by_variant", {})
    batches = status.get("statistics", {}).get("batches", {})
    rows = []
    for name, accuracy, p50_s, usd in variants:
        _, count, busy_s = batches.get(name, (0, 0, 0.0))
        low, high = accuracy.low_percent, accuracy.high_percent
        rows.append(
            (
                name,
                f"{accuracy.percent:.2f}",
                "-" if low is None or high is None else f"{low:.2f} to {high:.2f}",
                "; ".join(f"{device} {1e3 * each:.2f}" for device, each in p50_s.items()) or "-",
                _ratio(1e3 * busy_s, count, 2),
                "; ".join(f"{device} {each:.3g}" for device, each in usd.items()) or "-",
                f"{answered.get(name, 0):,}",
                f"{holders[name]}",
            )
        )
    predictions = [
        (row["device_class"], f"{row['outcomes']:,}", *(
            "-" if row[name] is None else f"{row[name]:.1f}"
            for name in ("within_p90_percent", "within_p99_percent", "median_error_percent")
        ))
        for row in status.get("predictions", ())
    ]  # fmt: skip
    trials = [
        (
            str(trial.get("variant", "")),
            "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in trial.items()),
        )
        for trial in status.get("trials", ())
    ]
    feedback = [
        (
            row["variant"],
            "-" if row["stated_low"] is None else f"{row['stated_low']:.2f}",
            f"{row['accuracy']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['items']:g}",
            "-" if row["demoted_to"] is None else f"{row['demoted_to']:.2f}",
        )
        for row in status.get("feedback", ())
    ]
    return [
        (
            "Variants",
            ["variant and version", "accuracy, %", "95 % interval", "predicted p50, ms",
             "mean of a batch, ms", "USD per 1,000", "served", "loaded in"],
            rows,
            "Predicted: the run time of one item on each device class, corrected by what was "
            "observed. A batch may have several items.",
        ),
        (
            "Accuracy by feedback",
            ["variant", "stated from, %", "by feedback, %", "95 % interval", "items",
             "counts for, %"],
            feedback,
            "What clients said of the answers; a variant below its stated interval is demoted.",
        ),
        ("Canaries", ["variant", "figures"], trials, "New versions on trial."),
        (
            "Predictions",
            ["device", "batches", "within p90, %", "within p99, %", "median error, %"],
            predictions,
            "Latencies lately against what was predicted; the goals are 90 % within p90 and 99 % "
            "within p99.",
        ),
    ]  # fmt: skip


def candidate_rows(receipt: Mapping[str, Any]) -> list[Sequence[str]]:
    """The candidates of a receipt, a row each, under ``CANDIDATE_HEADS``."""
    return [
        (
            row["variant"],
            row["device_class"],
            f"{row['accuracy']:.2f}",
            *(_number(row[name], ".4g") for name in ("p50_ms", "p99_ms", "wait_ms", "cost_usd")),
            "chosen" if row["chosen"] else ", ".join(row["misses"]) or "would do",
        )
        for row in receipt.get("candidates") or ()
    ]


def receipt_rows(receipts: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Receipts, the newest first, a row each, under ``RECEIPT_HEADS``."""
    return [
        (
            row["receipt_id"],
            row["arrived_at"][11:19],
            row["scope"],
            row["tenant"],
            row["outcome"],
            _number(row["latency_ms"], ".4g"),
            _number(row.get("observed_latency_ms"), ".4g"),
            f"{row['min_accuracy']:g}",
            row["variant"] if row["outcome"].startswith("served") else reason_text(row["reason"]),
        )
        for row in reversed(receipts)
    ]


def unmet_rows(receipts: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    """Limits that nothing loaded could meet, and by how much, under ``UNMET_HEADS``.

    A query lacks what separates its limit from the best of its candidates: the most accurate, the
    fastest (p99 and wait) of those that are accurate enough, and the cheapest of these.
    """
    lacks: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in receipts:
        every = row.get("candidates") or ()
        able = [each for each in every if each["accuracy"] >= row["min_accuracy"]]
        times = [each["p99_ms"] + each["wait_ms"] for each in able]
        costs = [each["cost_usd"] for each in able if each["cost_usd"] is not None]
        found = []
        if every and not able:
            best = max(each["accuracy"] for each in every)
            found.append(("accuracy, %", row["min_accuracy"], row["min_accuracy"] - best))
        if times and row["latency_ms"] is not None and min(times) > row["latency_ms"]:
            found.append(("latency, ms", row["latency_ms"], min(times) - row["latency_ms"]))
        if costs and row["max_cost_usd"] is not None and min(costs) > row["max_cost_usd"]:
            found.append(("cost, USD", row["max_cost_usd"], min(costs) - row["max_cost_usd"]))
        for limit, asked, lack in found:
            lacks.setdefault((row["scope"], limit), []).append((asked, lack))
    return [
        (
            scope,
            limit,
            f"{len(each)}",
            *(f"{median(values):.3g}" for values in zip(*each, strict=True)),
            f"{max(lack for _, lack in each):.3g}",
        )
        for (scope, limit), each in sorted(lacks.items(), key=lambda item: -len(item[1]))
    ]


def quote_rows(quote: Mapping[str, Any]) -> list[Sequence[str]]:
    """What serves a quoted query, and the extremes, a row each, under ``QUOTE_HEADS``."""
    return [
        (
            name.replace("_", " "),
            found["variant"],
            found["device"],
            f"{100.0 * found['probability']:.1f}",
            *(_number(found[key], ".4g") for key in ("latency_ms", "p99_latency_ms")),
            f"{found['accuracy']:.2f}",
            _number(found["cost_usd"], ".3g"),
        )
        for name in ("serves", "fastest", "most_accurate", "cheapest")
        if (found := quote[name]) is not None
    ]


QUOTE_HEADS: Final = (
    "which", "variant", "device", "in time, %", "latency, ms", "p99, ms", "accuracy, %", "USD",
)  # fmt: skip


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _ratio(total: float, count: float, digits: int = 1) -> str:
    return f"{total / count:.{digits}f}" if count else "-"
