"""The operators' page ``/console``: the cluster now, as HTML without scripts.

It shows what ``/modelless/status`` says. Names come from whoever registers models, so every text is
escaped, and the content security policy allows the page's own style and nothing else.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from itertools import islice
from typing import Any, Final

from modelless.common.pages import STYLE, Cells, page, section, table
from modelless.controller.api.v2_reply import Reply

MOST_ROWS: Final = 200
"""Of a table; the page says so when there are more."""

_MIB: Final = 2**20
_STYLE_HASH: Final = b64encode(sha256(STYLE.encode()).digest()).decode()
_HEADERS: Final = [
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'".encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def render_now(status: Mapping[str, Any]) -> Reply:
    """Return the page of a status, as ``/modelless/status`` gives it."""
    body = page(
        "".join(_sections(status)),
        title="modelless: now",
        heading="Now",
        lead=_lead(status),
        subtitle="Load the page again for newer figures.",
        data="/modelless/status",
    )
    sent = body.encode()
    return Reply(200, sent, [*_HEADERS, (b"content-length", b"%d" % len(sent))])


def _lead(status: Mapping[str, Any]) -> str:
    """The rate, what waits, and how many of the queries that ended were in time."""
    members = status["members"]
    rate = sum(member["arrivals_per_s"] for member in members)
    queued = sum(member["queued"] for member in members if member["role"] == "gateway")
    outcomes = status.get("outcomes", {})
    ended = sum(outcomes.get(name, 0) for name in ("served", "served-late", "refused"))
    lead = f"{rate:.1f} queries a second; {queued} wait"
    if ended:
        lead += f"; {outcomes.get('served', 0) / ended:.2%} of {ended:,} since the start in time"
    return lead + "."


def _sections(status: Mapping[str, Any]) -> Iterable[str]:
    members = status["members"]
    queries = status.get("statistics", {}).get("queries", {})
    yield _table(
        "Tasks",
        "Queries since the start of the control process; those served late count as served.",
        ["task, model or variant", "served", "refused", "mean latency, ms"],
        [
            (escape(name), f"{served:,.0f}", f"{refused:,.0f}", _ratio(1e3 * took_s, served))
            for name, (served, refused, took_s) in sorted(queries.items())
        ],
    )
    yield _table(
        "Gateways and workers",
        "",
        ["name", "role", "device", "loaded", "loading", "MiB used", "MiB allowed", "waiting",
         "queries/s", "state"],
        [
            (
                escape(member["id"]),
                escape(member["role"]),
                escape(member["device_class"] or "-"),
                f"{len(member['loaded'])}",
                f"{len(member['loading'])}",
                f"{member['memory_bytes'] / _MIB:.1f}",
                f"{member['memory_budget_bytes'] / _MIB:.1f}",
                f"{member['queued']}",
                f"{member['arrivals_per_s']:.1f}",
                escape(_state(member)),
            )
            for member in members
        ],
    )  # fmt: skip
    holders = Counter(variant for member in members for variant in member["loaded"])
    answered = status.get("served_by_variant", {})
    yield _table(
        "Variants",
        "",
        ["variant", "loaded in", "queries served"],
        [
            (escape(name), f"{holders[name]}", f"{answered.get(name, 0):,}")
            for name in sorted({*holders, *answered})
        ],
    )
    yield _table(
        "Predictions",
        "Latencies lately against what was predicted; the goals are 90 % within p90 and 99 % "
        "within p99.",
        ["device", "batches", "within p90, %", "within p99, %", "median error, %"],
        [
            (
                escape(row["device_class"]),
                f"{row['outcomes']:,}",
                *(
                    "-" if row[name] is None else f"{row[name]:.1f}"
                    for name in (
                        "within_p90_percent", "within_p99_percent", "median_error_percent"
                    )
                ),
            )
            for row in status.get("predictions", ())
        ],
    )  # fmt: skip
    yield _table(
        "Not served",
        "",
        ["task", "why"],
        [(escape(name), escape(why)) for name, why in status.get("not_served", {}).items()],
    )


def _table(heading: str, text: str, heads: list[str], rows: Iterable[Cells]) -> str:
    """A section with a table of at most ``MOST_ROWS``; says so if it is empty or cut."""
    found = list(islice(rows, MOST_ROWS + 1))
    if not found:
        return section(heading, text, "<p>None.</p>")
    if len(found) > MOST_ROWS:
        text += f" The first {MOST_ROWS}; /modelless/status has all."
    return section(heading, text.strip(), table(heads, found[:MOST_ROWS], heading))


def _state(member: Mapping[str, Any]) -> str:
    """What is unusual about a member; ``-`` if nothing is."""
    unusual = [
        "starting" if member["is_starting"] else "",
        f"becomes {member['resizing_to']}" if member["resizing_to"] else "",
        f"quarantined: {member['quarantine']}" if member["quarantine"] else "",
        f"{len(member['failed_loads'])} failed loads" if member["failed_loads"] else "",
    ]
    return "; ".join(filter(None, unusual)) or "-"


def _ratio(total: float, count: float) -> str:
    return f"{total / count:.1f}" if count else "-"
