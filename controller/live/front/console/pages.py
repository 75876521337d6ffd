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
        state: of the version: current, on trial, or an earlier one.
    """

    variant_id: str
    accuracy: Accuracy
    p50_s: Mapping[str, float]
    usd_per_1000: Mapping[str, float]
    state: str = "current"


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


class Lately(NamedTuple):
    """The counts of the last minute.

    Attributes:
        span_s: how long that is; 0 while nothing is known.
        served: answers by variant.
        tasks, tenants: queries by outcome, of each.
    """

    span_s: float
    served: Mapping[str, int]
    tasks: Mapping[str, Mapping[str, float]]
    tenants: Mapping[str, Mapping[str, float]]

    @property
    def per_s(self) -> dict[str, float]:
        """Answers per second of each variant."""
        return {name: count / self.span_s for name, count in self.served.items() if count > 0}


NOTHING_LATELY: Final = Lately(0.0, {}, {}, {})


def tiles(
    status: Mapping[str, Any], accuracies_percent: Mapping[str, float], lately: Lately
) -> list[tuple[str, str, str]]:
    """Figure, name and explanation of the most important figures.

    Args:
        accuracies_percent: by variant.
    """
    members = status["members"]
    rate = sum(member["arrivals_per_s"] for member in members)
    waiting = sum(member["queued"] for member in members if member["role"] == "gateway")
    ever = status.get("outcomes", {})
    minute: Counter[str] = Counter()
    for row in lately.tasks.values():
        minute.update({name: round(row.get(name, 0)) for name in _OUTCOMES})
    served = status.get("served_by_variant", {})
    usd_per_hour = status.get("usd_per_hour")
    answered = sum(ever.get(name, 0) for name in _ANSWERED)
    energy_wh = sum(row.get("energy_wh", 0.0) for row in status.get("tasks", {}).values())
    return [
        (f"{rate:.1f}", "Queries a second", f"{waiting} wait"),
        (
            _in_time(minute) + " %",
            "In time",
            f"last minute; {_in_time(ever)} % of {_ended(ever):,.0f} since the start",
        ),
        (
            _mean_accuracy(lately.served, accuracies_percent) + " %",
            "Mean accuracy",
            f"last minute; {_mean_accuracy(served, accuracies_percent)} % since the start; offline "
            "ones count, the cache's do not",
        ),
        ("-" if usd_per_hour is None else f"{usd_per_hour:.4g}", "USD an hour", "for the devices"),
        (
            "-" if usd_per_hour is None or not rate else f"{usd_per_hour / (3.6 * rate):.3g}",
            "USD per 1,000 queries",
            "devices' price at this rate",
        ),
        (
            f"{1e3 * energy_wh / answered:.3g}" if energy_wh and answered else "-",
            "Wh per 1,000 answers",
            "offline ones too; busy devices, at their class's stated power; not measured",
        ),
    ]


def now_tables(
    status: Mapping[str, Any], accuracies_percent: Mapping[str, float], lately: Lately
) -> list[Table]:
    """The tables of the page *Now*, from ``/modelless/status``."""
    held: dict[str, list[tuple[str, float]]] = {}
    for member in status["members"]:
        for variant, size in member.get("loaded_bytes", {}).items():
            held.setdefault(variant, []).append((member["id"], size / _MIB))
    return [
        (
            "Tasks",
            ["task", "queries/s", "in time, %", "since start, %", "accuracy, %", "latency, ms",
             "served", "late", "refused", "USD", "Wh"],
            [
                _task_row(name, row, status, accuracies_percent, lately)
                for name, row in sorted(status.get("tasks", {}).items())
            ],
            "Queries a second and those in time: of the last minute. The others count since the "
            "start; accuracy and latency are means. USD is the price of the time that devices were "
            "busy, and Wh what they would use then at their class's stated power.",
        ),
        (
            "Tenants",
            ["tenant", "queries/s", "in time, %", "since start, %", "served", "late", "refused",
             "open", "USD today"],
            [
                (
                    name,
                    _per_s(lately.tenants.get(name, {}), lately.span_s),
                    _in_time(lately.tenants.get(name, {})),
                    _in_time(row),
                    *(f"{row.get(key, 0):,.0f}" for key in _OUTCOMES),
                    *(_number(row.get(key), ".4g") for key in ("open", "usd_today")),
                )
                for name, row in sorted(status.get("tenants", {}).items())
            ],
            "As keys or queries name them; what is open and was spent is known of those with "
            "limits.",
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
            ["variant", "loaded in", "MiB", "where"],
            [
                (
                    variant,
                    f"{len(places)}",
                    f"{sum(size for _, size in places):.1f}",
                    "; ".join(f"{name} {size:.1f}" for name, size in places),
                )
                for variant, places in sorted(held.items())
            ],
            "What the gateways and workers hold.",
        ),
        (
            "Not served",
            ["task", "reason"],
            list(status.get("not_served", {}).items()),
            "",
        ),
    ]  # fmt: skip


_OUTCOMES: Final = ("served", "served-late", "refused")
_ANSWERED: Final = ("served", "served-late", "offline-served", "offline-served-late")


def _ended(counts: Mapping[str, float]) -> float:
    return sum(counts.get(name, 0) for name in _OUTCOMES)


def _in_time(counts: Mapping[str, float]) -> str:
    return _ratio(100.0 * counts.get("served", 0), _ended(counts), 2)


def _per_s(counts: Mapping[str, float], span_s: float) -> str:
    return _ratio(_ended(counts), span_s)


def _mean_accuracy(served: Mapping[str, int], accuracies_percent: Mapping[str, float]) -> str:
    known = {name: count for name, count in served.items() if name in accuracies_percent}
    right = sum(count * accuracies_percent[name] for name, count in known.items())
    return _ratio(right, sum(known.values()), 2)


def _task_row(
    name: str,
    counts: Mapping[str, float],
    status: Mapping[str, Any],
    accuracies_percent: Mapping[str, float],
    lately: Lately,
) -> Sequence[str]:
    queries = status.get("statistics", {}).get("queries", {})
    rows = [row for scope, row in queries.items() if scope.partition("/")[0] == name]
    took_s, answered = sum(row[2] for row in rows), sum(row[0] for row in rows)
    served = {
        variant: count
        for variant, count in status.get("served_by_variant", {}).items()
        if variant.partition("/")[0] == name
    }
    minute = lately.tasks.get(name, {})
    return (
        name,
        _per_s(minute, lately.span_s),
        _in_time(minute),
        _in_time(counts),
        _mean_accuracy(served, accuracies_percent),
        _ratio(1e3 * took_s, answered),
        *(f"{counts.get(key, 0):,.0f}" for key in _OUTCOMES),
        f"{counts.get('cost_usd', 0.0):.3g}",
        f"{counts.get('energy_wh', 0.0):.3g}",
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
    for name, accuracy, p50_s, usd, state in variants:
        _, count, busy_s = batches.get(name, (0, 0, 0.0))
        low, high = accuracy.low_percent, accuracy.high_percent
        rows.append(
            (
                name,
                state,
                f"{accuracy.percent:.2f}",
                "-" if low is None or high is None else f"{low:.2f} to {high:.2f}",
                accuracy.provenance,
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
            trial["variant"],
            trial["against"],
            f"{100.0 * trial['share']:g}",
            f"{trial['queries']['tried']:,}",
            f"{trial['queries']['standing']:,}",
            f"{trial['age_s'] / 60.0:.0f}",
            f"{trial['decision']}: {trial['reason']}",
            "; ".join(
                f"{each['guard']}: {each['tried']['bad']:g} of {each['tried']['count']:g} against "
                f"{each['standing']['bad']:g} of {each['standing']['count']:g}; shown to be worse "
                f"{each['worse_percent']:g} %, not to be {each['fine_percent']:g} %"
                for each in trial["guards"]
            ),
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
            ["variant and version", "state", "accuracy, %", "95 % interval", "known from",
             "predicted, ms", "a batch, ms", "USD/1,000", "served", "loaded in"],
            rows,
            "Predicted: the run time (p50) of one item on each device class, corrected by what was "
            "observed. A batch may have several items: the mean of what batches took.",
        ),
        (
            "Accuracy by feedback",
            ["variant", "stated from, %", "by feedback, %", "95 % interval", "items",
             "counts for, %"],
            feedback,
            "What clients said of the answers; a variant below its stated interval is demoted.",
        ),
        (
            "Canaries",
            ["version", "against", "share, %", "queries", "queries of the other", "minutes",
             "decision", "guards: bad items"],
            trials,
            "New versions on trial. At 100 % the evidence is as strong as it has to be.",
        ),
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


def quote_rows(
    quote: Mapping[str, Any], least_percent: float, most_usd: float
) -> list[Sequence[str]]:
    """The candidates of a quote, a row each, under ``QUOTE_HEADS``: first what serves, and what
    is extreme.

    Args:
        least_percent, most_usd: limits of the query; the other is in the quote.
    """

    def word(found: Mapping[str, Any]) -> tuple[int, str]:
        place = found["variant"], found["device"]
        best = [
            name.replace("_", " ")
            for name in ("serves", "fastest", "most_accurate", "cheapest")
            if (other := quote[name]) and (other["variant"], other["device"]) == place
        ]
        misses = [
            name
            for name, is_missed in (
                ("latency", found["latency_ms"] > quote["latency_ms"]),
                ("accuracy", found["accuracy"] < least_percent),
                ("cost", found["cost_usd"] > most_usd),
            )
            if is_missed
        ]
        if misses:
            best += ["misses " + " and ".join(misses)]
        return (2 if misses else 0 if "serves" in best else 1), ", ".join(best) or "would do"

    rows = sorted(
        ((*word(found), found) for found in quote["candidates"]),
        key=lambda row: (row[0], -row[2]["accuracy"], row[2]["latency_ms"]),
    )
    return [
        (
            text,
            found["variant"],
            found["device"],
            f"{100.0 * found['probability']:.1f}",
            *(_number(found[key], ".4g") for key in ("latency_ms", "p99_latency_ms")),
            f"{found['accuracy']:.2f}",
            _number(found["cost_usd"], ".3g"),
        )
        for _, text, found in rows
    ]


QUOTE_HEADS: Final = (
    "which", "variant", "device", "in time, %", "latency, ms", "p99, ms", "accuracy, %", "USD",
)  # fmt: skip


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _ratio(total: float, count: float, digits: int = 1) -> str:
    return f"{total / count:.{digits}f}" if count else "-"
