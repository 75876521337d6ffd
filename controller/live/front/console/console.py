"""Answers ``/console``: reads the status, the store and a quote; keeps ten minutes of figures."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError, StoreError
from modelless.controller.api.v2_reply import Reply, render_json
from modelless.controller.history.entries import Told, Wanted, read_entries
from modelless.controller.history.why import context_of, entry_lines, entry_text, words
from modelless.controller.live.front.console.pages import (
    CANDIDATE_HEADS,
    CHARTS,
    QUOTE_HEADS,
    VariantRow,
    candidate_rows,
    now_tables,
    quote_rows,
    render_asset,
    render_page,
    tiles,
    variant_tables,
)
from modelless.controller.live.front.receipt_lookup import look_up_receipt
from modelless.variants.registry.registry import open_registry

SAMPLES: Final = 600
"""Seconds of figures that are kept for the charts."""

_TIMELINE: Final = 200
_TIMELINE_S: Final = 3600.0
_SHOWN: Final = 12

Respond = Callable[[Reply], None]


class _Sample(NamedTuple):
    at_s: float
    rate: float
    in_time: float
    ended: float
    served: float
    took_s: float


class Story(NamedTuple):
    """What the page *Why* shows; read from the store and the receipts."""

    timeline: Sequence[Told]
    receipt: Mapping[str, Any] | None
    lines: Sequence[str]
    problem: str


def read_story(home: Path, receipt_id: str) -> Story:
    """The last hour's decisions and, if an id is given, one query's story. Blocks."""
    timeline: list[Told] = []
    lines: list[str] = []
    receipt: Mapping[str, Any] | None = None
    problem = ""
    try:
        if receipt_id:
            receipt = look_up_receipt(home, receipt_id)
            lines = words(receipt)
    except (InvalidInputError, NotFoundError) as error:
        problem = str(error)
    try:
        registry = open_registry(home)
        try:
            begin = datetime.now(UTC) - timedelta(seconds=_TIMELINE_S)
            timeline = read_entries(registry.store, Wanted(since=begin, most=_TIMELINE))
            if receipt is not None:
                entries, absent = context_of(registry.store, receipt)
                arrived = datetime.fromisoformat(receipt["arrived_at"])
                lines = [*lines, *absent, *entry_lines(entries[-_SHOWN:], arrived)]
        finally:
            registry.close()
    except StoreError as error:
        problem = problem or f"The store cannot be read: {error}"
    return Story(timeline[::-1], receipt, lines, problem)


class Console:
    """The pages of one gateway.

    Args:
        home: of the store and the receipts; None: *Why* has nothing to show.
        status: returns ``/modelless/status``.
        variants: returns a row a variant in service.
        scopes: returns the names that a quote may be asked for.
        quote: returns the quote of a request's body.
        set_aside: runs the first argument in a thread and passes its result on.
        recent: returns ids and outcomes of this gateway's latest queries.
    """

    def __init__(
        self,
        home: Path | None,
        status: Callable[[], Mapping[str, Any]],
        variants: Callable[[], Sequence[VariantRow]],
        scopes: Callable[[], Sequence[str]],
        quote: Callable[[bytes], Mapping[str, Any]],
        set_aside: Callable[[Callable[[], Story], Callable[[Respond, Story], int], Respond], int],
        recent: Callable[[], Sequence[tuple[str, str]]],
    ) -> None:
        self._home = home
        self._status = status
        self._variants = variants
        self._scopes = scopes
        self._quote = quote
        self._set_aside = set_aside
        self._recent = recent
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)

    def answer(self, page: str, path: bytes, respond: Respond) -> int | None:
        """Answer a request for a page, ``now`` or one of the others, or for what it needs.

        Returns:
            The number of a read that is under way; None if it was answered at once.

        Raises:
            NotFoundError: there is no such page.
        """
        asked = _read_query(path)
        if page == "why" and self._home is not None:
            receipt_id = asked.get("receipt", "").strip()[:160]
            read = partial(read_story, self._home, receipt_id)
            return self._set_aside(read, partial(self._tell, receipt_id), respond)
        if page == "why":
            self._tell("", respond, Story((), None, (), ""))
        elif page == "series":
            respond(render_json(self.series()))
        elif page == "variants":
            found = variant_tables(self._status(), self._variants())
            respond(render_page("tables.html", "Variants", tables=found))
        elif page == "try":
            respond(self._try(asked))
        elif page in ("", "live"):
            status = self._status()
            accuracies = {row.variant_id: row.accuracy.percent for row in self._variants()}
            template = "live.html" if page else "now.html"
            values: dict[str, Any] = {
                "tiles": tiles(status, accuracies),
                "tables": now_tables(status),
            }
            respond(render_page(template, "Now", charts=CHARTS, **values))
        else:
            asset = render_asset(page.removeprefix("assets/"))
            if asset is None:
                raise NotFoundError(f"the console has no page {page!r:.80}")
            respond(asset)
        return None

    def sample(self, status: Mapping[str, Any], at_s: float) -> None:
        """Keep the figures of a status for the charts.

        Args:
            at_s: seconds since 1970.
        """
        if self._samples and at_s - self._samples[-1].at_s < 0.9:
            return
        outcomes = status.get("outcomes", {})
        queries = [row for name, row in status.get("statistics", {}).get("queries", {}).items()]
        self._samples.append(
            _Sample(
                round(at_s, 1),
                round(sum(each["arrivals_per_s"] for each in status.get("members", ())), 1),
                outcomes.get("served", 0),
                sum(outcomes.get(name, 0) for name in ("served", "served-late", "refused")),
                sum(row[0] for row in queries),
                sum(row[2] for row in queries),
            )
        )

    def series(self) -> list[list[float | None]]:
        """Times, seconds since 1970, and for each the values of ``CHARTS``; None where unknown."""
        columns: list[list[float | None]] = [[] for _ in range(1 + len(CHARTS))]
        for before, now in zip(self._samples, list(self._samples)[1:], strict=False):
            ended, served = now.ended - before.ended, now.served - before.served
            attained = 100.0 * (now.in_time - before.in_time) / ended if ended > 0 else None
            took_ms = 1e3 * (now.took_s - before.took_s) / served if served > 0 else None
            for column, value in zip(columns, (now.at_s, now.rate, attained, took_ms), strict=True):
                column.append(None if value is None else round(value, 2))
        return columns

    def _tell(self, receipt_id: str, respond: Respond, story: Story) -> int:
        rows = [
            (
                told.at.strftime("%H:%M:%S"),
                told.entry.kind,
                told.entry.subject,
                entry_text(told.entry),
            )
            for told in story.timeline
        ]
        respond(
            render_page(
                "why.html",
                "Why",
                receipt=receipt_id,
                problem=story.problem,
                story=story.lines,
                candidate_heads=CANDIDATE_HEADS,
                candidates=candidate_rows(story.receipt or {}),
                recent=self._recent(),
                timeline=rows,
            )
        )
        return 0

    def _try(self, asked: Mapping[str, str]) -> Reply:
        scopes = list(self._scopes())
        form = {
            "task": asked.get("task", scopes[0] if scopes else ""),
            "latency_ms": asked.get("latency_ms", "100"),
            "min_accuracy": asked.get("min_accuracy", "0"),
            "items": asked.get("items", "1"),
        }
        quote, problem = None, ""
        if "task" in asked:
            try:
                quote = self._quote(_quote_body(form))
            except ModellessError as error:
                problem = str(error)
        return render_page(
            "try.html",
            "Try it",
            form=form,
            scopes=scopes,
            quote=quote,
            problem=problem,
            candidate_heads=QUOTE_HEADS,
            candidates=quote_rows(quote) if quote else [],
            nearest=[
                ["; ".join(f"{name} {value:.4g}" for name, value in limits.items())]
                for limits in (quote or {}).get("nearest_limits", ())
            ],
        )


def _read_query(path: bytes) -> dict[str, str]:
    """The first value of each name in a path's query string."""
    text = path.partition(b"?")[2].decode("ascii", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=16).items()}
    except ValueError:
        raise InvalidInputError.of("query string", text[:80], "at most 16 fields") from None


def _quote_body(form: Mapping[str, str]) -> bytes:
    """The body of a quote for a form's fields; what is no number stays text, to be refused."""
    numbers = {name: _number(form[name]) for name in ("latency_ms", "min_accuracy", "items")}
    limits = {name: numbers[name] for name in ("latency_ms", "min_accuracy")}
    return json.dumps(
        {"task": form["task"], "items": numbers["items"], "parameters": limits}
    ).encode()


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
