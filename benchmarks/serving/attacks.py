"""The cost of the worst requests, and how an honest client fares beside each attack.

    python benchmarks/serving/attacks.py --home HOME [--seconds 8] [--only idle,drip] [--json FILE]
    python benchmarks/serving/attacks.py --home HOME --seconds 60 --only fuzz-http,fuzz-grpc

HOME must hold the ``fashion-mnist`` zoo, profiled. The script starts a cluster of two gateways.
The attackers come from 127.0.0.2 and the honest client from 127.0.0.1, so that a limit by source
address tells them apart. For each attack the table has:

- hold: the most processor time of a gateway's event loop between a ``GET /v2/health/live`` on its
  own socket and the answer, ms: what the requests before it cost the loop.
- wait: the longest time for that answer, ms. It has what the machine adds, which the row ``none``
  shows, and waiting for the interpreter's lock.
- memory: by how much the largest gateway process grew, MB, and how many bytes one request of the
  attack has, MB.
- in time: share of the honest client's queries, 40 a second, that were answered within 250 ms.
- replies: what the attackers were answered, by status; ``-`` for a connection that was closed.

``fuzz-http`` and ``fuzz-grpc`` send valid queries with random changes, ``smuggling`` requests whose
length is told twice, each as fast as answers come. Exit code 1 if a gateway died, or answered with
an error of its own (500, or gRPC's UNKNOWN or INTERNAL).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from open_loop import TASK, OpenLoop, is_in_time

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.live.running import Running, cluster

ATTACKER = "127.0.0.2"
HONEST_PER_S = 40.0
IN_TIME_MS = 250.0
MIB = 2**20
INFER = f"/v2/models/{TASK}/infer"
CONFIG = """
gateways: {count: 2}
policies: {scaling: on-demand}
residency: {preload: [fashion-mnist]}
"""


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def binary(document: dict[str, object], tensors: bytes, *headers: str) -> bytes:
    head = json.dumps(document).encode()
    return post(INFER, head + tensors, f"inference-header-content-length: {len(head)}", *headers)


def tensor(datatype: str, shape: list[int], size: int, name: str = "image") -> dict[str, object]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": size},
    }


def lists_in_gzip() -> bytes:
    """8 kB that become 8 MiB of empty lists."""
    body = gzip.compress(b"[" + b"[]," * (8 * MIB // 3 - 1) + b"[]]", 9)
    return post(INFER, body, "content-encoding: gzip")


def lists_in_json() -> bytes:
    """The same, not compressed and as large as is read."""
    return post(INFER, b"[" + b"[]," * (4 * MIB // 3 - 1) + b"[]]")


def numbers_in_json() -> bytes:
    """Fractions in a JSON tensor."""
    count = 300_000
    data = "0.12345678," * (count - 1) + "0.5"
    inputs = f'{{"name":"image","datatype":"FP32","shape":[1,{count}],"data":[{data}]}}'
    return post(INFER, f'{{"inputs":[{inputs}]}}'.encode())


def zeros_in_gzip() -> bytes:
    """64 kB that become a tensor of 63 MiB."""
    head = json.dumps({"inputs": [tensor("UINT8", [1, 63 * MIB], 63 * MIB)]}).encode()
    body = gzip.compress(head + bytes(63 * MIB), 9)
    length = f"inference-header-content-length: {len(head)}"
    return post(INFER, body, length, "content-encoding: gzip")


def floats() -> bytes:
    """A tensor of 63 MiB that has to be looked through."""
    items = 63 * MIB // 4 // 784
    return binary({"inputs": [tensor("FP32", [items, 28, 28], items * 3136)]}, bytes(items * 3136))


def strings() -> bytes:
    """64 tensors of 65,536 empty strings each."""
    inputs = [tensor("BYTES", [65_536], 4 * 65_536, f"t{number}") for number in range(64)]
    return binary({"inputs": inputs}, bytes(64 * 4 * 65_536))


def feedback() -> bytes:
    labels = b'{"feedback":[{"receipt_id":"a-1","label":[' + b"null," * (63_000_000 // 5) + b"0]}]}"
    return post("/modelless/feedback", labels)


def small_query() -> bytes:
    """A valid query, of zeros."""
    return binary({"inputs": [tensor("UINT8", [1, 28, 28], 784)]}, bytes(784))


def grpc_query() -> bytes:
    """The same as a message."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name=TASK, raw_input_contents=[bytes(784)])
    message.inputs.add(name="image", datatype="UINT8", shape=[1, 28, 28])
    message.parameters["latency_ms"].double_param = 1000.0
    message.outputs.add(name="probabilities")
    return message.SerializeToString()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few random changes: bits, bytes, numbers, parts that are cut, doubled or moved."""
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 64, 512))
        part = data[at : at + size]
        new = rng.choice((
            b"", part * 2, part[::-1], rng.randbytes(size), bytes([rng.randrange(256)]),
            rng.choice((b"0", b"-1", b"1e999", b"99999999999999999999", b"null", b"[" * 99,
                        b"\r\n\r\n", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"%2F..%00")),
        ))  # fmt: skip
        data = data[:at] + new + data[at + size * rng.randint(0, 1) :]
        data = data or b"x"
    return data


def smuggled(rng: random.Random, receipt: str) -> bytes:
    """A request whose length is told twice, with another one hidden behind or in it.

    The hidden one is for a receipt without its tag, which a gateway gives to nobody but to whom
    HAProxy did not come between.
    """
    lines = [f"GET /modelless/receipts/{receipt} HTTP/1.1", "host: x"]
    hidden = "\r\n".join([*lines, "modelless-operators: socket", "", ""]).encode()
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
    encodings = ("chunked", "Chunked", " chunked", "\tchunked", "identity", "chunked, identity",
                 "xchunked", "chunked\r\ntransfer-encoding: x")  # fmt: skip
    lengths = (0, 4, len(chunk), len(hidden), f"{len(chunk)}\r\ncontent-length: 0", "+4", "0x4")
    names = ("transfer-encoding", "Transfer-Encoding ", "transfer_encoding", " transfer-encoding")
    lines = [f"POST {INFER} HTTP/1.1", "host: x", f"content-length: {rng.choice(lengths)}"]
    lines.insert(rng.randint(1, 3), f"{rng.choice(names)}: {rng.choice(encodings)}")
    return "\r\n".join([*lines, "", ""]).encode() + rng.choice(
        (chunk, hidden, b"0\r\n\r\n" + hidden)
    )


@dataclass
class Attack:
    """The attackers.

    Attributes:
        end_s: until when they go on, of ``time.monotonic``.
        bytes_per_s: that they send together; 0 for as many as they can.
    """

    address: tuple[str, int]
    end_s: float
    replies: Counter[str]
    bytes_per_s: float = 125_000.0

    async def repeat(self, request: bytes) -> None:
        """Send one request after the other, at most so many bytes a second but one at least."""
        while time.monotonic() < self.end_s:
            began_s = time.monotonic()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                reader, writer = await self._connect()
                writer.write(request)
                await self._read(reader)
                writer.close()
            pause_s = min(len(request) / self.bytes_per_s, 1.0) - (time.monotonic() - began_s)
            await asyncio.sleep(max(pause_s, 0.0))

    async def fuzz(self, make: Callable[[random.Random], bytes]) -> None:
        """Eight connections at a time, each with a request that is made anew."""
        await asyncio.gather(*(self._fuzz(make, random.Random(seed)) for seed in range(8)))

    async def _fuzz(self, make: Callable[[random.Random], bytes], rng: random.Random) -> None:
        while time.monotonic() < self.end_s:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await self._connect()
                writer.write(make(rng))
                writer.write_eof()
                await self._read(reader)
                rest = await asyncio.wait_for(reader.read(), 30.0)
                self.replies["smuggled"] += rest.count(b'"candidates"')
                writer.close()

    async def fuzz_grpc(self) -> None:
        """The same over gRPC, on one connection: messages, method names and metadata."""
        import grpc

        async with grpc.aio.insecure_channel(f"{self.address[0]}:{self.address[1]}") as channel:
            rngs = [random.Random(seed) for seed in range(8)]
            await asyncio.gather(*(self._fuzz_grpc(channel, rng) for rng in rngs))

    async def _fuzz_grpc(self, channel: Any, rng: random.Random) -> None:
        import grpc

        methods = ("ModelInfer",) * 6 + ("ModelReady", "ModelMetadata", "ModelConfig", "Nothing")
        message = grpc_query()
        while time.monotonic() < self.end_s:
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{rng.choice(methods)}")
            compression = rng.choice((None, None, grpc.Compression.Gzip))
            try:
                await call(mutated(rng, message), timeout=5.0, compression=compression)
                self.replies["OK"] += 1
            except grpc.aio.AioRpcError as error:
                self.replies[error.code().name] += 1

    async def drip(self) -> None:
        """32 connections announce 64 MiB, send 300 kB and then a byte at a time."""
        await asyncio.gather(*(self._drip() for _ in range(32)))

    async def _drip(self) -> None:
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {64 * MIB}\r\n\r\n".encode()
        while time.monotonic() < self.end_s:
            with contextlib.suppress(OSError):
                reader, writer = await self._connect()
                answer = asyncio.create_task(self._read(reader))
                writer.write(head + bytes(300_000))
                while time.monotonic() < self.end_s and not answer.done():
                    writer.write(b"x")
                    await asyncio.sleep(0.5)
                answer.cancel()
                writer.transport.abort()

    async def idle(self) -> None:
        """4,200 connections that send nothing; one that is closed is opened anew."""
        writers: list[asyncio.StreamWriter] = []
        while time.monotonic() < self.end_s:
            closed = [each for each in writers if each.transport.is_closing()]
            self.replies["-"] += len(closed)
            writers = [each for each in writers if not each.transport.is_closing()]
            for _ in range(min(4200 - len(writers), 500)):
                with contextlib.suppress(OSError):
                    reader, writer = await self._connect()
                    asyncio.create_task(_drain(reader, writer))  # noqa: RUF006 (ends with it)
                    writers.append(writer)
            await asyncio.sleep(0.05)
        for writer in writers:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, local_addr=(ATTACKER, 0))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), 30.0)
        except OSError:
            line = b""
        self.replies[line[9:12].decode() or "-"] += 1


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()


REQUESTS: dict[str, Callable[[], bytes]] = {
    "lists-in-gzip": lists_in_gzip,
    "lists-in-json": lists_in_json,
    "numbers-in-json": numbers_in_json,
    "zeros-in-gzip": zeros_in_gzip,
    "floats": floats,
    "strings": strings,
    "feedback": feedback,
}
ATTACKS = ("none", *REQUESTS, "drip", "idle", "fuzz-http", "fuzz-grpc", "smuggling")
FAULTS = {"500", "UNKNOWN", "INTERNAL", "smuggled"}
"""Replies that no request may get."""


class Watch:
    """Probes the gateways' own sockets and their memory, in threads, while it is entered.

    Attributes:
        hold_ms, wait_ms: of the worst probe.
        grown_mb: the most by which a gateway grew.
        died: gateways that ended meanwhile: Serve kills one that does not answer its health check.
    """

    def __init__(self, running: Running) -> None:
        commands = running.processes()
        self._gateways = [p for p, name in commands.items() if ":GatewayReplica" in name]
        self._sockets = sorted((running.home / "run" / "sockets").glob("*.sock"))
        self._done = threading.Event()
        self._before = {process: _resident(process) for process in self._gateways}
        self.hold_ms = self.wait_ms = self.grown_mb = 0.0
        self.died = 0

    def __enter__(self) -> Watch:
        self._threads = [
            threading.Thread(target=asyncio.run, args=(self._probe(socket_path),))
            for socket_path in self._sockets
        ]
        self._threads.append(threading.Thread(target=self._look))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self.died = sum(not _resident(process) for process in self._gateways)

    def _look(self) -> None:
        while not self._done.wait(0.01):
            for process, before in self._before.items():
                self.grown_mb = max(self.grown_mb, (_resident(process) - before) / 1e6)

    async def _probe(self, socket_path: Path) -> None:
        began_s = time.perf_counter()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_unix_connection(str(socket_path))

            async def ask() -> None:
                writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))

            credentials = writer.get_extra_info("socket").getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            process = struct.unpack("3i", credentials)[0]
            threads = list(Path(f"/proc/{process}/task").iterdir())
            before = list(map(_cpu_ms, threads))
            for _ in range(500):
                await ask()
            used = [_cpu_ms(each) - was for each, was in zip(threads, before, strict=True)]
            loop = threads[used.index(max(used))]
            while not self._done.is_set():
                began_s, began_ms = time.perf_counter(), _cpu_ms(loop)
                await ask()
                self.hold_ms = max(self.hold_ms, _cpu_ms(loop) - began_ms)
                self.wait_ms = max(self.wait_ms, (time.perf_counter() - began_s) * 1e3)
                await asyncio.sleep(0.002)
            writer.close()
        self.wait_ms = max(self.wait_ms, (time.perf_counter() - began_s) * 1e3)


def _cpu_ms(thread: Path) -> float:
    """Processor time of a thread until now; 0 if it has ended."""
    try:
        return int((thread / "schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return 0.0


def _resident(process: int) -> int:
    """Bytes of memory of a process; 0 if it has ended."""
    try:
        return 4096 * int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0


def measure(running: Running, name: str, seconds: float) -> dict[str, Any]:
    host, _, port = running.address.partition(":")
    request = REQUESTS[name]() if name in REQUESTS else b""
    rate = 125_000.0 if len(request) < MIB else 1e12
    gateway = running.get("/modelless/status")["members"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        steps = [(seconds + 3.0, HONEST_PER_S)]
        honest = OpenLoop(running.url, Path(folder), steps, IN_TIME_MS, 1)
        honest.wait_until(1.0)
        attack = Attack((host, int(port)), time.monotonic() + seconds, Counter(), rate)
        act: Callable[[], Awaitable[None]] = {
            "drip": attack.drip,
            "idle": attack.idle,
            "none": lambda: asyncio.sleep(seconds),
            "fuzz-http": lambda: attack.fuzz(lambda rng: mutated(rng, small_query())),
            "fuzz-grpc": attack.fuzz_grpc,
            "smuggling": lambda: attack.fuzz(lambda rng: smuggled(rng, f"{gateway}-1")),
        }.get(name) or (lambda: attack.repeat(request))
        with Watch(running) as watch:
            asyncio.run(_act(act))
        rows = honest.finish()
    return {
        "attack": name,
        "hold_ms": round(watch.hold_ms, 1),
        "wait_ms": round(watch.wait_ms, 1),
        "grown_mb": round(watch.grown_mb, 1),
        "died": watch.died,
        "request_mb": round(len(request) / 1e6, 3),
        "in_time": sum(is_in_time(row, IN_TIME_MS) for row in rows) / len(rows),
        "honest": dict(Counter(str(row.status) if row.status else row.lost for row in rows)),
        "replies": dict(attack.replies),
    }


async def _act(act: Callable[[], Awaitable[None]]) -> None:
    await act()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    with cluster(arguments.home, config=CONFIG, marker="attacks") as running:
        time.sleep(5.0)  # Ray is still busy with itself for a while
        print(
            f"{'attack':16} {'hold':>9} {'wait':>7} {'memory':>9} {'request':>9} {'in time':>8}"
            "  replies"
        )
        for name in arguments.only.split(","):
            row = measure(running, name, arguments.seconds)
            found.append(row)
            print(
                f"{name:16} {row['hold_ms']:6.1f} ms {row['wait_ms']:4.0f} ms "
                f"{row['grown_mb']:6.1f} MB {row['request_mb']:6.3f} MB {row['in_time']:8.1%}  "
                f"{row['replies']} honest: {row['honest']} died: {row['died']}",
                flush=True,
            )
            time.sleep(20.0 if row["died"] else 2.0)
        print("refusals in /modelless/status:", refusals(running))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    sys.exit(any(row["died"] or any(map(row["replies"].get, FAULTS)) for row in found))


def refusals(running: Running) -> dict[str, object]:
    status = running.get("/modelless/status")
    return {name: status.get(name, {}) for name in ("replies", "proxy_refusals")}


if __name__ == "__main__":
    main()
