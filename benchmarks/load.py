"""A closed-loop HTTP client that costs little: prebuilt requests, replies read by their length.

Runs in a process of its own: ``python benchmarks/load.py SPEC.json`` with url, path, headers, body
file, connections, seconds and warm-up; prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path


class Connection(asyncio.Protocol):
    """Sends the same request again and again, each after the reply to the one before."""

    def __init__(self, request: bytes, record: list[tuple[float, float]], marker: bytes) -> None:
        self.request = request
        self.record = record
        self.marker = marker
        self.buffer = bytearray()
        self.needed = 0
        self.sent_s = 0.0
        self.statuses: Counter[int] = Counter()
        self.marked = 0
        self.stopped = False
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent_s = time.perf_counter()
        self.transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.needed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            self.statuses[int(head[9:12])] += 1
            start = head.index(b"content-length:") + 15
            length = int(head[start : (head + b"\r\n").index(b"\r\n", start)])
            self.needed = end + 4 + length
        if len(self.buffer) < self.needed:
            return
        now_s = time.perf_counter()
        self.record.append((now_s, now_s - self.sent_s))
        if self.marker and self.marker in self.buffer:
            self.marked += 1
        self.buffer.clear()
        self.needed = 0
        if self.stopped:
            self.transport.close()
            self.done.set_result(None)
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


async def run(spec: dict) -> dict:
    """Load the server as ``spec`` says; returns throughput and latency quantiles."""
    body = Path(spec["body"]).read_bytes()
    head = f"POST {spec['path']} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in spec["headers"].items())
    request = head.encode() + b"\r\n" + body
    record: list[tuple[float, float]] = []
    loop = asyncio.get_running_loop()
    connections = []
    for _ in range(spec["connections"]):
        _, connection = await loop.create_connection(
            lambda: Connection(request, record, spec["marker"].encode()), spec["host"], spec["port"]
        )
        connections.append(connection)
    begin_s = time.perf_counter() + spec["warm_up_s"]
    await asyncio.sleep(spec["warm_up_s"] + spec["seconds"])
    end_s = begin_s + spec["seconds"]
    for connection in connections:
        connection.stopped = True
    await asyncio.gather(*(connection.done for connection in connections))
    latency_s = sorted(took for at, took in record if begin_s <= at < end_s)
    statuses: Counter[int] = sum((c.statuses for c in connections), Counter())
    return {
        "per_s": len(latency_s) / spec["seconds"],
        "p50_ms": latency_s[len(latency_s) // 2] * 1e3,
        "p99_ms": latency_s[int(len(latency_s) * 0.99)] * 1e3,
        "statuses": {str(status): count for status, count in statuses.items()},
        "marked": sum(c.marked for c in connections),
        "replies": len(record),
    }


if __name__ == "__main__":
    import uvloop

    print(json.dumps(uvloop.run(run(json.loads(Path(sys.argv[1]).read_text())))))
