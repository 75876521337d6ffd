"""A query that is sent again with its key gets the first one's answer, and nothing runs twice."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.v2_reply import Reply
from modelless.controller.config import Settings, parse_settings
from modelless.controller.live.front import idempotency
from modelless.controller.live.front.idempotency import KeptAnswers
from modelless.controller.live.knowledge import Knowledge

from .front import INFER, Front, query, serving, until

KEY = {"idempotency-key": "k1"}
QUERY = (b"/p", 3)


def run(
    test: Callable[[Front], Awaitable[None]],
    knowledge: Knowledge,
    folder: Path,
    settings: Settings | None = None,
) -> None:
    async def go() -> None:
        async with serving(knowledge, folder, settings=settings) as front:
            await test(front)

    asyncio.run(go())


async def leave(front: Front, body: bytes, **headers: str) -> asyncio.StreamWriter:
    """Send a query with the key, and return the connection to close."""
    _, writer = await asyncio.open_unix_connection(str(front.path))
    lines = [f"POST {INFER} HTTP/1.1", "host: h", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in {**KEY, **headers}.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    return writer


def test_the_second_gets_the_answer_of_the_first(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(front: Front) -> None:
        first = await front.send("POST", INFER, query(), KEY)
        again = await front.send("POST", INFER, query(), KEY)
        assert (first.status, again.status) == (200, 200)
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert again.document == first.document
        assert len(front.ran) == 1
        other = await front.send("POST", INFER, query(), {"idempotency-key": "k2"})
        assert other.document["parameters"]["receipt_id"] != "x"
        assert len(front.ran) == 2

    run(test, knowledge, tmp_path)


def test_one_that_runs_is_waited_for_although_its_client_left(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        writer = await leave(front, query())
        await until(lambda: front.ran)
        writer.close()
        await until(lambda: not front.frontend.budget.used_bytes)  # the server has noticed
        again = asyncio.create_task(front.send("POST", INFER, query(), KEY))
        await until(lambda: front.frontend.budget.used_bytes)
        front.finish(front.ran[0])
        answer = await again
        assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
        assert len(front.ran) == 1
        assert not front.has_open

    run(test, knowledge, tmp_path)


SENT = pytest.mark.parametrize(
    ("body", "headers"),
    [(query(), {}), (gzip.compress(query()), {"content-encoding": "gzip"})],
    ids=["plain", "compressed"],
)


@SENT
def test_one_that_waits_is_cancelled_and_its_key_is_free(
    knowledge: Knowledge, tmp_path: Path, body: bytes, headers: dict[str, str]
) -> None:

    async def test(front: Front) -> None:
        front.answers_at_once = False
        busy = asyncio.create_task(front.send("POST", INFER, query()))
        await until(lambda: front.ran)
        writer = await leave(front, body, **headers)
        await until(lambda: len(front.frontend._open) == 2)
        writer.close()
        await until(lambda: len(front.frontend._open) == 1)
        front.answers_at_once = True
        front.finish(front.ran[0])
        assert (await busy).status == 200
        assert len(front.ran) == 1
        again = await front.send("POST", INFER, body, {**KEY, **headers})
        assert "idempotent-replayed" not in again.headers
        assert len(front.ran) == 2

    run(test, knowledge, tmp_path)


@SENT
def test_one_that_others_wait_for_goes_on_and_keeps_its_key(
    knowledge: Knowledge, tmp_path: Path, body: bytes, headers: dict[str, str]
) -> None:

    async def test(front: Front) -> None:
        front.answers_at_once = False
        busy = asyncio.create_task(front.send("POST", INFER, query((2, 2, 2, 3))))
        await until(lambda: front.ran)
        writer = await leave(front, body, **headers)
        await until(lambda: len(front.frontend._open) == 2)
        equal = asyncio.create_task(front.send("POST", INFER, query()))
        await until(lambda: len(front.frontend._open) == 3)
        used_bytes = front.frontend.budget.used_bytes
        writer.close()
        await until(lambda: front.frontend.budget.used_bytes < used_bytes)
        front.answers_at_once = True
        front.finish(front.ran[0])
        assert (await busy).status == 200
        answer = await asyncio.wait_for(equal, 20.0)
        assert answer.document["parameters"]["cached"]
        again = await front.send("POST", INFER, body, {**KEY, **headers})
        assert again.headers["idempotent-replayed"] == "true"
        assert len(front.ran) == 2
        assert (front.has_open, front.is_reading, front.frontend.budget.used_bytes) == (
            False, False, 0
        )  # fmt: skip

    run(test, knowledge, tmp_path, parse_settings({"cache": {"scopes": ["pixels"]}}))


def test_who_waited_and_left_is_not_kept_and_the_last_one_cancels() -> None:
    kept = KeptAnswers(lambda: 0.0)
    told: list[str] = []

    def ask(name: str) -> int | None:
        return kept.once(b"a", "", QUERY, lambda _: told.append(name), lambda _: 7)

    assert ask("first") == 7
    second, third = ask("second"), ask("third")
    assert second is not None
    assert third is not None
    assert kept.leave(second) is None
    assert len(kept._running["", b"a"].responds) == 2
    assert kept.leave(7) is None
    assert kept.leave(third) == 7
    assert not kept.may_cancel(7, is_running=True)
    assert kept.may_cancel(7, is_running=False)
    assert not kept._running
    assert not kept._names
    assert not told


def test_a_query_ends_when_the_last_one_that_waits_by_its_key_leaves(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        busy = asyncio.create_task(front.send("POST", INFER, query()))
        await until(lambda: front.ran)
        writers = [await leave(front, query())]
        await until(lambda: len(front.frontend._open) == 2)
        writers.append(await leave(front, query()))
        await until(lambda: len(front.frontend._kept_answers._names) == 2)
        writers[0].close()
        used_bytes = front.frontend.budget.used_bytes
        await until(lambda: front.frontend.budget.used_bytes < used_bytes)
        assert len(front.frontend._open) == 2
        writers[1].close()
        await until(lambda: len(front.frontend._open) == 1)
        assert not front.frontend._kept_answers._names
        front.finish(front.ran[0])
        assert (await busy).status == 200
        assert len(front.ran) == 1

    run(test, knowledge, tmp_path)


def test_an_answer_to_what_was_cancelled_is_nobodys() -> None:
    kept, told = KeptAnswers(lambda: 0.0), list[Reply]()
    responds: list[Callable[[Reply], None]] = []

    def go(respond: Callable[[Reply], None]) -> int:
        responds.append(respond)
        return 7

    assert kept.once(b"a", "", QUERY, told.append, go) == 7
    assert kept.leave(7) == 7
    assert kept.may_cancel(7, is_running=False)
    responds[0](Reply(200, b"", []))
    assert not told
    assert not kept._kept


def test_a_refusal_is_not_kept_and_a_key_is_of_one_query_and_tenant(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(front: Front) -> None:
        for _ in range(2):
            refused = await front.send("POST", INFER, query(min_accuracy=99.0), KEY)
            assert refused.status == 422
            assert "idempotent-replayed" not in refused.headers
        assert (await front.send("POST", INFER, query(), KEY)).status == 200
        for headers, body, says in (
            (KEY, query((2, 2, 2, 3)), "a new key for another query"),
            ({"idempotency-key": "x" * 129}, query(), "1 to 128 printable"),
        ):
            wrong = await front.send("POST", INFER, body, headers)
            assert (wrong.status, wrong.document["field"]) == (400, "idempotency-key")
            assert says in wrong.document["error"]
        made = [make_key(name, ("infer",), 0, 0.0, None) for name in ("shop", "bank")]
        front.ring = KeyRing([key for key, _ in made])
        replayed = []
        for _, secret in (*made, made[0]):
            bearer = {**KEY, "authorization": f"Bearer {secret}"}
            answer = await front.send("POST", INFER, query(), bearer)
            assert answer.status == 200
            replayed.append("idempotent-replayed" in answer.headers)
        assert replayed == [False, False, True]

    run(test, knowledge, tmp_path)


def test_answers_are_forgotten_by_time_bytes_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    kept = KeptAnswers(lambda: now_s, most_bytes=4000)
    ran: list[str] = []

    def ask(key: str, size: int = 100, status: int = 200) -> None:
        def go(respond: Callable[[Reply], None]) -> None:
            ran.append(key)
            respond(Reply(status, bytes(size), []))

        kept.once(key.encode(), "", QUERY, lambda reply: None, go)

    for key in "aba":
        ask(key)
    assert ran == ["a", "b"]
    now_s = idempotency.KEPT_S
    ask("a")
    assert ran == ["a", "b", "a"]
    ask("large", 5000)
    ask("a")
    assert ran[3:] == ["large"]
    for key in "cdefa":
        ask(key)
    assert ran[4:] == ["c", "d", "e", "f", "a"]
    monkeypatch.setattr(idempotency, "MOST_KEYS", 1)
    ask("g")
    ask("a")
    assert ran[9:] == ["g", "a"]
    assert kept._bytes == sum(len(each.reply.body) + 1024 for each in kept._kept.values())
    assert not kept._running
    assert not kept._names


def test_nothing_is_left_of_a_query_that_cannot_be_read(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(front: Front) -> None:
        for body in (b"{", json.dumps({"inputs": []}).encode()):
            assert (await front.send("POST", INFER, body, KEY)).status == 400
        assert (await front.send("POST", INFER, query(), KEY)).status == 200

    run(test, knowledge, tmp_path)
