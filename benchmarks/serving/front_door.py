"""The price of everything around the model: items/s of each front door, as a share of the limit.

One run, same cores, same variant, binary tensors, access logs off:

- limit: ONNX Runtime in process, one process and thread a connection, two at most, no server;
- serve: plain Ray Serve, two replicas, ``@serve.batch``, at its defaults (imagenet only);
- serve-tuned: the same with HAProxy and the throughput settings;
- triton: Triton's C++ server with its Python backend, two instances, dynamic batching without
  delay; with ``--triton PYTHON``, an interpreter with ``nvidia-pytriton`` and ``onnxruntime``;
- modelless: two gateways with the default policies, asked for the variant by its name;
- grpc: the same over gRPC;
- cheapest: as modelless, but asked for the model, whose cheapest variant that is accurate enough
  ``cheapest-feasible`` chooses for every query.

    python benchmarks/serving/front_door.py --home HOME [--rounds 3] [--chart FILE.png]
    python benchmarks/serving/front_door.py --home HOME --compare keys,receipts,traces,quotes

``--compare`` alternates modelless as above with modelless with one thing more, and prints the ratio
of the two: ``keys`` (each query bears one), ``receipts`` (without them on disk), ``traces`` (each
query is sampled; needs the extra ``otel``), ``quotes`` (another client asks for 10 a second),
``grpc`` (instead of HTTP), and ``cache`` (queries that do without it, whose answers are kept but
not found, and that it answers). Several comparisons share the rounds, and every other round goes
through the systems in the opposite order.

HOME must hold the variant, profiled: ``modelless zoo add imagenet; modelless profile``, or another
``--variant``. ``--json FILE`` keeps everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
PORT = 8155
SIDE = 224
"""Of pictures whose size the task leaves free."""
CACHE = {"no-store": "uncached", "no-cache": "kept", "": "hits"}
"""By ``cache_control``, what its rows are called."""


@dataclass(frozen=True)
class System:
    """What answers.

    Attributes:
        settings: of modelless, besides those that all have.
        environment: of the server.
        headers: of each request.
        controls: by the header ``cache-control``, what its row is called; one row if empty.
        quotes_per_s: that another client asks for.
        has_keys: whether each request bears a key.
        is_grpc: whether clients speak gRPC.
        is_choosing: whether queries name the model, not the variant.
    """

    settings: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    controls: Mapping[str, str] = field(default_factory=dict)
    quotes_per_s: float = 0.0
    has_keys: bool = False
    is_grpc: bool = False
    is_choosing: bool = False


TUNED = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
SAMPLED = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
SYSTEMS = {
    "limit": System(),
    "serve": System(),
    "serve-tuned": System(environment=TUNED),
    "triton": System(),
    "modelless": System(),
    "cheapest": System("policies: {{selection: cheapest-feasible}}", is_choosing=True),
    "keys": System(has_keys=True),
    "no-receipts": System("history: {{receipts_per_s: 0}}"),
    "traces": System(environment={"OTEL_TRACES_EXPORTER": "console"}, headers=SAMPLED),
    "quotes": System(quotes_per_s=10.0),
    "grpc": System(is_grpc=True),
    "cache": System("cache: {{scopes: [{task}]}}", controls=CACHE),
}
PEERS = ("limit", "serve", "serve-tuned", "modelless", "grpc", "cheapest")
COMPARED = {
    "keys": ("modelless", "keys"),
    "receipts": ("no-receipts", "modelless"),
    "traces": ("modelless", "traces"),
    "quotes": ("modelless", "quotes"),
    "grpc": ("modelless", "grpc"),
    "cache": tuple(CACHE.values()),
}
"""Rows by comparison; ratios are to the first one."""


def names_of(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """The type of an argument that is a list of names, separated by commas."""

    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - known.keys():
            raise argparse.ArgumentTypeError(f"{unknown}; allowed: {', '.join(known)}")
        return found

    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--home", type=Path, required=True)
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=8.0)
    add("--connections", default="1,16", help="numbers of them, such as 1,16,64")
    add("--variant", default="imagenet/efficientnet-lite0/int8-224")
    add("--only", type=names_of(SYSTEMS), default=PEERS, help=f"of {', '.join(SYSTEMS)}")
    add("--compare", type=names_of(COMPARED), default=(), help=f"of {', '.join(COMPARED)}")
    add("--triton", type=Path, metavar="PYTHON", help="an interpreter with nvidia-pytriton")
    add("--chart", type=Path)
    add("--json", type=Path)
    arguments = parser.parse_args()
    comparisons = [COMPARED[name] for name in arguments.compare]
    rows = itertools.chain(*comparisons) if comparisons else arguments.only
    systems = ["cache" if row in CACHE.values() else row for row in rows]
    systems = list(dict.fromkeys([*systems, "triton"] if arguments.triton else systems))
    if "triton" in systems and not arguments.triton:
        parser.error("--only triton needs --triton PYTHON")
    counts = [int(count) for count in arguments.connections.split(",")]
    results: dict[str, dict[int, list[dict]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        variant = find_variant(arguments.home, arguments.variant)
        for number in range(arguments.rounds):
            for system in systems[:: -1 if number % 2 else 1]:
                found = measure(system, arguments, counts, variant, Path(folder))
                for (row, connections), figures in found.items():
                    results.setdefault(row, {}).setdefault(connections, []).append(figures)
                    print(
                        f"round {number + 1} {row:12} c={connections:<3}"
                        f"{figures['per_s']:8.1f}/s p50 {figures['p50_ms']:.2f} ms "
                        f"p99 {figures['p99_ms']:.2f} ms {figures.get('note', '')}",
                        flush=True,
                    )
    report(results, counts, comparisons or [tuple(results)])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.chart:
        draw(results, counts, arguments.chart)


def draw(results: dict[str, dict[int, list[dict]]], counts: list[int], path: Path) -> None:
    """Bars of the median rate of each row over that of the first, with the spread of the rounds."""
    from modelless.common.drawing import render_png

    first, *others = results
    width = 0.8 / len(others)

    def bars(figure: object) -> None:
        axes = figure.subplots()  # type: ignore[attr-defined]
        for place, row in enumerate(others):
            rates = np.array([[each["per_s"] for each in results[row][c]] for c in counts])
            shares = rates / [[each["per_s"] for each in results[first][c]] for c in counts]
            medians = np.median(shares, axis=1)
            around = [medians - shares.min(axis=1), shares.max(axis=1) - medians]
            at = np.arange(len(counts)) + (place - (len(others) - 1) / 2) * width
            axes.bar(at, medians, width, yerr=around, label=row)
        axes.set_xticks(np.arange(len(counts)), [f"{count} connections" for count in counts])
        axes.set_ylabel(f"items a second, share of {first}")
        axes.legend(ncols=len(others), loc="upper center", bbox_to_anchor=(0.5, 1.12))

    path.write_bytes(render_png(bars, (9.0, 4.5)))


def report(
    results: dict[str, dict[int, list[dict]]], counts: list[int], comparisons: list[tuple[str, ...]]
) -> None:
    """Rates, and ratios of rates to those of a first row: the rounds' median (lowest-highest)."""

    def spread(figures: list[float], form: str) -> str:
        return form.format(statistics.median(figures), min(figures), max(figures))

    def rates(row: str, count: int) -> list[float]:
        return [found["per_s"] for found in results[row][count]]

    print(f"\n{'':25}" + "".join(f"{count:>20} conn." for count in counts))
    for row in results:
        cells = [spread(rates(row, count), "{:.1f}/s ({:.0f}-{:.0f})") for count in counts]
        print(f"{row:25}" + "".join(f"{cell:>26}" for cell in cells))
    for first, *others in comparisons:
        for row in others:
            ratios = [np.divide(rates(row, c), rates(first, c)).tolist() for c in counts]
            cells = [spread(each, "{:.3f} ({:.3f}-{:.3f})") for each in ratios]
            print(f"{f'{row} / {first}':25}" + "".join(f"{cell:>26}" for cell in cells))


def find_variant(home: Path, name: str) -> dict:
    """A variant in the store: artifact, accuracy, and the input of one item."""
    from modelless.variants.registry.registry import open_registry
    from modelless.variants.signature import dtype_of

    registry = open_registry(home)
    scope = registry.catalog().resolve(name)
    variant = scope.variants[0]
    artifact = registry.artifacts.fetch(variant.artifact_sha256)
    registry.close()
    (spec,) = scope.task.inputs
    shape = [1, *(SIDE if size == -1 else size for size in spec.shape[1:])]
    random = np.random.default_rng(0).integers(0, 255, shape)
    return {
        "artifact": str(artifact),
        "accuracy": variant.accuracy.percent,
        "id": variant.id,
        "name": name,
        "task": scope.task.name,
        "scope": name.rpartition("/")[0],
        "input": (spec.name, spec.datatype, random.astype(dtype_of(spec.datatype))),
    }


def measure(
    name: str, arguments: argparse.Namespace, counts: list[int], variant: dict, folder: Path
) -> dict:
    if name == "limit":
        return {(name, c): in_process(variant, arguments.seconds, min(c, 2)) for c in counts}
    system, found = SYSTEMS[name], {}
    with server(name, system, arguments, variant, folder) as headers:
        for connections, (control, row) in itertools.product(
            counts, (system.controls or {"": name}).items()
        ):
            spec = {"host": "127.0.0.1", "port": PORT, "connections": connections, "marker": ""}
            spec |= {"warm_up_s": 2.0, "seconds": arguments.seconds, "body": str(folder / "body")}
            spec |= {"path": "/", "headers": headers | dict(system.headers), "grpc": system.is_grpc}
            body = variant["input"][2].tobytes()
            if not name.startswith("serve"):
                asked = variant["scope"] if system.is_choosing else variant["name"]
                body, more = grpc_request(variant, asked) if system.is_grpc else v2_request(variant)
                spec["path"] = f"/v2/models/{'classifier' if name == 'triton' else asked}/infer"
                spec["headers"] |= more | ({"cache-control": control} if control else {})
                spec["marker"] = "" if name == "triton" else variant["id"]
            (folder / "body").write_bytes(body)
            (folder / "spec").write_text(json.dumps(spec))
            command = [sys.executable, __file__, "--client", str(folder / "spec")]
            with quotes(variant, system.quotes_per_s):
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            this = found[row, connections] = json.loads(out)
            if set(this["statuses"]) != {"200"}:
                raise SystemExit(f"{row}: not every reply was 200: {this}")
            if spec["marker"] and this["marked"] < this["replies"]:
                this["note"] = f"({this['marked'] / this['replies']:.1%} by {variant['id']})"
    return found


@contextlib.contextmanager
def quotes(variant: dict, per_s: float) -> Iterator[None]:
    """Ask for so many quotes a second meanwhile."""
    done = threading.Event()
    asked = {"task": variant["name"], "parameters": {"latency_ms": 2000.0}}
    url = f"http://127.0.0.1:{PORT}/modelless/quote"

    def ask() -> None:
        while not done.wait(1 / per_s):
            with urllib.request.urlopen(url, json.dumps(asked).encode()) as reply:
                reply.read()

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask) if per_s else None
        try:
            yield
        finally:
            done.set()
    if asking is not None:
        asking.result()  # raises what went wrong


def v2_request(variant: dict) -> tuple[bytes, dict[str, str]]:
    """An Open Inference Protocol request with limits, binary in and out."""
    name, datatype, item = variant["input"]
    parameters = {"latency_ms": 2000.0, "min_accuracy": variant["accuracy"]}
    tensor = {"name": name, "shape": item.shape, "datatype": datatype}
    tensor["parameters"] = {"binary_data_size": item.nbytes}
    document = {"parameters": {**parameters, "binary_data_output": True}, "inputs": [tensor]}
    head = json.dumps(document).encode()
    head += b" " * (-len(head) % 8)
    return head + item.tobytes(), {"inference-header-content-length": str(len(head))}


def grpc_request(variant: dict, asked: str) -> tuple[bytes, dict[str, str]]:
    """The same as a message."""
    from tritonclient.grpc import service_pb2

    name, datatype, item = variant["input"]
    message = service_pb2.ModelInferRequest(model_name=asked, raw_input_contents=[item.tobytes()])
    message.inputs.add(name=name, datatype=datatype, shape=item.shape)
    message.parameters["latency_ms"].double_param = 2000.0
    message.parameters["min_accuracy"].double_param = variant["accuracy"]
    return message.SerializeToString(), {}


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
    (entry,) = session.get_inputs()
    shape = [1, *(SIDE if type(size) is not int else size for size in entry.shape[1:])]
    dtype = {"tensor(uint8)": np.uint8}.get(entry.type, np.float32)
    inputs = {entry.name: np.random.default_rng(0).integers(0, 255, shape).astype(dtype)}
    for _ in range(50):
        session.run(None, inputs)
    latency_s = []
    begin_s = time.perf_counter()
    while (now_s := time.perf_counter()) < begin_s + seconds:
        session.run(None, inputs)
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
def server(
    name: str, system: System, arguments: argparse.Namespace, variant: dict, folder: Path
) -> Iterator[dict[str, str]]:
    """The system, ready; yields the headers that its requests need."""
    environment, headers = {**os.environ, **system.environment}, {}
    peers = str(HERE / "plain_peers.py")
    if name.startswith("serve"):
        command = [sys.executable, peers, "serve", variant["artifact"], str(PORT)]
        ready = f"http://127.0.0.1:{PORT}/-/healthz"
    elif name == "triton":
        command = [str(arguments.triton), peers, "triton", variant["artifact"], str(PORT)]
        ready = f"http://127.0.0.1:{PORT}/v2/models/classifier/ready"
    else:
        home, config = folder / name, folder / f"{name}.yaml"
        if not home.exists():
            shutil.copytree(arguments.home, home, ignore=shutil.ignore_patterns("run"))
        modelless = [sys.executable, "-m", "modelless.controller.cli", "--home", str(home)]
        if system.has_keys:
            make = [*modelless, "key", "create", "--tenant", "a", "--scope", "infer", "--json"]
            made = subprocess.run(make, check=True, capture_output=True, text=True).stdout
            headers["authorization"] = f"Bearer {json.loads(made)['secret']}"
        config.write_text(
            f"http: {{port: {PORT}}}\ntasks: [{variant['task']}]\nserve_dominated: true\n"
            "limits: {max_batch: 8}\n"
            f"gateways: {{count: 2}}\n{system.settings.format(task=variant['task'])}\n"
        )
        command = [*modelless, "up", "--config", str(config)]
        ready = f"http://127.0.0.1:{PORT}/v2/health/ready"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until_ready(ready, process, log)
            time.sleep(5.0)  # Ray is still busy with itself for a while
            yield headers
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
            start = head.index(b"\r\ncontent-length:") + 17
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
    if spec["grpc"]:
        return await run_calls(spec, body)
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
    for connection in connections:
        connection.stopped = True
    await asyncio.gather(*(connection.done for connection in connections))
    statuses: Counter[int] = sum((c.statuses for c in connections), Counter())
    return figures(spec, record, begin_s, statuses, sum(c.marked for c in connections))


async def run_calls(spec: dict, message: bytes) -> dict:
    """The same over gRPC, a channel a connection."""
    import grpc

    record: list[tuple[float, float]] = []
    begin_s = time.perf_counter() + spec["warm_up_s"]
    end_s = begin_s + spec["seconds"]
    marked = 0

    async def call_again_and_again(number: int) -> None:
        nonlocal marked
        options = [("grpc.use_local_subchannel_pool", 1), ("number", number)]
        async with grpc.aio.insecure_channel(f"{spec['host']}:{spec['port']}", options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while (sent_s := time.perf_counter()) < end_s:
                reply = await call(message, metadata=list(spec["headers"].items()))
                record.append((time.perf_counter(), time.perf_counter() - sent_s))
                marked += spec["marker"].encode() in reply

    await asyncio.gather(*map(call_again_and_again, range(spec["connections"])))
    return figures(spec, record, begin_s, Counter({200: len(record)}), marked)


def figures(
    spec: dict,
    record: list[tuple[float, float]],
    begin_s: float,
    statuses: Counter[int],
    marked: int,
) -> dict:
    """Throughput and latency of what was answered in the time."""
    end_s = begin_s + spec["seconds"]
    latency_s = sorted(took for at, took in record if begin_s <= at < end_s)
    return {
        "per_s": len(latency_s) / spec["seconds"],
        "p50_ms": latency_s[len(latency_s) // 2] * 1e3,
        "p99_ms": latency_s[int(len(latency_s) * 0.99)] * 1e3,
        "statuses": {str(status): count for status, count in statuses.items()},
        "marked": marked,
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
