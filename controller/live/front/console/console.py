"""Answers ``/console``: status, store, quotes, settings; keeps ten minutes of figures."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from modelless.common.errors import (
    InvalidInputError,
    ModellessError,
    NotFoundError,
    OverloadedError,
    StoreError,
)
from modelless.controller.api.v2_reply import Headers, Reply, render_json
from modelless.controller.history.entries import Told, Wanted, read_entries
from modelless.controller.history.why import context_of, entry_lines, entry_text, words
from modelless.controller.live.front.console.forms import read_form, set_token, token_of
from modelless.controller.live.front.console.frontier import draw_frontier
from modelless.controller.live.front.console.pages import (
    CANDIDATE_HEADS,
    CHARTS,
    QUOTE_HEADS,
    RECEIPT_HEADS,
    UNMET_HEADS,
    VariantRow,
    candidate_rows,
    now_tables,
    quote_rows,
    receipt_rows,
    render_asset,
    render_page,
    tiles,
    unmet_rows,
    variant_tables,
)
from modelless.controller.live.front.console.settings import (
    Overview,
    act,
    infer,
    read_overview,
    run_command,
    simulate,
    simulation_rows,
)
from modelless.controller.live.front.receipt_lookup import look_up_receipt
from modelless.variants.registry.registry import open_registry

SAMPLES: Final = 600
"""Seconds of figures that are kept for the charts."""

_TIMELINE: Final = 200
_TIMELINE_S: Final = 3600.0
_SHOWN: Final = 12
_TRAFFIC_S: Final = 60
_MOST_FOUND: Final = 500
_SEARCH_S: Final = 60.0

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


_NO_STORY: Final = Story((), None, (), "")


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
        set_aside: Callable[[Callable[[], Any], Callable[[Respond, Any], int], Respond], int],
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
        self._served: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=_TRAFFIC_S)
        self._working: asyncio.Task[None] | None = None

    def answer(self, page: str, path: bytes, headers: Headers, respond: Respond) -> int | None:
        """Answer a request for a page, ``now`` or one of the others, or for what it needs.

        Returns:
            The number of a read that is under way; None if it was answered at once.

        Raises:
            NotFoundError: there is no such page.
        """
        asked = read_form(path.partition(b"?")[2])
        if page == "why" and "find" in asked and self._home is not None:
            show = partial(self._tell_search, asked, respond)
            self._work(partial(_search, self._home, asked), show)
            return None
        if page == "policies":
            return self._show_settings(respond, headers, done=asked.get("done", "")[:20])
        if page == "why" and self._home is not None:
            receipt_id = asked.get("receipt", "").strip()[:160]
            read = partial(read_story, self._home, receipt_id)
            return self._set_aside(read, partial(self._tell, receipt_id), respond)
        if page == "why":
            self._show_story(respond, problem="")
        elif page == "series":
            respond(render_json(self.series()))
        elif page == "variants":
            found = variant_tables(self._status(), self._variants())
            respond(render_page("tables.html", "Variants", tables=found))
        elif page == "frontier":
            drawn = draw_frontier(self._status(), self._variants(), self.traffic())
            respond(render_page("frontier.html", "Frontier", **drawn))
        elif page == "try":
            token = token_of(headers)
            shown = self._try(asked, token)
            respond(shown._replace(headers=[*shown.headers, set_token(token)]))
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
        self._served.append((at_s, status.get("served_by_variant", {})))
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

    def traffic(self) -> dict[str, float]:
        """Answers per second of each variant over the last minute."""
        if len(self._served) < 2:
            return {}
        (then_s, then), (now_s, now) = self._served[0], self._served[-1]
        more = Counter(now)
        more.subtract(then)
        return {name: count / (now_s - then_s) for name, count in more.items() if count > 0}

    def act(
        self, form: Mapping[str, str], by: str, headers: Headers, respond: Respond
    ) -> int | None:
        """Carry out a form of the page *Policies*: simulate, apply or roll back.

        Args:
            form: whose token was checked.
            by: who does it, for the audit log.
        """
        if self._home is None:
            raise NotFoundError("this gateway has no store to keep settings in")
        home = self._home
        if form.get("do") == "simulate":

            def show(found: Mapping[str, Any] | Exception) -> None:
                self._show_settings(respond, headers, form=form, outcome=found)

            self._work(partial(simulate, home, form), show)
            return None

        def change() -> int | str:
            try:
                return act(home, form, by).number
            except ModellessError as error:  # shown on the page, beside what was filled in
                return str(error)

        def tell(respond: Respond, made: int | str) -> int:
            if isinstance(made, int):
                where = f"/console/policies?done={made}".encode()
                respond(Reply(303, b"", [(b"location", where), (b"content-length", b"0")]))
            else:
                self._show_settings(respond, headers, form=form, outcome=ModellessError(made))
            return 0

        return self._set_aside(change, tell, respond)

    def infer(self, form: Mapping[str, str], picture: bytes, respond: Respond) -> None:
        """Ask a real query with a picture or a text, and answer with its story."""
        if self._home is None:
            raise NotFoundError("this gateway has no home, so it cannot ask itself")

        def show(found: Mapping[str, Any] | Exception) -> None:
            is_error = isinstance(found, Exception)
            answer = None if isinstance(found, Exception) else found
            problem = str(found) if is_error else ""
            status = 400 if is_error else 200
            respond(render_page("answer.html", "Answer", status, answer=answer, problem=problem))

        self._work(partial(infer, self._home, form, picture), show)

    def _work(self, work: Callable[[], Any], show: Callable[[Any], None]) -> None:
        """Have a process do what takes seconds, one at a time, and show its result or error.

        Raises:
            OverloadedError: another is at work.
        """
        if self._working is not None and not self._working.done():
            raise OverloadedError("another search or simulation is under way; try again then")

        async def go_on() -> None:
            try:
                found = await asyncio.to_thread(work)
            except Exception as error:  # noqa: BLE001  (it is shown)
                found = error
            show(found)

        self._working = asyncio.get_running_loop().create_task(go_on())

    def _show_settings(
        self,
        respond: Respond,
        headers: Headers,
        *,
        form: Mapping[str, str] | None = None,
        outcome: Mapping[str, Any] | Exception | None = None,
        done: str = "",
    ) -> int:
        token = token_of(headers)

        def render(respond: Respond, overview: Overview) -> int:
            is_error = isinstance(outcome, Exception)
            page = render_page(
                "policies.html",
                "Policies",
                status=400 if is_error else 200,
                overview=overview,
                form=form or {},
                token=token,
                done=done if done.isdigit() else "",
                problem=str(outcome) if is_error else overview.problem,
                simulated=None if is_error else outcome,
                rows=simulation_rows(outcome) if isinstance(outcome, Mapping) else (),
            )
            respond(page._replace(headers=[*page.headers, set_token(token)]))
            return 0

        if self._home is None:
            return render(respond, Overview((), 0, (), "this gateway has no store"))
        return self._set_aside(partial(read_overview, self._home), render, respond)

    def _tell_search(
        self, asked: Mapping[str, str], respond: Respond, found: Mapping[str, Any] | Exception
    ) -> None:
        is_error = isinstance(found, Exception)
        receipts = () if isinstance(found, Exception) else found["receipts"]
        self._show_story(
            respond,
            asked=asked,
            problem=str(found) if is_error else "",
            found=None if is_error else receipt_rows(receipts),
            unmet=unmet_rows(receipts),
        )

    def _tell(self, receipt_id: str, respond: Respond, story: Story) -> int:
        self._show_story(respond, story, receipt=receipt_id, problem=story.problem)
        return 0

    def _show_story(self, respond: Respond, story: Story = _NO_STORY, **values: Any) -> None:
        rows = [
            (
                told.at.strftime("%H:%M:%S"),
                told.entry.kind,
                told.entry.subject,
                entry_text(told.entry),
            )
            for told in story.timeline
        ]
        shown = {
            "receipt": "", "asked": {}, "found": None, "unmet": (), **values,
            "story": story.lines, "candidates": candidate_rows(story.receipt or {}),
            "recent": self._recent(), "timeline": rows,
        }  # fmt: skip
        heads: dict[str, Any] = {
            "candidate_heads": CANDIDATE_HEADS, "receipt_heads": RECEIPT_HEADS,
        }  # fmt: skip
        respond(render_page("why.html", "Why", **heads, unmet_heads=UNMET_HEADS, **shown))

    def _try(self, asked: Mapping[str, str], token: str) -> Reply:
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
            token=token,
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


def _search(home: Path, asked: Mapping[str, str]) -> Mapping[str, Any]:
    """The receipts of the last hour that are asked for. Blocks."""
    words = ["receipts", "--json", f"--most={_MOST_FOUND}"]
    words += [f"--{name}={asked[name]}" for name in ("task", "tenant", "outcome", "since")
              if asked.get(name)]  # fmt: skip
    return run_command(home, words, _SEARCH_S)


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
