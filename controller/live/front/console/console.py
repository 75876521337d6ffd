"""Answers ``/console``: status, store, quotes, settings; keeps ten minutes of figures.

What a page shows is collected on the event loop, and the page is made of it aside.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from modelless.common.errors import (
    InvalidInputError,
    ModellessError,
    NotFoundError,
    OverloadedError,
    StoreError,
)
from modelless.controller.api.v2_reply import Headers, Reply
from modelless.controller.history.entries import (
    NOTED_KINDS,
    SERVING_KINDS,
    Told,
    Wanted,
    read_entries,
)
from modelless.controller.history.why import context_of, entry_lines, entry_text, words
from modelless.controller.live.front.console.followed import (
    FOLLOWED,
    Found,
    render_followed,
    render_parts,
)
from modelless.controller.live.front.console.forms import read_form, set_token, token_of
from modelless.controller.live.front.console.pages import (
    CANDIDATE_HEADS,
    CHARTS,
    NOTHING_LATELY,
    QUOTE_HEADS,
    RECEIPT_HEADS,
    UNMET_HEADS,
    Lately,
    VariantRow,
    candidate_rows,
    quote_rows,
    receipt_rows,
    render_asset,
    render_page,
    unmet_rows,
)
from modelless.controller.live.front.console.settings import (
    Overview,
    act,
    infer,
    most_usd,
    read_overview,
    run_command,
    simulate,
    simulation_rows,
)
from modelless.controller.live.front.console.streams import Event, EventStreams, event_of
from modelless.controller.live.front.interfaces import Respond
from modelless.controller.live.receipt_lookup import look_up_receipt
from modelless.variants.registry.registry import open_registry

SAMPLES: Final = 600
"""Seconds of figures that are kept for the charts."""

_TIMELINE: Final = 200
_TIMELINE_S: Final = 3600.0
_SHOWN: Final = 12
_COUNTED_STEP_S: Final = 10.0
_COUNTED: Final = 7
"""Counts that are kept, so many seconds apart: a minute of them."""
_MOST_FOUND: Final = 500
_SEARCH_S: Final = 60.0


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


def read_story(home: Path, receipt_id: str, kind: str = "", about: str = "") -> Story:
    """The last hour's decisions and, if an id is given, one query's story. Blocks.

    Args:
        kind, about: of the decisions that are wanted, and the task or variant; empty for all.
    """
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
        with closing(open_registry(home)) as registry:
            begin = datetime.now(UTC) - timedelta(seconds=_TIMELINE_S)
            kinds = (kind,) if kind else ()
            wanted = Wanted(begin, kinds=kinds, task=about or None, most=_TIMELINE)
            timeline = read_entries(registry.store, wanted)
            if receipt is not None:
                entries, absent = context_of(registry.store, receipt)
                arrived = datetime.fromisoformat(receipt["arrived_at"])
                lines = [*lines, *absent, *entry_lines(entries[-_SHOWN:], arrived)]
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
        self._counted: deque[tuple[float, tuple[Mapping[str, Any], ...]]]
        self._counted = deque(maxlen=_COUNTED)
        self._working: asyncio.Task[None] | None = None
        self.streams = EventStreams(self._follow)
        self._told_s = 0.0

    def close(self) -> None:
        """End the streams."""
        self.streams.close()

    def answer(
        self, page: str, path: bytes, headers: Headers, respond: Respond, owner: str = ""
    ) -> int | None:
        """Answer a request for a page, ``now`` or one of the others, or for what it needs.

        Args:
            owner: id of the key; empty for none.

        Returns:
            The number of a page that is being made; None if it was answered at once.

        Raises:
            NotFoundError: there is no such page.
        """
        asked = read_form(path.partition(b"?")[2])
        if page == "why":
            return self._why(asked, respond)
        if page == "policies":
            done = asked.get("done", "")[:20]
            show = partial(_render_settings, self._home, token_of(headers))
            return self._make(partial(show, done=done if done.isdigit() else ""), respond)
        if page == "try":
            return self._try(asked, token_of(headers), respond)
        if page in FOLLOWED:
            return self._make(partial(render_followed, page, self._found()), respond)
        if page == "stream" and (shown := asked.get("page", "")) in FOLLOWED:
            first = () if shown else [event_of("series", self.series())]
            respond(self.streams.open(shown, owner, first))
            return None
        asset = render_asset(page.removeprefix("assets/"), asked.get("v", ""))
        if asset is None:
            raise NotFoundError(f"the console has no page {page!r:.80}")
        respond(asset)
        return None

    def _follow(self, page: str, send: Callable[[Iterable[Event]], None]) -> None:
        """Have the parts of a page rendered for its stream."""

        def tell(respond: Respond, parts: list[Event]) -> int:
            if not page:
                parts.append(event_of("series", self.series(after_s=self._told_s)))
                self._told_s = self._samples[-1].at_s if self._samples else 0.0
            send(parts)
            respond(Reply(200, b"", []))  # to nobody: the frontend forgets what was set aside
            return 0

        self._set_aside(partial(render_parts, page, self._found()), tell, lambda _: None)

    def _found(self) -> Found:
        return Found(self._status(), self._variants(), self.lately())

    def _make(self, make: Callable[[], Reply], respond: Respond) -> int:
        """Have a page rendered aside."""

        def show(respond: Respond, page: Reply) -> int:
            respond(page)
            return 0

        return self._set_aside(make, show, respond)

    def sample(self, status: Mapping[str, Any], at_s: float) -> None:
        """Keep the figures of a status for the charts.

        Args:
            at_s: seconds since 1970.
        """
        if self._samples and at_s - self._samples[-1].at_s < 0.9:
            return
        outcomes = status.get("outcomes", {})
        names = ("served_by_variant", "tasks", "tenants")
        if len(self._counted) > 1 and at_s - self._counted[-2][0] <= _COUNTED_STEP_S:
            self._counted.pop()  # only the first and the last are of use
        self._counted.append((at_s, tuple(status.get(name, {}) for name in names)))
        queries = status.get("statistics", {}).get("queries", {}).values()
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

    def series(self, after_s: float = 0.0) -> list[list[float | None]]:
        """Times, seconds since 1970, and for each the values of ``CHARTS``; None where unknown."""
        columns: list[list[float | None]] = [[] for _ in range(1 + len(CHARTS))]
        for before, now in pairwise(self._samples):
            if now.at_s <= after_s:
                continue
            ended, served = now.ended - before.ended, now.served - before.served
            attained = 100.0 * (now.in_time - before.in_time) / ended if ended > 0 else None
            took_ms = 1e3 * (now.took_s - before.took_s) / served if served > 0 else None
            for column, value in zip(columns, (now.at_s, now.rate, attained, took_ms), strict=True):
                column.append(None if value is None else round(value, 2))
        return columns

    def lately(self) -> Lately:
        """The counts of the last minute."""
        if len(self._counted) < 2:
            return NOTHING_LATELY
        (then_s, (served, *before)), (now_s, (serves, *now)) = self._counted[0], self._counted[-1]
        tasks, tenants = (
            {name: _grown(row, then.get(name, {})) for name, row in each.items()}
            for each, then in zip(now, before, strict=True)
        )
        return Lately(now_s - then_s, _grown(serves, served), tasks, tenants)

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
        home, show = self._home, partial(_render_settings, self._home, token_of(headers), form)
        if form.get("do") == "simulate":
            self._work(lambda: show(simulate(home, form)), show, respond)
            return None

        def change() -> Reply:
            try:
                where = f"/console/policies?done={act(home, form, by).number}".encode()
            except ModellessError as error:  # shown on the page, beside what was filled in
                return show(error)
            return Reply(303, b"", [(b"location", where), (b"content-length", b"0")])

        return self._make(change, respond)

    def infer(self, form: Mapping[str, str], picture: bytes, respond: Respond) -> None:
        """Ask a real query with a picture or a text, and answer with its story."""
        if self._home is None:
            raise NotFoundError("this gateway has no home, so it cannot ask itself")

        home = self._home
        show = partial(render_page, "answer.html", "Answer")
        self._work(
            lambda: show(answer=infer(home, form, picture), problem=""),
            lambda error: show(400, answer=None, problem=str(error)),
            respond,
        )

    def _work(
        self, make: Callable[[], Reply], refuse: Callable[[Exception], Reply], respond: Respond
    ) -> None:
        """Have a page made that takes seconds, one at a time; ``refuse`` makes one of an error.

        Raises:
            OverloadedError: another is at work.
        """
        if self._working is not None and not self._working.done():
            raise OverloadedError("another search or simulation is under way; try again then")

        async def go_on() -> None:
            try:
                page = await asyncio.to_thread(make)
            except Exception as error:  # noqa: BLE001  (it is shown)
                page = await asyncio.to_thread(refuse, error)
            respond(page)

        self._working = asyncio.get_running_loop().create_task(go_on())

    def _why(self, asked: Mapping[str, str], respond: Respond) -> int | None:
        home, recent = self._home, list(self._recent())
        show = partial(_render_story, recent)
        if home is None:
            return self._make(show, respond)
        if "find" in asked:
            self._work(
                lambda: show(asked=asked, receipts=_search(home, asked)["receipts"]),
                lambda error: show(asked=asked, problem=str(error)),
                respond,
            )
            return None
        receipt_id = asked.get("receipt", "").strip()[:160]
        kind, about = (asked.get(name, "").strip()[:200] for name in ("kind", "about"))
        return self._make(
            lambda: show(
                read_story(home, receipt_id, kind, about),
                receipt=receipt_id,
                kind=kind,
                about=about,
            ),
            respond,
        )

    def _try(self, asked: Mapping[str, str], token: str, respond: Respond) -> int:
        scopes = list(self._scopes())
        form = {
            "task": asked.get("task", scopes[0] if scopes else ""),
            "latency_ms": asked.get("latency_ms", "100"),
            "min_accuracy": asked.get("min_accuracy", "0"),
            "max_cost": asked.get("max_cost", "0"),
            "items": asked.get("items", "1"),
        }
        quote, problem, limit_usd = None, "", None
        if form["task"]:
            try:
                limit_usd = most_usd(form)
                quote = self._quote(_quote_body(form, limit_usd))
            except ModellessError as error:
                problem = str(error)
        show = partial(_render_try, token, form, scopes, quote, problem, limit_usd)
        return self._make(show, respond)


def _render_settings(
    home: Path | None,
    token: str,
    form: Mapping[str, str] = MappingProxyType({}),
    outcome: Mapping[str, Any] | Exception | None = None,
    done: str = "",
) -> Reply:
    """The page *Policies*: what came of a form, settings in force and revisions. Blocks."""
    if home is None:
        overview = Overview((), 0, (), "this gateway has no store")
    else:
        overview = read_overview(home)
    is_error = isinstance(outcome, Exception)
    page = render_page(
        "policies.html",
        "Policies",
        status=400 if is_error else 200,
        overview=overview,
        form=form,
        token=token,
        done=done,
        problem=str(outcome) if is_error else overview.problem,
        simulated=None if is_error else outcome,
        rows=simulation_rows(outcome) if isinstance(outcome, Mapping) else (),
    )
    return page._replace(headers=[*page.headers, set_token(token)])


def _render_story(
    recent: Sequence[tuple[str, str]],
    story: Story = _NO_STORY,
    *,
    receipt: str = "",
    asked: Mapping[str, str] = MappingProxyType({}),
    receipts: Sequence[Mapping[str, Any]] | None = None,
    problem: str = "",
    kind: str = "",
    about: str = "",
) -> Reply:
    """The page *Why*."""
    rows = [
        (told.at.strftime("%H:%M:%S"), told.entry.kind, told.entry.subject, entry_text(told.entry))
        for told in story.timeline
    ]
    return render_page(
        "why.html",
        "Why",
        candidate_heads=CANDIDATE_HEADS,
        receipt_heads=RECEIPT_HEADS,
        unmet_heads=UNMET_HEADS,
        receipt=receipt,
        asked=asked,
        found=None if receipts is None else receipt_rows(receipts),
        unmet=unmet_rows(receipts or ()),
        problem=problem or story.problem,
        story=story.lines,
        candidates=candidate_rows(story.receipt or {}),
        recent=recent,
        timeline=rows,
        kinds=sorted({*SERVING_KINDS, *NOTED_KINDS}),
        kind=kind,
        about=about,
    )


def _render_try(
    token: str,
    form: Mapping[str, str],
    scopes: Sequence[str],
    quote: Mapping[str, Any] | None,
    problem: str,
    limit_usd: float | None,
) -> Reply:
    rows: list[Sequence[str]] = []
    if quote is not None:
        most = inf if limit_usd is None else limit_usd
        rows = quote_rows(quote, float(form["min_accuracy"]), most)
    page = render_page(
        "try.html",
        "Try it",
        token=token,
        form=form,
        scopes=scopes,
        quote=quote,
        problem=problem,
        candidate_heads=QUOTE_HEADS,
        candidates=rows,
        most_usd=limit_usd,
        nearest=[
            ["; ".join(f"{name} {value:.4g}" for name, value in limits.items())]
            for limits in (quote or {}).get("nearest_limits", ())
        ],
    )
    return page._replace(headers=[*page.headers, set_token(token)])


def _grown(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, Any]:
    """By how much counts grew; 0 for those that began anew."""
    return {name: max(count - before.get(name, 0), 0) for name, count in now.items()}


def _search(home: Path, asked: Mapping[str, str]) -> Mapping[str, Any]:
    """The receipts of the last hour that are asked for. Blocks."""
    words = ["receipts", "--json", f"--most={_MOST_FOUND}"]
    words += [f"--{name}={asked[name]}" for name in ("task", "tenant", "outcome", "since")
              if asked.get(name)]  # fmt: skip
    return run_command(home, words, _SEARCH_S)


def _quote_body(form: Mapping[str, str], limit_usd: float | None) -> bytes:
    """The body of a quote for a form's fields; what is no number stays text, to be refused."""
    numbers = {name: _number(form[name]) for name in ("latency_ms", "min_accuracy", "items")}
    limits = {name: numbers[name] for name in ("latency_ms", "min_accuracy")}
    if limit_usd is not None:
        limits["max_cost_usd"] = limit_usd
    return json.dumps(
        {"task": form["task"], "items": numbers["items"], "parameters": limits}
    ).encode()


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
