"""The console's pages, alone and at a real gateway's server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.request_limits import MOST_PICTURE_BYTES
from modelless.controller.config import Settings
from modelless.controller.control.messages import Entry, MemberReport
from modelless.controller.dispatch.counters import Meters
from modelless.controller.history.entries import write_entries
from modelless.controller.live.control.metrics import ClusterMetrics
from modelless.controller.live.front.console import settings, streams
from modelless.controller.live.front.console.console import SAMPLES, Console
from modelless.controller.live.front.console.followed import (
    FOLLOWED,
    Found,
    render_followed,
    render_parts,
)
from modelless.controller.live.front.console.frontier import draw_frontier, points_of
from modelless.controller.live.front.console.pages import (
    MOST_ROWS,
    NOTHING_LATELY,
    Lately,
    VariantRow,
    now_tables,
    tiles,
    unmet_rows,
    variant_tables,
)
from modelless.controller.live.front.console.streams import LIFE_TURNS, MOST_OF_ONE, EventStreams
from modelless.controller.live.front.gateway import Gateway
from modelless.controller.live.front.remote_workers import RemoteWorkers
from modelless.controller.live.haproxy.configuration import OF_PORT, OF_SOCKET, OPERATORS_HEADER
from modelless.controller.live.knowledge import read_knowledge
from modelless.controller.live.settings_revisions import settings_in_force
from modelless.controller.usecases.home import open_home
from modelless.variants.vocabulary import Accuracy
from tests.unit.cli.tiny import PUBLISHED, TASK, add_measurements, add_variants

from .front import INFER, Answer, Front, query, serving, until

HOSTILE = "<script>alert('x')</script>\"&"


def member(name: str, **others: Any) -> dict[str, Any]:
    return {
        "id": name, "role": "gateway", "device_class": "cpu-1", "is_starting": False,
        "resizing_to": "", "loaded": ["t/m/v"], "loading": [], "failed_loads": {},
        "quarantine": "", "memory_bytes": 3 << 20, "memory_budget_bytes": 8 << 20,
        "resident_bytes": 0, "queued": 2, "arrivals_per_s": 12.5, **others,
    }  # fmt: skip


def text_of(status: dict[str, Any]) -> str:
    return "".join(text for _, text in render_parts("", Found(status, [], NOTHING_LATELY)))


def test_now_shows_the_status() -> None:
    status = {
        "members": [member("g1"), member("g2", arrivals_per_s=0.5, quarantine="slow")],
        "outcomes": {
            "served": 96, "served-late": 3, "refused": 1, "cancelled": 7,
            "offline-served": 1000, "offline-served-late": 101, "offline-refused": 9,
        },
        "statistics": {"queries": {"t": [99, 1, 1.98], "t/m": [1, 0, 0.02]}},
        "tasks": {
            "t": {"served": 96, "served-late": 3, "refused": 1, "cost_usd": 0.25, "energy_wh": 0.48}
        },
        "tenants": {
            "shop": {"served": 3, "refused": 1, "queries_per_s": 2.0, "open": 1, "usd_today": 0.5},
            "none": {"served": 2},
        },
        "served_by_variant": {"t/m/v@1": 90, "t/m/w@1": 30, "gone": 9},
        "usd_per_hour": 0.1,
        "not_served": {"other": "no profile"},
    }  # fmt: skip
    lately = Lately(
        10.0,
        {"t/m/v@1": 4},
        {"t": {"served": 4, "refused": 1, "cost_usd": 0.125}},
        {"shop": {"served": 1, "served-late": 1}},
    )
    counted = status, {"t/m/v@1": 70.0, "t/m/w@1": 90.0}, lately
    assert tiles(*counted) == [
        ("13.0", "Queries a second", "4 wait"),
        ("80.00 %", "In time", "last minute; 96.00 % of 100 since the start"),
        ("70.00 %", "Mean accuracy",
         "last minute; 75.00 % since the start; offline ones count, the cache's do not"),
        ("0.1", "USD an hour", "for the devices"),
        ("0.00214", "USD per 1,000 queries", "devices' price at this rate"),
        ("0.4", "Wh per 1,000 answers",
         "offline ones too; busy devices, at their class's stated power; not measured"),
    ]  # fmt: skip
    rows = [row for _, _, rows, _ in now_tables(*counted) for row in rows]
    task = ("t", "0.5", "80.00", "96.00", "75.00", "20.0", "96", "3", "1", "0.25", "0.48")
    assert task in rows
    assert ("shop", "0.2", "50.00", "75.00", "3", "0", "1", "1", "0.5") in rows
    assert ("none", "0.0", "-", "100.00", "2", "0", "0", "-", "-") in rows
    assert ("other", "no profile") in rows
    assert "<td>quarantined: slow</td>" in text_of(status)


def test_hostile_names_stay_text() -> None:
    text = text_of(
        {
            "members": [
                member(HOSTILE, role=HOSTILE, device_class=HOSTILE, resizing_to=HOSTILE,
                       quarantine=HOSTILE)
            ],
            "tasks": {HOSTILE: {"served": 1}},
            "tenants": {HOSTILE: {"queries_per_s": 0.0, "open": 0, "usd_today": 0.0}},
            "not_served": {HOSTILE: HOSTILE},
        }
    )  # fmt: skip
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 9


def test_a_table_is_bounded_and_says_so() -> None:
    text = text_of({"members": [member(f"g{n}") for n in range(MOST_ROWS + 5)]})
    assert text.count("<td>g") == 2 * MOST_ROWS  # its name and its role
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 5} are shown." in text


def test_the_series_is_of_ten_minutes_and_knows_no_figures_across_a_restart() -> None:
    def status(served: int, late: int, took_s: float) -> dict[str, Any]:
        return {
            "members": [{"arrivals_per_s": 5.0}],
            "outcomes": {"served": served, "served-late": late},
            "statistics": {"queries": {"t": [served + late, 0, took_s]}},
            "served_by_variant": {"t/m/v@1": int(10 * took_s)},
        }

    console = Console(None, dict, list, list, lambda body: {}, lambda read, go_on, respond: 0, list)
    console.sample(status(0, 0, 0.0), 0.0)
    console.sample(status(9, 9, 9.0), 0.5)  # too soon
    console.sample(status(3, 1, 0.2), 1.0)
    assert console.lately().per_s == {"t/m/v@1": 2.0}
    console.sample(status(0, 0, 0.0), 2.0)
    assert console.series() == [[1.0, 2.0], [5.0, 5.0], [75.0, None], [50.0, None]]
    assert console.series(after_s=1.0) == [[2.0], [5.0], [None], [None]]
    for second in range(3, 3 * SAMPLES):
        console.sample(status(0, 0, 0.0), float(second))
    assert [len(column) for column in console.series()] == [SAMPLES - 1] * 4


def test_the_last_minute_needs_few_counts() -> None:
    console = Console(None, dict, list, list, lambda body: {}, lambda read, go_on, respond: 0, list)
    for second in range(300):
        status = {"served_by_variant": {"t/m/v@1": 3 * second}}
        console.sample(status, float(second))
        if second:
            assert console.lately().per_s == {"t/m/v@1": 3.0}
    assert 49.0 < console.lately().span_s <= 60.0
    assert len(console._counted) == 7


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Front], Awaitable[None]]], None]:
    monkeypatch.setattr(streams, "TURN_S", 3600.0)  # tests say when a turn is
    add_variants(tmp_path)
    add_measurements(tmp_path)
    knowledge = read_knowledge(tmp_path, Settings())

    def go(test: Callable[[Front], Awaitable[None]]) -> None:
        async def inside() -> None:
            async with serving(knowledge, tmp_path) as front:
                await test(front)

        asyncio.run(inside())

    return go


Run = Callable[[Callable[[Front], Awaitable[None]]], None]


def test_every_page_and_what_it_needs_comes_from_the_gateway_under_a_strict_policy(
    run: Run,
) -> None:
    async def test(front: Front) -> None:
        for path in (
            *("", "/why", "/frontier", "/policies", "/variants", "/try"),
            f"/try?task={TASK.name}",
        ):
            answer = await front.send("GET", f"/console{path}")
            assert answer.status == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert not re.search(r"\sstyle=|\son\w+=|<script>|<style", answer.document)
            for needed in re.findall(
                r'(?:src|href|data-stream|hx-get)="(/[^"]+)"', answer.document
            ):
                found = await front.send("GET", needed)
                assert found.status == 200, needed
                is_kept = "immutable" in found.headers["cache-control"]
                assert is_kept == needed.startswith("/console/assets/"), needed
        assert (await front.send("POST", "/console/variants")).status == 405
        for path in ("none", "assets/none.js", "assets/LICENSE-uPlot.txt", "why/other"):
            assert (await front.send("GET", f"/console/{path}")).status == 404

    run(test)


def test_why_tells_the_story_of_a_query_and_the_timeline(run: Run, tmp_path: Path) -> None:
    entry = Entry("scale", HOSTILE, "more work", {"from": 1, "to": 2})
    with open_home(tmp_path) as registry:
        write_entries(registry.store, [(datetime.now(UTC), entry)], 100)

    async def test(front: Front) -> None:
        asked = await front.send("POST", INFER, query(latency_ms=5000))
        assert asked.status == 200
        page = (await front.send("GET", "/console/why")).document
        assert "&lt;script&gt;" in page
        assert "<td>scale</td>" in page
        assert "/console/why?receipt=g-1" in page
        (tmp_path / "run" / "sockets").mkdir(parents=True)
        (tmp_path / "run" / "sockets" / "g.sock").symlink_to(front.path)
        shown = (await front.send("GET", "/console/why?kind=load")).document
        assert "<td>scale</td>" not in shown
        story = (await front.send("GET", "/console/why?receipt=g-1")).document
        assert f"asked for {TASK.name}" in story
        assert "<td>chosen</td>" in story
        for wrong in ("g-99", "nonsense", "..%2F..%2Fx-1"):
            answer = await front.send("GET", f"/console/why?receipt={wrong}")
            assert answer.status == 200
            assert 'role="alert"' in answer.document

    run(test)


def test_try_it_quotes_the_limits_and_says_what_is_wrong_with_others(run: Run) -> None:
    async def test(front: Front) -> None:
        async def ask(form: str) -> str:
            answer = await front.send("GET", f"/console/try?task={TASK.name}&{form}")
            text: str = answer.document
            return text

        able = await ask("latency_ms=5000&min_accuracy=0&items=1")
        assert "can be met" in able
        assert re.search(r"<td>serves, [^<]*</td>", able)
        assert "cannot be met" in await ask("latency_ms=5000&min_accuracy=100")
        assert "latency_ms: got &#39;x&#39;" in await ask("latency_ms=x")
        assert "items: got" in await ask("items=0")
        assert "max_cost: got" in await ask("max_cost=1")
        dear = await ask("latency_ms=5000&max_cost=-15")
        assert "cannot be met" in dear
        assert "misses cost" in dear
        assert front.ran == []

    run(test)


def test_the_gateway_counts_no_quote_of_an_unknown_task(run: Run) -> None:
    async def test(front: Front) -> None:
        answer = await front.send("GET", "/console/try?task=%3Cb%3E")
        assert answer.status == 200
        assert "<b>" not in answer.document.partition("<main")[2].replace("<b>cannot", "")
        assert "&lt;b&gt;" in answer.document
        async with streaming(front) as (_, first):
            assert first == [("series", "[[],[],[],[]]")]

    run(test)


@asynccontextmanager
async def streaming(
    front: Front, page: str = "", headers: str = ""
) -> AsyncIterator[tuple[asyncio.StreamReader, list[tuple[str, str]]]]:
    """A reader of a page's stream, and its first events."""
    reader, writer = await asyncio.open_unix_connection(str(front.path))
    try:
        writer.write(f"GET /console/stream?page={page} HTTP/1.1\r\n{headers}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK"), head
        assert b"text/event-stream" in head
        yield reader, await events(reader)
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> list[tuple[str, str]]:
    """The events of the next chunk; none at the end of the stream."""
    size = int(await reader.readline(), 16)
    text = (await reader.readexactly(size + 2)).decode()
    return re.findall(r"event: (\w+)\ndata: (.*?)\n\n", text, re.DOTALL)


async def turn(front: Front, *readers: asyncio.StreamReader) -> list[list[str]]:
    """Have the streams take a turn; returns the names of the events that each reader gets."""
    front.frontend.console.streams.turn()
    return [[name for name, _ in await events(reader)] for reader in readers]


def test_a_stream_brings_what_changes_and_a_sign_of_life_otherwise(run: Run) -> None:
    async def test(front: Front) -> None:
        async with streaming(front) as (one, _), streaming(front, "variants") as (other, first):
            assert first == []
            assert await turn(front, one, other) == [["tiles", "tables", "series"], ["tables"]]
            assert await turn(front, one, other) == [[], []]
            front.statistics["queries"] = {TASK.name: [1, 0, 0.5]}
            front.statistics["batches"] = {f"{TASK.name}/mean/small@1": [1, 1, 0.5]}
            assert await turn(front, other) == [["tables"]]
        assert (await front.send("GET", "/console/stream?page=policies")).status == 404

    run(test)


def test_nothing_is_left_of_a_turn(run: Run) -> None:
    async def test(front: Front) -> None:
        async with streaming(front) as (one, _), streaming(front, "variants") as (other, _):
            for _ in range(3):
                await turn(front, one, other)
            await until(lambda: not front.frontend.is_busy_aside)
            assert not front.is_reading

    run(test)


def test_a_stream_ends_when_it_is_old_and_the_connection_serves_on(run: Run) -> None:
    async def test(front: Front) -> None:
        async with streaming(front) as (reader, _):
            for _ in range(LIFE_TURNS):
                await turn(front, reader)
            assert await turn(front, reader) == [[]]
            assert len(front.frontend.console.streams) == 0

    run(test)


def test_streams_are_bounded_and_a_client_that_goes_makes_room(run: Run) -> None:
    async def test(front: Front) -> None:
        opened = front.frontend.console.streams
        async with AsyncExitStack() as several:
            for _ in range(MOST_OF_ONE):
                await several.enter_async_context(streaming(front))
            refused = await front.send("GET", "/console/stream?page=")
            assert refused.status == 429
            assert f"{MOST_OF_ONE} streams of one key" in refused.document["error"]
        await until(lambda: len(opened) == 0)
        async with streaming(front):
            assert len(opened) == 1

    run(test)


class Tab:
    """A reader of a stream; the test says whether it reads."""

    def __init__(self) -> None:
        self.is_slow = False
        self.is_whole: bool | None = None
        self.got: list[bytes] = []

    def write_stream(self, data: bytes) -> None:
        self.got.append(data)

    def end_stream(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole


def test_a_reader_that_does_not_read_is_dropped() -> None:
    async def test() -> None:
        opened = EventStreams(lambda page, send: send([("tiles", "one\ntwo")]))
        lazy, diligent = Tab(), Tab()
        for tab in (lazy, diligent):
            begin = opened.open("", "").begin
            assert begin is not None
            begin(tab)
        lazy.is_slow = True
        opened.turn()
        assert (lazy.is_whole, diligent.is_whole, len(opened)) == (False, None, 1)
        assert len(lazy.got) == 1
        assert diligent.got[1] == b"22\r\nevent: tiles\ndata: one\ndata: two\n\n\r\n"
        opened.close()
        assert diligent.is_whole

    asyncio.run(test())


def test_a_gateway_that_drains_ends_its_streams_and_begins_none(run: Run) -> None:
    async def test(front: Front) -> None:
        async with streaming(front) as (reader, _):
            front.frontend.console.close()
            assert await events(reader) == []
        assert (await front.send("GET", "/console/stream?page=")).status == 503

    run(test)


def form(**fields: object) -> bytes:
    return urlencode(fields).encode()


async def page(front: Front) -> tuple[str, dict[str, str]]:
    """The token of the page *Policies*, and headers with its cookie."""
    answer = await front.send("GET", "/console/policies")
    token = re.search(r'name="token" value="([^"]+)"', answer.document)
    assert token is not None
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    return token[1], {"cookie": cookie.partition(";")[0]}


async def post(front: Front, body: bytes, headers: dict[str, str]) -> Answer:
    return await front.send("POST", "/console/policies", body, headers)


def test_a_setting_is_told_with_its_policies_and_their_settings(run: Run) -> None:
    async def test(front: Front) -> None:
        shown = (await front.send("GET", "/console/policies")).document
        assert "<dt>infaas</dt><dd>INFaaS" in shown
        assert "<dt>target_utilisation (1.0)</dt><dd>share of" in shown
        assert "<code>modelless whatif</code>" in shown

    run(test)


def test_a_version_on_trial_is_told_with_its_guards() -> None:
    row = VariantRow("t/m/v@2", Accuracy(70.0, "top-1", PUBLISHED, ""), {}, {}, "on trial")
    count = {"count": 50, "bad": 5.0}
    guard = {"guard": "errors", "tried": count, "standing": {**count, "bad": 2.0},
             "worse_percent": 40.0, "fine_percent": 0.0}  # fmt: skip
    trial = {"variant": "t/m/v@2", "against": "t/m/v@1", "decision": "wait", "reason": "too few",
             "age_s": 120.0, "share": 0.1, "queries": {"tried": 50, "standing": 450},
             "guards": [guard]}  # fmt: skip
    tables = {name: rows for name, _, rows, _ in variant_tables(
        {"members": [], "trials": [trial]}, [row])}  # fmt: skip
    assert tables["Variants"][0][:5] == ("t/m/v@2", "on trial", "70.00", "-", "published")
    assert tables["Canaries"] == [
        ("t/m/v@2", "t/m/v@1", "10", "50", "450", "2", "wait: too few",
         "errors: 5 of 50 against 2 of 50; shown to be worse 40 %, not to be 0 %")
    ]  # fmt: skip


def test_settings_are_changed_and_taken_back_by_forms(run: Run, tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        token, headers = await page(front)
        change = {"token": token, "revision": 0, "do": "apply", "policies.selection": "infaas"}
        done = await post(front, form(**change, reason="a try"), headers)
        assert (done.status, done.headers["location"]) == (303, "/console/policies?done=1")
        told = await front.send("GET", "/console/policies?done=1")
        assert 'value="infaas"' in told.document
        assert "Revision 1 is written" in told.document
        again = await post(front, form(**change), headers)
        assert again.status == 400
        assert "nothing differs" in again.document
        stale = await post(front, form(**{**change, "policies.selection": "clipper"}), headers)
        assert stale.status == 400
        assert "made meanwhile" in stale.document
        wrong = {**change, "revision": 1, "policies.selection": "best-valu"}
        assert "best-valu" in (await post(front, form(**wrong), headers)).document
        back = await post(front, form(token=token, rollback=0), headers)
        assert back.status == 303
        for number in ("", "-1", "x", "9" * 12):
            bad = await post(front, form(token=token, rollback=number), headers)
            assert bad.status == 400

    run(test)
    _, latest = settings_in_force(tmp_path, Settings())
    assert (latest.number, latest.changes) == (2, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[&a [x, x], *a]", "an alias"),
        ("2001-99-99", "not YAML"),
        ("2001-01-01", "that JSON has"),
        ("[" * 5000, "nested too deep"),
        ("0x" + "f" * 5000, "that JSON has"),
    ],
)
@pytest.mark.parametrize("do", ["apply", "simulate"])
def test_values_that_would_do_harm_are_refused(run: Run, text: str, says: str, do: str) -> None:
    async def test(front: Front) -> None:
        token, headers = await page(front)
        change = {"token": token, "revision": 0, "do": do, "policies.selection": text}
        refused = await post(front, form(**change), headers)
        assert refused.status == 400
        assert says in refused.document.partition("policies.selection: ")[2]

    run(test)


def test_a_form_of_another_site_changes_nothing(run: Run, tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        token, headers = await page(front)
        body = form(token=token, rollback=0)
        assert (await post(front, body, {})).status == 403
        assert (await post(front, form(rollback=0), headers)).status == 403
        assert (await post(front, form(token="x" * 43, rollback=0), headers)).status == 403
        other = {**headers, "origin": "http://evil.example"}
        assert (await post(front, body, other)).status == 403
        assert (await post(front, b"a=" + b"b" * 70_000, headers)).status == 400
        assert (await post(front, b"&".join([b"a=b"] * 99), headers)).status == 400
        assert (await front.send("POST", "/console/why", body, headers)).status == 405

    run(test)
    assert settings_in_force(tmp_path, Settings())[1].number == 0


def test_where_there_are_keys_a_form_needs_one_that_may_operate(run: Run) -> None:
    async def test(front: Front) -> None:
        token, headers = await page(front)
        now = time.time()
        operate, operates = make_key("ann", ["operate"], 0, now, None)
        infer, infers = make_key("ann", ["infer"], 0, now, None)
        front.ring = KeyRing([operate, infer])
        headers[OPERATORS_HEADER] = OF_PORT
        change = {"token": token, "revision": 0, "do": "apply", "policies.explore": 0.01}
        assert (await post(front, form(**change), headers)).status == 401
        assert (await post(front, form(**change, key=infers), headers)).status == 403
        assert (await post(front, form(**change, key=operates), headers)).status == 303
        listed = (await front.send("GET", "/console/policies", b"", headers)).document
        assert f"<td>key {operate.key_id}</td>" in listed

    run(test)


def test_the_frontier_has_what_nothing_else_of_its_task_beats() -> None:
    rows = [
        VariantRow(
            name, Accuracy(percent, "top-1", PUBLISHED, ""), {"cpu-1": ms / 1e3}, {"cpu-1": usd}
        )
        for name, percent, ms, usd in (
            ("t/m/small@1", 70.0, 5.0, 1.0), ("t/m/slow@1", 69.0, 6.0, 1.0),
            ("t/m/large@1", 80.0, 40.0, 2.0), ("other/m/bad@1", 10.0, 90.0, 9.0),
        )
    ]  # fmt: skip
    ran = {"t/m/small@1": {"cpu-1": [10, 5, 0.1]}}
    status = {"members": [member("g")], "statistics": {"placements": ran}}
    points = {each.variant_id: each for each in points_of(status, rows, {"t/m/small@1": 3.0})}
    assert {name for name, each in points.items() if each.is_best} == {
        "t/m/small@1", "t/m/large@1", "other/m/bad@1"
    }  # fmt: skip
    assert points["t/m/small@1"].row == (
        "t/m/small@1", "cpu-1", "70.00", "5", "10", "2.00", "1", "3.0", "yes"
    )  # fmt: skip
    drawn = draw_frontier(status, rows, {"other/m/bad@1": 1.0})
    assert [(chart.task, len(chart.marks)) for chart in drawn["charts"]] == [
        ("other", 1), ("other", 1), ("t", 3), ("t", 3)
    ]  # fmt: skip
    for chart in drawn["charts"]:
        for number, point, x, y, *_ in chart.marks:
            assert 0 < x < 640
            assert 0 < y < 320
            assert drawn["rows"][number - 1] == (f"{number}", *point.row)
    assert draw_frontier({"members": []}, rows, {})["charts"] == []


def test_the_frontier_has_what_each_device_class_took() -> None:
    metrics = ClusterMetrics({}, list)
    told = Meters()
    for device_class, busy_s in (("cpu-1", 0.04), ("gpu-1", 0.002)):
        for _ in range(100):
            told.count_batch("t/m/v@1", device_class, 1, busy_s)
    metrics.add(MemberReport("g", True, None, meters=told))
    there = [member("g"), member("w", device_class="gpu-1"), member("x", device_class="cpu-2")]
    each = dict.fromkeys(("cpu-1", "cpu-2", "gpu-1"), 0.03)
    row = VariantRow("t/m/v@1", Accuracy(70.0, "top-1", PUBLISHED, ""), each, each)
    points = points_of({"members": there, "statistics": metrics.statistics()}, [row], {})
    assert {point.device: point.row[4] for point in points} == {
        "cpu-1": "40", "cpu-2": "-", "gpu-1": "2"
    }  # fmt: skip


def test_limits_that_could_not_be_met_are_told_with_what_they_lack() -> None:
    def receipt(**more: Any) -> dict[str, Any]:
        candidates = [
            {"accuracy": 70.0, "p99_ms": 5.0, "wait_ms": 1.0, "cost_usd": 1.0},
            {"accuracy": 80.0, "p99_ms": 50.0, "wait_ms": 0.0, "cost_usd": 2.0},
        ]
        asked = {"scope": "t", "latency_ms": 100.0, "min_accuracy": 0.0, "max_cost_usd": None}
        return {**asked, "candidates": candidates, **more}

    assert unmet_rows([
        receipt(),
        receipt(min_accuracy=90.0),
        receipt(min_accuracy=85.0),
        receipt(min_accuracy=75.0, latency_ms=20.0),
        receipt(max_cost_usd=0.5),
        receipt(candidates=[], min_accuracy=99.0),
    ]) == [
        ("t", "accuracy, %", "2", "87.5", "7.5", "10"),
        ("t", "latency, ms", "1", "20", "30", "30"),
        ("t", "cost, USD", "1", "0.5", "0.5", "0.5"),
    ]  # fmt: skip


def test_a_picture_to_try_needs_the_token_and_is_bounded(run: Run) -> None:
    async def test(front: Front) -> None:
        token, headers = await page(front)
        path = f"/console/try?task={TASK.name}&latency_ms=100&token="
        assert (await front.send("POST", path + token, b"x")).status == 403
        assert (await front.send("POST", path + "x" * 43, b"x", headers)).status == 403
        empty = await front.send("POST", path + token, b"", headers)
        assert empty.status == 400
        assert "file: bytes: got 0" in empty.document
        nothing = await front.send("POST", path + token, b"hello", headers)  # no cluster is up
        assert nothing.status == 400
        assert "nothing is up" in nothing.document
        large = bytes(1 << 20)
        assert (await front.send("POST", path + "x" * 43, large, headers)).status == 403
        size = {**headers, "content-length": str(MOST_PICTURE_BYTES + 1)}
        assert (await front.send("POST", path + token, b"", size)).status == 413

    run(test)


@pytest.mark.parametrize("given", ["field", "header", "socket"])
def test_a_query_to_try_has_the_key_of_its_form_and_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("MODELLESS_KEY", "mk_of-the-server")
    seen: list[dict[str, str]] = []

    def ran(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        seen.append(more["env"])
        return subprocess.CompletedProcess(command, 1, "", "error: as a test wants it")

    monkeypatch.setattr(settings.subprocess, "run", ran)

    async def test(front: Front) -> None:
        token, headers = await page(front)
        operate, operates = make_key("ann", ["operate"], 0, time.time(), None)
        front.ring = KeyRing([operate])
        path = f"/console/try?task={TASK.name}&token={token}"
        if given == "field":
            path += f"&key={operates}"
        elif given == "header":
            headers["authorization"] = f"bearer {operates}"
        else:
            headers[OPERATORS_HEADER] = OF_SOCKET
        assert (await front.send("POST", path, b"x", headers)).status == 400
        wanted = None if given == "socket" else operates
        assert [each.get("MODELLESS_KEY") for each in seen] == [wanted]

    run(test)


def test_now_is_empty_until_the_control_loop_has_told_of_the_cluster(tmp_path: Path) -> None:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    chosen = {"gateways": {"device_class": None}, "pools": [{"device_class": "cpu-1"}]}
    made = Settings.model_validate(chosen)

    async def test() -> None:
        silent: Any = SimpleNamespace(versions=None)
        knowledge = read_knowledge(tmp_path, made)
        gateway = Gateway("g", made, knowledge, RemoteWorkers({}), silent, silent)
        for shown in FOLLOWED:
            found = Found(gateway.status(), gateway.variant_rows(), NOTHING_LATELY)
            assert render_followed(shown, found).status == 200
        gateway.close()

    asyncio.run(test())
