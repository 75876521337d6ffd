"""The price of everything around the model: images/s of each front door, as a share of the limit.

One run, same cores: lite0-int8@224, raw uint8 in by HTTP, 1,000 float32 out, access logs off, at 1
and 16 connections.

- limit: ONNX Runtime in process, two processes of one thread, no server at all;
- serve: plain Ray Serve, two replicas, ``@serve.batch``, at its defaults;
- serve-tuned: the same with HAProxy and the throughput settings;
- modelless: two gateways, choosing a variant for every query.

    python benchmarks/front_door.py --home HOME [--rounds 3] [--seconds 8] [--only limit,modelless]

HOME must hold the ``imagenet`` zoo, profiled (``modelless zoo add imagenet; modelless profile``).
Prints a table with the median of the rounds and their spread; ``--json FILE`` keeps everything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
MODEL = "efficientnet-lite0"
VARIANT = "int8-224"
SYSTEMS = ("limit", "serve", "serve-tuned", "modelless")
PORT = 8155


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[int, list[dict]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        variant = find_variant(arguments.home)
        for round_number in range(arguments.rounds):
            for system in arguments.only.split(","):
                for connections, found in measure(system, arguments, variant, Path(folder)).items():
                    results.setdefault(system, {}).setdefault(connections, []).append(found)
                    print(
                        f"round {round_number + 1} {system:12} c={connections:<3}"
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
        return {c: in_process(variant, arguments.seconds, 1 if c == 1 else 2) for c in (1, 16)}
    found = {}
    pixels = np.random.default_rng(0).integers(0, 255, (1, 224, 224, 3), np.uint8).tobytes()
    with server(system, arguments, variant):
        for connections in (1, 16):
            spec = {"host": "127.0.0.1", "port": PORT, "connections": connections, "marker": ""}
            spec |= {"warm_up_s": 2.0, "seconds": arguments.seconds, "body": str(folder / "body")}
            if system == "modelless":
                body, headers = v2_request(pixels, variant["accuracy"])
                spec |= {"path": f"/v2/models/imagenet%2F{MODEL}/infer", "headers": headers}
                spec["marker"] = variant["id"]
            else:
                body, headers = pixels, {}
                spec |= {"path": "/", "headers": headers}
            (folder / "body").write_bytes(body)
            (folder / "spec").write_text(json.dumps(spec))
            command = [sys.executable, str(HERE / "load.py"), str(folder / "spec")]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[connections] = json.loads(out)
            if set(found[connections]["statuses"]) != {"200"}:
                raise SystemExit(f"{system}: not every reply was 200: {found[connections]}")
            if spec["marker"] and found[connections]["marked"] < found[connections]["replies"]:
                share = found[connections]["marked"] / found[connections]["replies"]
                found[connections]["note"] = f"({share:.1%} by {variant['id']})"
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
    if system == "modelless":
        config = arguments.home / "front_door.yaml"
        config.write_text(
            f"http: {{port: {PORT}}}\ntasks: [imagenet]\n"
            "policies: {selection: cheapest-feasible}\nlimits: {max_batch: 8}\n"
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        run_in_process(sys.argv[2], float(sys.argv[3]))
    else:
        main()
