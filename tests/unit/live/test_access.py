"""Keys at a real gateway's server: who may do what, and what is another tenant's."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from modelless.common.errors import StoreError
from modelless.controller.api.grpc_calls import INFER as CALL
from modelless.controller.api.grpc_calls import STREAM
from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.tenant_limits import TenantUse
from modelless.controller.config import Settings, parse_settings
from modelless.controller.control.messages import MemberReport
from modelless.controller.live.control.totals import TenantTotals
from modelless.controller.live.front import frontend, gateway, side_thread
from modelless.controller.live.front.access import Access
from modelless.controller.live.front.gateway import Gateway
from modelless.controller.live.haproxy.configuration import OF_PORT, OF_SOCKET, OPERATORS_HEADER
from modelless.controller.live.key_file import KeyFollower, change_keys, read_keys
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from tests.unit.cli.tiny import TASK, add_measurements, add_variants

from .front import INFER, Front, query, serving, until

KEYS = {
    name: make_key(tenant, scopes, priority, 0.0, None)
    for name, tenant, scopes, priority in (
        ("shop", "shop", ("infer", "feedback"), 3),
        ("other", "other", ("infer", "feedback"), 0),
        ("asks", "shop", ("infer",), 0),
        ("operator", "ops", ("operate",), 0),
        ("admin", "ops", ("admin",), 9),
    )
}
OPERATOR, SOCKET = {OPERATORS_HEADER: OF_PORT}, {OPERATORS_HEADER: OF_SOCKET}
STATUS, FEEDBACK = "/modelless/status", "/modelless/feedback"
QUOTE = "/modelless/quote"


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return read_knowledge(tmp_path, Settings())


@pytest.fixture
def run(knowledge: Knowledge, tmp_path: Path) -> Callable[..., None]:
    def go(test: Callable[[Front], Awaitable[None]], *, keys: bool = True, **settings: Any) -> None:
        async def inside() -> None:
            async with serving(knowledge, tmp_path, settings=parse_settings(settings)) as front:
                if keys:
                    front.ring = KeyRing(key for key, _ in KEYS.values())
                await test(front)

        asyncio.run(inside())

    return go


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name][1]}"}


def test_each_endpoint_wants_its_scope(run: Callable[..., None]) -> None:
    paths = {
        ("GET", "/v2"): set(KEYS) | {""},
        ("GET", "/v2/health/live"): set(KEYS) | {""},
        ("GET", "/v2/health/ready"): set(KEYS) | {""},
        ("POST", INFER): {"shop", "other", "asks", "admin"},
        ("GET", f"/v2/models/{TASK.name}"): {"shop", "other", "asks", "admin"},
        ("POST", "/v2/repository/index"): {"shop", "other", "asks", "admin"},
        ("POST", QUOTE): {"shop", "other", "asks", "admin"},
        ("POST", FEEDBACK): {"shop", "other", "admin"},
        ("GET", STATUS): {"operator", "admin"},
        ("GET", "/console"): {"operator", "admin"},
        ("POST", f"/v2/repository/models/{TASK.name}/load"): {"operator", "admin"},
        ("POST", f"/v2/repository/models/{TASK.name}/mean/small/unload"): {"operator", "admin"},
    }

    async def test(front: Front) -> None:
        for (method, path), allowed in paths.items():
            for name in ["", *KEYS]:
                body = query() if path == INFER else b"{}" if path == FEEDBACK else b""
                answer = await front.send(method, path, body, bearer(name) if name else {})
                if name in allowed:
                    assert answer.status not in (401, 403), (path, name, answer)
                else:
                    assert answer.status == (403 if name else 401), (path, name, answer)
                    assert ("www-authenticate" in answer.headers) == (not name)
        assert (await front.send("GET", STATUS, headers=OPERATOR)).status == 200
        by = [f"key {KEYS[name][0].key_id}" for name in ("operator", "admin")]
        assert front.pins == [
            *((TASK.name, True, each) for each in by),
            *((f"{TASK.name}/mean/small", False, each) for each in by),
        ]
        path = f"/v2/repository/models/{TASK.name}/load"
        assert (await front.send("POST", path, headers=OPERATOR)).status == 401
        unknown = await front.send("POST", "/v2/repository/models/x/load", b"", bearer("admin"))
        assert (unknown.status, len(front.pins)) == (404, 4)

    run(test)


async def answer_with_trailer(front: Front, path: str, *parts: bytes, **headers: str) -> bytes:
    """What comes back for a body in chunks, behind which a trailer says that HAProxy let it in."""
    sent = {"host": "h", "transfer-encoding": "chunked", "te": "trailers", **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {each}" for name, each in sent.items())]
    data = "\r\n".join([*lines, "", ""]).encode()
    data += b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    data += f"0\r\n{OPERATORS_HEADER}: {OF_SOCKET}\r\n\r\n".encode()
    reader, writer = await asyncio.open_unix_connection(str(front.path))
    try:
        writer.write(data)
        if path.startswith("/inference"):
            return await reader.readuntil(b"grpc-status: ") + await reader.readline()
        return await reader.readline()
    finally:
        writer.close()


def infer_message(priority: int = 0) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=TASK.name)
    request.inputs.add(name="image", datatype="UINT8", shape=[1, 2, 2, 3])
    request.raw_input_contents.append(bytes(12))
    request.parameters["priority"].int64_param = priority
    message: bytes = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


def test_a_trailer_is_no_header(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        for path, body in ((INFER, query()), (f"/v2/repository/models/{TASK.name}/load", b"")):
            parts = (body,) if body else ()
            assert (await answer_with_trailer(front, path, *parts)).split()[1] == b"401"
        of_call = {"content-type": "application/grpc"}
        for call in (CALL.decode(), STREAM.decode()):
            told = await answer_with_trailer(front, call, infer_message(), **of_call)
            assert told.endswith(b"grpc-status: 16\r\n")  # unauthenticated
        assert not front.ran
        assert not front.pins
        # Of many messages in a stream, some are read when the trailer has come.
        headers = {**of_call, **bearer("other")}
        told = await answer_with_trailer(
            front, STREAM.decode(), *[infer_message(3)] * 40, **headers
        )
        assert told.count(b"priority: got 3") == 40
        assert not front.ran

    run(test)


def test_tenant_and_priority_come_from_the_key(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        for parameters, status in (
            ({"priority": 3}, 200),
            ({"tenant": "shop"}, 200),
            ({"priority": 4}, 403),
            ({"tenant": "other"}, 403),
        ):
            answer = await front.send("POST", INFER, query(**parameters), bearer("shop"))
            assert answer.status == status, answer
        answer = await front.send("POST", INFER, query(), bearer("shop"))
        number = answer.document["parameters"]["receipt_id"]
        told = await front.send("GET", f"/modelless/receipts/{number}", headers=bearer("shop"))
        assert told.document["tenant"] == "shop"

    run(test)


def test_try_it_lists_no_private_task(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        page = await front.send("GET", "/console/try", headers=bearer("operator"))
        assert page.status == 200
        assert f'value="{TASK.name}"' not in page.document
        assert "no such" not in page.document

    run(test, tenants={"shop": {"private": [TASK.name]}})


def test_a_quote_is_bound_by_the_key_as_a_query_is(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        for asked, name, status in (
            ({"parameters": {"priority": 3, "latency_ms": 1000}}, "shop", 200),
            ({"parameters": {"priority": 4}}, "shop", 403),
            ({"parameters": {"tenant": "other"}}, "shop", 403),
            ({}, "other", 404),  # it is private
            ({"task": "none"}, "shop", 404),
            ({"items": 0}, "shop", 400),
            ({"itmes": 1}, "shop", 400),
            ({"parameters": {"latncy_ms": 1}}, "shop", 400),
            ({}, "shop", 429),  # that was its rate
        ):
            body = json.dumps({"task": TASK.name, **asked}).encode()
            answer = await front.send("POST", QUOTE, body, bearer(name))
            assert answer.status == status, (asked, answer)
            if status == 200:
                assert answer.document["feasible"] is True
                assert answer.document["serves"]["variant"].startswith(TASK.name)
                assert answer.document["probability"] > 0.9
        assert not front.ran
        assert (await front.send("POST", QUOTE, b" " * 20_000, bearer("shop"))).status == 413

    run(test, tenants={"shop": {"max_queries_per_s": 0.01, "private": [TASK.name]}})


def test_a_reply_says_why_if_it_is_asked(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        answer = await front.send("POST", INFER, query(explain=True), bearer("shop"))
        told = answer.document["parameters"]
        assert told["explanation"]["choice"]["variant"] == told["variant"]
        refused = await front.send("POST", INFER, query(explain=True, min_accuracy=99))
        assert refused.status == 401
        headers = bearer("shop")
        refused = await front.send("POST", INFER, query(explain=True, min_accuracy=99), headers)
        assert refused.status == 422
        assert refused.document["explanation"]["reason"] == "too-inaccurate"
        assert all(e["misses"] for e in refused.document["explanation"]["runners_up"])
        silent = await front.send("POST", INFER, query(), bearer("shop"))
        assert "explanation" not in silent.document["parameters"]

    run(test)


def test_receipts_and_feedback_are_for_who_asked(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        answer = await front.send("POST", INFER, query(), bearer("shop"))
        receipt_id = answer.document["parameters"]["receipt_id"]
        guessed = receipt_id.partition(".")[0]
        forged = f"{guessed}.{'0' * 24}"

        async def told(number: str, name: str) -> tuple[int, int]:
            entry = {"feedback": [{"receipt_id": number, "correct": True}]}
            body = json.dumps(entry).encode()
            got = await front.send("GET", f"/modelless/receipts/{number}", headers=bearer(name))
            return got.status, (await front.send("POST", FEEDBACK, body, bearer(name))).status

        assert await told(receipt_id, "shop") == (200, 200)
        for number in (guessed, forged):
            assert await told(number, "shop") == (404, 404)
        assert await told(receipt_id, "other") == (404, 404)
        assert (await told(receipt_id, "admin"))[0] == 200
        for headers, status in ((OPERATOR, 401), (SOCKET, 200)):
            got = await front.send("GET", f"/modelless/receipts/{guessed}", headers=headers)
            assert got.status == status

    run(test)


def test_without_keys_receipts_cannot_be_guessed_either(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        answer = await front.send("POST", INFER, query())
        receipt_id = answer.document["parameters"]["receipt_id"]
        assert (await front.send("GET", f"/modelless/receipts/{receipt_id}")).status == 200
        guessed = receipt_id.partition(".")[0]
        assert (await front.send("GET", f"/modelless/receipts/{guessed}")).status == 404

    run(test, keys=False)


def test_another_tenants_task_does_not_exist(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        for method, path in (("POST", INFER), ("GET", f"/v2/models/{TASK.name}/mean")):
            mine = await front.send(method, path, query(), bearer("shop"))
            assert mine.status == 200, mine
            theirs = await front.send(method, path, query(), bearer("other"))
            missing = await front.send(
                method, path.replace("pixels", "absent"), query(), bearer("other")
            )
            assert theirs.status == missing.status == 404
            assert theirs.document["error"].replace("pixels", "absent") == missing.document["error"]
        listed = [
            [row["name"] for row in (await front.send("POST", path, b"", bearer(name))).document]
            for path in ("/v2/repository/index",)
            for name in ("shop", "other", "admin")
        ]
        assert listed == [[TASK.name], [], [TASK.name]]
        assert (await front.send("GET", "/v2/health/ready")).document == {
            "live": True,
            "ready": True,
        }

    run(test, tenants={"shop": {"private": [TASK.name]}})


def test_a_tenant_pays_what_its_batch_took(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        said = (await front.send("POST", INFER, query(), bearer("shop"))).document["parameters"]
        took_usd = 0.001 * 0.05 / 3600.0  # see Front.finish
        assert said["cost_usd"] == pytest.approx(took_usd)
        assert said["predicted_cost_usd"] != said["cost_usd"]
        assert front.access.books.take_use()["shop"].cost_usd == pytest.approx(took_usd)

    run(test, tenants={"shop": {"max_cost_usd_per_day": 1.0}})


def test_limits_of_a_tenant_are_its_own(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        sent = [
            asyncio.ensure_future(front.send("POST", INFER, query(), bearer("shop")))
            for _ in range(4)
        ]
        done, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert [task.result().status for task in done] == [429, 429]
        assert int(done.pop().result().headers["retry-after"]) >= 1
        while not all(task.done() for task in sent):
            for batch in front.ran:
                front.finish(batch)
            front.ran.clear()
            await asyncio.sleep(0)
        front.answers_at_once = True
        assert (await front.send("POST", INFER, query(), bearer("other"))).status == 200
        assert (await front.send("POST", INFER, query(), bearer("shop"))).status == 200
        use = front.access.books.take_use()["shop"]
        assert (use.queries, use.open_queries) == (3, 0)
        assert use.cost_usd > 0.0

    run(test, tenants={"shop": {"max_open_queries": 2}})


def test_limits_have_names(run: Callable[..., None]) -> None:
    async def test(front: Front) -> None:
        for name, parameters, status in (
            ("other", {"slo": "sharp"}, 422),  # nothing is that accurate
            ("other", {"slo": "sharp", "min_accuracy": 1.0}, 200),  # its own word counts more
            ("other", {"slo": "blunt"}, 200),
            ("other", {"slo": "shrap"}, 400),
            ("other", {}, 200),
            ("shop", {}, 422),
            ("shop", {"slo": "blunt"}, 200),
        ):
            answer = await front.send("POST", INFER, query(**parameters), bearer(name))
            assert answer.status == status, (name, parameters, answer)
        answer = await front.send("POST", INFER, query(slo="shrap"), bearer("other"))
        assert "Did you mean 'sharp'?" in answer.document["error"]
        headers = {**bearer("other"), "x-modelless-slo": "sharp"}
        assert (await front.send("POST", INFER, query(), headers)).status == 422

    slos = {"sharp": {"min_accuracy": 99.9}, "blunt": {"min_accuracy": 10.0}}
    run(test, slos=slos, tenants={"shop": {"slo": "sharp"}})


@pytest.mark.parametrize("insecure", [True, False])
def test_without_keys_only_loopback_is_served(run: Callable[..., None], insecure: bool) -> None:
    async def test(front: Front) -> None:
        status = (await front.send("POST", INFER, query())).status
        assert status == (200 if insecure else 401)
        assert (await front.send("GET", "/v2/health/live")).status == 200
        assert (await front.send("GET", STATUS)).status in (401, 404)
        assert (await front.send("GET", STATUS, headers=OPERATOR)).status == 200

    run(test, keys=False, http={"host": "192.0.2.1", "insecure": insecure})


def test_keys_are_followed_and_never_lost(tmp_path: Path) -> None:
    follower = KeyFollower(tmp_path)
    assert not follower.ring.is_needed
    key, _ = KEYS["shop"]
    change_keys(tmp_path, lambda ring: ((*ring.keys, key), None))
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    follower.follow()
    assert follower.ring.keys == (key,)
    change_keys(tmp_path, lambda ring: ([each.revoked(1.0) for each in ring.keys], None))
    follower.follow()
    assert follower.ring.keys[0].revoked_at == 1.0
    for damage in ("half a fi", None):
        path = tmp_path / "keys.json"
        path.write_text(damage) if damage else path.unlink()
        with pytest.raises(StoreError):
            follower.follow()
        assert follower.ring.is_needed
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        read_keys(tmp_path)


def test_keys_that_cannot_be_looked_at_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = KEYS["shop"]
    change_keys(tmp_path, lambda ring: ([key], None))
    follower = KeyFollower(tmp_path)
    looks: list[BaseException] = [PermissionError("not now"), OSError("stale file handle")]

    def look(_: KeyFollower) -> None:
        raise looks.pop()

    async def sleep(_: float) -> None:
        if not looks:
            raise asyncio.CancelledError

    monkeypatch.setattr(KeyFollower, "_look", look)
    pauses = SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread)
    monkeypatch.setattr(gateway, "asyncio", pauses)
    mine = Gateway.__new__(Gateway)
    mine._keys = follower
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(mine._follow_keys_forever())
    assert follower.ring.keys == (key,)


def test_what_a_report_that_is_lost_says_of_costs_is_said_again() -> None:
    mine = Gateway.__new__(Gateway)
    mine._access = Access(parse_settings({"tenants": {"shop": {"max_cost_usd_per_day": 1.0}}}))
    books = mine._access.books
    mine._desk = SimpleNamespace(for_others=list)  # type: ignore[assignment]
    reports: list[MemberReport] = []

    async def exchange(report: MemberReport, feedback: object) -> str:
        reports.append(report)
        if len(reports) == 1:
            raise ConnectionError("the control loop is away")
        return "orders"

    mine._control = SimpleNamespace(exchange=exchange)  # type: ignore[assignment]
    mine._report = lambda: MemberReport("g", True, None, tenants=books.take_use())  # type: ignore[method-assign]
    books.close("shop", 0.25)
    with pytest.raises(ConnectionError):
        asyncio.run(mine._exchange())
    books.close("shop", 0.5)
    assert asyncio.run(mine._exchange()) == "orders"  # type: ignore[comparison-overlap]
    assert [report.tenants["shop"][2] for report in reports] == [0.25, 0.75]


def test_what_tenants_spend_is_summed_and_kept_for_the_day(tmp_path: Path) -> None:
    day = 86_400.0
    totals = TenantTotals(tmp_path, 10 * day)
    use = {"shop": (10.0, 2, 0.5)}
    for member in ("a", "b"):
        totals.add(member, {name: TenantUse(*each) for name, each in use.items()}, 2.0, 10 * day)
    assert totals.of_others("a") == {"shop": TenantUse(5.0, 2, 1.0)}
    assert totals.status({"other": {"served": 3}, "shop": {"refused": 1}}) == {
        "other": {"served": 3},
        "shop": {"refused": 1, "queries_per_s": 10.0, "open": 4, "usd_today": 1.0},
    }
    totals.remove("b")
    assert totals.of_others("a") == {"shop": TenantUse(0.0, 0, 1.0)}
    totals.write()
    assert TenantTotals(tmp_path, 10 * day + 5).of_others("x")["shop"].cost_usd == 1.0
    assert TenantTotals(tmp_path, 11 * day).of_others("x") == {}
    totals.add("a", {"shop": TenantUse(1.0, 0, 0.25)}, 1.0, 11 * day)
    assert totals.of_others("a")["shop"].cost_usd == 0.25


def test_a_receipt_names_the_request_and_its_trace(run: Callable[..., None]) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sent = {"x-request-id": "r-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}

    async def test(front: Front) -> None:
        for headers, is_own in ((sent, True), ({"x-request-id": "not plain"}, False)):
            answer = await front.send("POST", INFER, query(), headers)
            path = f"/modelless/receipts/{answer.document['parameters']['receipt_id']}"
            receipt = (await front.send("GET", path, headers=SOCKET)).document
            assert receipt["request_id"] == answer.headers["x-request-id"]
            assert (receipt["request_id"] == "r-1") is is_own
            assert receipt.get("trace_id") == (trace if is_own else None)

    run(test, keys=False)


@pytest.mark.parametrize("keys", [False, True])
def test_without_a_key_operators_name_this_machine_and_no_web_site(
    run: Callable[..., None], keys: bool
) -> None:
    async def test(front: Front) -> None:
        for host in (
            "localhost:8080",
            "127.0.0.1",
            "[::1]:8080",
            "10.1.2.3",
            "console.lan:9",
            "a-host:1",
        ):
            answer = await front.send("GET", STATUS, headers={**OPERATOR, "host": host})
            assert answer.status == 200, host
        for host in (
            "rebound.example:8080",
            "localhost.example",
            "127.0.0.1.example",
            "",
            "[",
            "@",
        ):
            for path in (STATUS, "/console", "/metrics"):
                answer = await front.send("GET", path, headers={**OPERATOR, "host": host})
                assert answer.status == 403, (host, path)
                assert answer.document["error"].startswith("Host: got")
        answer = await front.send("GET", STATUS, headers={**SOCKET, "host": "any"})
        assert answer.status == 200

    run(test, keys=keys, http={"operators_host": "console.lan", "operators_port": 9})


def infer_empty(items: int) -> tuple[bytes, dict[str, str]]:
    given = {"name": "image", "shape": [items, 0, 0, 3], "datatype": "UINT8"}
    head = json.dumps({"inputs": [given | {"parameters": {"binary_data_size": 0}}]})
    return head.encode(), {"inference-header-content-length": str(len(head))}


def test_a_tensor_without_elements_is_refused_and_counts_no_longer(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(front: Front) -> None:
        for items in (1, 9, 2000):
            body, length = infer_empty(items)
            answer = await front.send("POST", INFER, body, {**length, **bearer("shop")})
            assert (answer.status, answer.document["field"]) == (400, "inputs.image: shape")

        def fail(*_: object) -> int:
            raise RuntimeError("a defect")

        monkeypatch.setattr("modelless.controller.live.front.frontend.item_size", fail)
        for body in (query(), query((1, 90, 90, 3))):  # read on the loop, and aside
            assert (await front.send("POST", INFER, body, bearer("shop"))).status == 500
        assert front.access.books.take_use()["shop"].open_queries == 0

    run(test, tenants={"shop": {"max_open_queries": 1}})


async def begin(front: Front, path: str, head: str, body: bytes) -> bytes:
    """What comes back for a request of which only so much has been sent; empty if it is waited."""
    reader, writer = await asyncio.open_unix_connection(str(front.path))
    try:
        writer.write(f"POST {path} HTTP/1.1\r\nhost: h\r\n{head}\r\n".encode() + body)
        async with asyncio.timeout(0.1):
            return await reader.readline()
    except TimeoutError:
        return b""
    finally:
        writer.close()


def test_a_body_needs_a_key_before_it_is_there(run: Callable[..., None]) -> None:
    load = f"/v2/repository/models/{TASK.name}/load"
    key = bearer("operator")["authorization"].removeprefix("Bearer ")

    async def test(front: Front) -> None:
        for path, bears, status in (
            (INFER, "", b"401"),
            (INFER, "operator", b"403"),
            (INFER, "asks", b""),
            (load, "asks", b"403"),
            ("/nowhere", "", b"401"),
            ("/console/try?task=pixels", "", b"401"),
            (f"/console/try?task=pixels&key={key}", "", b""),
            ("/console/policies", "", b""),  # its key is in the form
            (CALL.decode(), "", b"200"),  # and a status of gRPC's
            (STREAM.decode(), "", b"200"),
            (CALL.decode(), "asks", b""),
            ("/inference.GRPCInferenceService/ServerLive", "", b""),
        ):
            head = "content-type: application/grpc\r\ncontent-length: 100000\r\n"
            if bears:
                head += f"authorization: {bearer(bears)['authorization']}\r\n"
            told = await begin(front, path, head, b"x" * 5000)
            assert told.split()[1:2] == [status] * bool(status), (path, bears, told)

    run(test)


def test_who_is_beyond_its_limits_is_not_read_aside(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []

    def parse(*_: object) -> None:
        read.append(None)
        raise RuntimeError("it was read")

    monkeypatch.setattr("modelless.controller.live.front.frontend.parse_infer", parse)
    body = query((1, 90, 90, 3))

    async def test(front: Front) -> None:
        assert (await front.send("POST", INFER, body, bearer("shop"))).status == 500
        assert (await front.send("POST", INFER, body, bearer("shop"))).status == 429
        assert len(read) == 1
        assert front.access.books.take_use()["shop"][:2] == (1, 0)

    run(test, tenants={"shop": {"max_queries_per_s": 0.01}})


def test_a_query_that_is_read_aside_counts_once(run: Callable[..., None]) -> None:
    message = infer_message()[5:]
    packed = gzip.compress(message)
    head = "content-type: application/grpc\r\ngrpc-encoding: gzip\r\n"
    head += f"authorization: {bearer('shop')['authorization']}\r\n"
    head += f"content-length: {len(packed) + 5}\r\n"

    async def test(front: Front) -> None:
        answer = await front.send("POST", INFER, query((1, 90, 90, 3)), bearer("shop"))
        assert answer.status == 200
        assert front.access.books.take_use()["shop"][:2] == (1, 0)
        framed = b"\1" + len(packed).to_bytes(4, "big") + packed
        assert (await begin(front, CALL.decode(), head, framed)).startswith(b"HTTP/1.1 200")
        assert front.access.books.take_use()["shop"][:2] == (1, 0)

    run(test, tenants={"shop": {"max_open_queries": 1}})


def test_a_tenant_has_a_part_of_the_side_thread(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_thread, "MOST_WAITING", 4)
    go_on = threading.Event()
    parse = frontend.parse_infer
    monkeypatch.setattr(frontend, "parse_infer", lambda *a: (go_on.wait(20), parse(*a))[1])
    body = query((1, 90, 90, 3))

    async def test(front: Front) -> None:
        sent = [
            asyncio.ensure_future(front.send("POST", INFER, body, bearer("shop"))) for _ in range(4)
        ]
        done: set[asyncio.Task[Any]] = set()
        while len(done) < 2:
            done, _ = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in done] == [429, 429]
        other = asyncio.ensure_future(front.send("POST", INFER, body, bearer("other")))
        go_on.set()
        assert (await other).status == 200
        assert sorted([(await each).status for each in sent]) == [200, 200, 429, 429]
        assert not front.frontend._aside._owned

    run(test)


FOREIGN = {"host": "rebound.example:8080"}
FORGED = ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"})


@pytest.mark.parametrize("insecure", [False, True])
def test_without_keys_no_web_site_acts(run: Callable[..., None], insecure: bool) -> None:
    posts = {
        INFER: query(),
        QUOTE: json.dumps({"task": TASK.name}).encode(),
        "/v2/repository/index": b"",
        f"/v2/repository/models/{TASK.name}/load": b"",
        f"/v2/repository/models/{TASK.name}/unload": b"",
        "/modelless/batches": json.dumps({"input": "a", "output": "b", "task": TASK.name}).encode(),
    }

    async def test(front: Front) -> None:
        own = [{"host": "localhost:8080", "origin": "http://localhost:8080"}]
        own += [{"origin": "https://app.example", "sec-fetch-site": "same-origin"}]  # by a proxy
        names = ("10.0.0.1:80", "host.docker.internal:80", "a.localhost", "localhost.", "my_box")
        own += [{"host": name} for name in names]
        for path, body in posts.items():
            operates = path.endswith("load")
            headers = OPERATOR if operates else {}
            for forged in FORGED:
                answer = await front.send("POST", path, body, {**headers, **forged})
                assert answer.status == 403, (path, forged)
                assert answer.document["error"].startswith("Origin: got")
            answer = await front.send("POST", path, body, {**headers, **FOREIGN})
            assert (answer.status == 403) == (operates or not insecure), path
            for given in own:
                answer = await front.send("POST", path, body, {**headers, **given})
                assert answer.status == 200, (path, given, answer)
        answer = await front.send("GET", f"/v2/models/{TASK.name}", headers=FOREIGN)
        assert answer.status == (200 if insecure else 403)
        linked = {**OPERATOR, "sec-fetch-site": "cross-site"}
        assert (await front.send("GET", "/console", headers=linked)).status == 200
        assert (await front.send("GET", "/v2/health/live", headers=FOREIGN)).status == 200
        front.ring = KeyRing(key for key, _ in KEYS.values())
        headers = {**bearer("shop"), **FOREIGN, **FORGED[0]}
        assert (await front.send("POST", INFER, query(), headers)).status == 200

    http = {"host": "192.0.2.1", "insecure": True} if insecure else {}
    run(test, keys=False, http=http)


@pytest.mark.parametrize("keys", [True, False])
def test_who_hangs_up_while_it_runs_pays_all_the_same(run: Callable[..., None], keys: bool) -> None:
    async def test(front: Front) -> None:
        front.answers_at_once = False
        headers = bearer("shop") if keys else {"x-modelless-tenant": "shop"}
        sent = asyncio.ensure_future(front.send("POST", INFER, query(), headers))
        await until(lambda: front.ran)
        sent.cancel()
        await until(lambda: not front.has_open)
        front.finish(front.ran[0])
        cost_usd = 0.001 * 0.05 / 3600.0 if keys else 0.0  # see Front.finish
        use = front.access.books.take_use()["shop"]
        assert (use.open_queries, use.cost_usd) == (0, pytest.approx(cost_usd))

    run(test, keys=keys, tenants={"shop": {"max_cost_usd_per_day": 1.0}})
