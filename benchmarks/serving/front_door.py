"""The price of everything around the model: images/s of each front door, as a share of the limit.

One run, same cores: lite0-int8@224, raw uint8 in by HTTP, 1,000 float32 out, access logs off, at 1
and 16 connections.

- limit: ONNX Runtime in process, two processes of one thread, no server at all;
- serve: plain Ray Serve, two replicas, ``@serve.batch``, at its defaults;
- serve-tuned: the same with HAProxy and the throughput settings;
- modelless: two gateways, choosing a variant for every query.

    python benchmarks/serving/front_door.py --home HOME [--rounds 3] [--seconds 8]
        [--only limit,modelless]
    python benchmarks/serving/front_door.py --home HOME --cache

``--cache`` measures modelless alone, with a cache, three times in each run: queries that do without
it, queries whose answers are kept but not found, and queries that it answers.

HOME must hold the ``imagenet`` zoo, profiled (``modelless zoo add imagenet; modelless profile``).
Prints a table with the median of the rounds and their spread; ``--json FILE`` keeps everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
MODEL = "efficientnet-lite0"
VARIANT = "int8-224"
SYSTEMS = ("limit", "serve", "serve-tuned", "modelless")
CACHE = {"no-store": "uncached", "no-cache": "kept", "": "hits"}
"""By ``cache_control``, what its rows are called."""
PORT = 8155


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--cache", action="store_const", dest="only", const="modelless-cache")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[int, list[dict]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        variant = find_variant(arguments.home)
        for round_number in range(arguments.rounds):
            for system in arguments.only.split(","):
                for (row, connections), found in measure(
                    system, arguments, variant, Path(folder)
                ).items():
                    results.setdefault(row, {}).setdefault(connections, []).append(found)
                    print(
                        f"round {round_number + 1} {row:12} c={connections:<3}"
                        f"{found['per_s']:8.1f}/s p50 {found['p50_ms']:.2f} ms "
                        f"p99 {found['p99_ms']:.2f} ms {found.get('note', '')}",
                        flush=True,
                    )
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def report(results: dict[str, dict[int, list[dict]]]) -> None:
    """The table: median images/s over the rounds, (lowest-highest), share of the limit."""
    print(f"\n{'system':12} {'1 connection':>34} {'16 connections':>34}")
    for system, by_connections in results.items():
        cells = []
        for connections in (1, 16):
            rates = [found["per_s"] for found in by_connections[connections]]
            cell = f"{statistics.median(rates):.1f}/s ({min(rates):.0f}-{max(rates):.0f})"
            if "limit" in results:
                shares = [
                    found["per_s"] / limit["per_s"]
                    for found, limit in zip(
                        by_connections[connections], results["limit"][connections], strict=True
                    )
                ]
                cell += f" {statistics.median(shares):.2f} of limit"
            cells.append(cell)
        print(f"{system:12} {cells[0]:>34} {cells[1]:>34}")


def find_variant(home: Path) -> dict:
    """The benchmark's variant in the store: its artifact and accuracy."""
    from modelless.variants.registry.registry import open_registry

    registry = open_registry(home)
    scope = registry.catalog().resolve(f"imagenet/{MODEL}/{VARIANT}")
    variant = scope.variants[0]
    artifact = registry.artifacts.fetch(variant.artifact_sha256)
    registry.close()
    return {"artifact": str(artifact), "accuracy": variant.accuracy.percent, "id": variant.id}


def measure(system: str, arguments: argparse.Namespace, variant: dict, folder: Path) -> dict:
    if system == "limit":
        processes = {1: 1, 16: 2}
        return {
            (system, c): in_process(variant, arguments.seconds, n) for c, n in processes.items()
        }
    found = {}
    pixels = np.random.default_rng(0).integers(0, 255, (1, 224, 224, 3), np.uint8).tobytes()
    controls = CACHE if system == "modelless-cache" else {"": system}
    with server(system, arguments, variant):
        for connections, (control, row) in itertools.product((1, 16), controls.items()):
            spec = {"host": "127.0.0.1", "port": PORT, "connections": connections, "marker": ""}
            spec |= {"warm_up_s": 2.0, "seconds": arguments.seconds, "body": str(folder / "body")}
            if system.startswith("modelless"):
                body, headers = v2_request(pixels, variant["accuracy"])
                headers["cache-control"] = control
                spec |= {"path": f"/v2/models/imagenet%2F{MODEL}/infer", "headers": headers}
                spec["marker"] = variant["id"]
            else:
                body, headers = pixels, {}
                spec |= {"path": "/", "headers": headers}
            (folder / "body").write_bytes(body)
            (folder / "spec").write_text(json.dumps(spec))
            command = [sys.executable, __file__, "--client", str(folder / "spec")]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            this = found[row, connections] = json.loads(out)
            if set(this["statuses"]) != {"200"}:
                raise SystemExit(f"{row}: not every reply was 200: {this}")
            if spec["marker"] and this["marked"] < this["replies"]:
                this["note"] = f"({this['marked'] / this['replies']:.1%} by {variant['id']})"
    return found


def v2_request(pixels: bytes, accuracy: float) -> tuple[bytes, dict[str, str]]:
    """An Open Inference Protocol request with an SLO, binary in and out."""
    document = {
        "parameters": {
            "latency_ms": 2000.0,
            "min_accuracy": accuracy,
            "binary_data_output": True,
        },
        "inputs": [
            {
                "name": "image",
                "shape": [1, 224, 224, 3],
                "datatype": "UINT8",
                "parameters": {"binary_data_size": len(pixels)},
            }
        ],
    }
    head = json.dumps(document).encode()
    head += b" " * (-len(head) % 8)
    return head + pixels, {"inference-header-content-length": str(len(head))}


def in_process(variant: dict, seconds: float, processes: int) -> dict:
    """The limit: ``processes`` processes of one thread each, doing nothing but the model."""
    command = [sys.executable, __file__, "--in-process", variant["artifact"], str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    found = [json.loads(process.communicate()[0]) for process in running]
    return {
        "per_s": sum(one["per_s"] for one in found),
        "p50_ms": statistics.median(one["p50_ms"] for one in found),
        "p99_ms": max(one["p99_ms"] for one in found),
    }


def run_in_process(artifact: str, seconds: float) -> None:
    session = open_session(artifact)
    image = np.random.default_rng(0).integers(0, 255, (1, 224, 224, 3), np.uint8)
    name = session.get_inputs()[0].name
    for _ in range(50):
        session.run(None, {name: image})
    latency_s = []
    begin_s = time.perf_counter()
    while (now_s := time.perf_counter()) < begin_s + seconds:
        session.run(None, {name: image})
        latency_s.append(time.perf_counter() - now_s)
    latency_s.sort()
    rate = len(latency_s) / (time.perf_counter() - begin_s)
    quantiles = [latency_s[int(len(latency_s) * level)] * 1e3 for level in (0.5, 0.99)]
    print(json.dumps({"per_s": rate, "p50_ms": quantiles[0], "p99_ms": quantiles[1]}))


def open_session(artifact: str) -> object:
    """The session every peer here uses: the very same options as modelless's runtime."""
    import modelless  # noqa: F401, I001 (it turns off the telemetry of ONNX Runtime: first)
    import onnxruntime

    from modelless.variants.runtimes.onnxruntime_cpu import session_options

    return onnxruntime.InferenceSession(
        artifact, session_options(threads=1), providers=["CPUExecutionProvider"]
    )


@contextlib.contextmanager
def server(system: str, arguments: argparse.Namespace, variant: dict) -> Iterator[None]:
    environment = dict(os.environ)
    if system.startswith("modelless"):
        scopes = "imagenet" if system == "modelless-cache" else ""
        config = arguments.home / "front_door.yaml"
        config.write_text(
            f"http: {{port: {PORT}}}\ntasks: [imagenet]\n"
            "policies: {selection: cheapest-feasible}\nlimits: {max_batch: 8}\n"
            f"cache: {{scopes: [{scopes}]}}\n"
        )
        command = [sys.executable, "-m", "modelless.controller.cli", "--home", str(arguments.home)]
        command += ["up", "--config", str(config)]
        ready = f"http://127.0.0.1:{PORT}/v2/health/ready"
    else:
        if system == "serve-tuned":
            environment |= {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
        command = [sys.executable, str(HERE / "plain_serve.py"), variant["artifact"], str(PORT)]
        ready = f"http://127.0.0.1:{PORT}/-/healthz"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until_ready(ready, process, log)
            time.sleep(5.0)  # Ray is still busy with itself for a while
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            time.sleep(3.0)


def wait_until_ready(url: str, process: subprocess.Popen, log: object) -> None:
    """Poll ``url`` until it answers 200; show the log if the process ends first."""
    for _ in range(1200):
        if process.poll() is not None:
            log.seek(0)
            raise SystemExit(log.read().decode())
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not become ready")


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


async def run_client(spec: dict) -> dict:
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
    if sys.argv[1:2] == ["--in-process"]:
        run_in_process(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1:2] == ["--client"]:
        import uvloop

        print(json.dumps(uvloop.run(run_client(json.loads(Path(sys.argv[2]).read_text())))))
    else:
        main()
