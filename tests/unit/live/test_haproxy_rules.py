"""HAProxy's rules: who comes in where, limits by address, and what it refuses itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from modelless.controller.config import Settings
from modelless.controller.live.haproxy.configuration import (
    OF_SOCKET,
    OPERATORS_HEADER,
    REFUSALS,
    Rules,
    let_in,
    stand_in,
)
from modelless.controller.live.haproxy.counts import ProxyCounts
from modelless.controller.live.haproxy.launcher import Current, write_current
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from tests.unit.cli.tiny import TASK, add_measurements, add_variants

from .front import INFER, query, until
from .proxied import CONFIGURATION, Proxied, run


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    return read_knowledge(tmp_path, Settings())


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


def test_grpc_clients_may_send_large_messages_at_once(knowledge: Knowledge, tmp_path: Path) -> None:
    async def test(proxy: Proxied) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.clients)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        head = await reader.readexactly(9)
        settings = await reader.readexactly(int.from_bytes(head[:3], "big"))
        told = dict(struct.iter_unpack(">HI", settings))
        writer.close()
        assert head[3] == 4  # a SETTINGS frame, RFC 9113, section 6.5
        assert (told[4], told[5]) == (262144, 131072)  # window, and largest frame, bytes

    run(test, knowledge, tmp_path)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_replies_are_compressed_for_clients_that_accept_it(
    knowledge: Knowledge, tmp_path: Path, algorithm: str
) -> None:
    async def test(proxy: Proxied) -> None:
        def ask() -> None:
            pixels = np.zeros((4, 2, 2, 3), np.uint8)
            image = triton.InferInput("image", list(pixels.shape), "UINT8")
            image.set_data_from_numpy(pixels)
            for binary in (True, False):
                outputs = [triton.InferRequestedOutput("scores", binary_data=binary)]
                with triton.InferenceServerClient(f"127.0.0.1:{proxy.clients}") as client:
                    plain = client.infer(TASK.name, [image], outputs=outputs)
                    packed = client.infer(
                        TASK.name,
                        [image],
                        outputs=outputs,
                        request_compression_algorithm=algorithm,
                        response_compression_algorithm=algorithm,
                    )
                scores = packed.as_numpy("scores")
                np.testing.assert_array_equal(scores, plain.as_numpy("scores"))

        await asyncio.to_thread(ask)
        headers = {"accept-encoding": algorithm, "te": "trailers"}
        _, body = await proxy.send(proxy.clients, "GET", "/v2", headers=headers)
        assert b"modelless" not in body  # it is compressed, and in chunks

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
    text = CONFIGURATION.format(admin="/a", serve=1, socket="/d")
    rules = Rules("0.0.0.0:2", "127.0.0.1:3", 10, 10)
    binds = [
        line.split()[1]
        for line in stand_in(let_in(text, rules), "/s").splitlines()
        if line.strip().startswith("bind")
    ]
    assert binds == ['"fd@${MODELLESS_LISTENER}"']


def test_counts_of_a_haproxy_that_was_replaced_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "# pxname,svname,dcon,dreq,ereq,hrsp_5xx\n"
    told = {
        "one": f"{head}http_frontend,FRONTEND,3,0,1,9\nhttp-a,x,0,0,0,7\nhttp-a,BACKEND,0,0,0,9\n",
        "two": f"{head}http_frontend,FRONTEND,1,2,0,0\n",
    }
    monkeypatch.setattr("modelless.controller.live.haproxy.counts._ask", told.__getitem__)
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
