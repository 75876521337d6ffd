"""A server of the protocol in a thread, whose answers the test sets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import ModellessError
from modelless.controller.api.v2_headers import read_headers
from modelless.controller.api.v2_reply import (
    Headers,
    Reply,
    render_error,
    render_infer,
    render_json,
)
from modelless.controller.api.v2_request import InferRequest, parse_infer

from .tiny import TASK

STATUS = {
    "members": [
        {
            "id": "abc",
            "role": "gateway",
            "is_starting": True,
            "device_class": "cpu-1",
            "resizing_to": "cpu-2",
            "loaded": ["pixels/mean/small@1"],
            "loading": [],
            "failed_loads": {"pixels/mean/large@1": "no room"},
            "memory_bytes": 3 << 20,
            "memory_budget_bytes": 100 << 20,
            "resident_bytes": 200 << 20,
            "queued": 2,
            "arrivals_per_s": 12.5,
        }
    ],
    "predictions": [
        {
            "device_class": "cpu-1",
            "outcomes": 4321,
            "within_p50_percent": 50.3,
            "within_p90_percent": 90.4,
            "within_p99_percent": 98.9,
            "median_error_percent": 5.6,
            "ignored": 12,
        }
    ],
    "drifted": [{"variant": "pixels/mean/small@1", "device_class": "cpu-1", "factor": 1.5}],
    "feedback": [
        {
            "variant": "pixels/mean/small@1",
            "items": 400.0,
            "accuracy": 70.5,
            "low": 66.0,
            "high": 74.9,
            "stated_low": 88.0,
            "demoted_to": 61.2,
            "since": None,
            "tenants": {"shop": {"items": 400.0, "accuracy": 70.5, "low": 66.0, "high": 74.9}},
        }
    ],
    "not_served": {"stray": "task stray has no profile on device class cpu-1: profile it"},
    "outcomes": {"served": 40, "refused": 2},
    "pools": [{"pool": "cpu-1", "asked": 2, "min_workers": 1, "max_workers": 4}],
    "served_by_variant": {"pixels/mean/small@1": 40},
    "up_s": 65.0,
}


@dataclass
class Server:
    """What the server answers, and what it was asked."""

    url: str = ""
    answers: dict[str, Reply] = field(default_factory=dict)
    error: ModellessError | None = None
    outputs: dict[str, NDArray[Any]] | None = None
    asked: list[InferRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def get(self, path: str) -> Reply:
        self.paths.append(path)
        if path in self.answers:
            return self.answers[path]
        if path == "/modelless/status":
            return render_json(STATUS)
        if path == "/v2/health/ready":
            return render_json({"ready": True})
        document = {
            "name": path.removeprefix("/v2/models/"),
            "inputs": [
                {"name": s.name, "datatype": s.datatype, "shape": s.shape} for s in TASK.inputs
            ],
            "outputs": [
                {"name": s.name, "datatype": s.datatype, "shape": s.shape} for s in TASK.outputs
            ],
        }
        return render_json(document)

    def infer(self, path: str, body: bytes, headers: Headers) -> Reply:
        self.paths.append(path)
        if self.error is not None:
            return render_error(self.error)
        if path in self.answers:
            return self.answers[path]
        said = read_headers(headers)
        request = parse_infer(body, said.json_length, header_parameters=said.parameters)
        self.asked.append(request)
        items = len(request.tensors["image"])
        scores = np.tile(np.array([0.125, 0.5, 0.0, 0.375], np.float32), (items, 1))
        parameters = {
            "variant": "pixels/mean/small@1",
            "device": "cpu-1",
            "predicted_latency_ms": 5.0,
            "observed_latency_ms": 4.5,
            "accuracy": 70.0,
            "accuracy_provenance": "published",
            "cost_usd": 1e-7,
            "receipt_id": "abc-1",
        }
        reply = render_infer(
            request,
            self.outputs or {"scores": scores},
            model_name="pixels",
            model_version="1",
            parameters=parameters,
            labels=TASK.labels,
        )
        return Reply(200, reply[0], reply[1])


@contextmanager
def running() -> Iterator[Server]:
    """A server on a free port of loopback."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(server.get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = [(k.lower().encode(), v.encode()) for k, v in self.headers.items()]
            self.answer(server.infer(self.path, body, headers))

        def answer(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: Any) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_address[1]}"
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def no_json() -> Reply:
    """What a server of something else might say."""
    return Reply(200, b"<html>", [(b"content-length", b"6")])


def as_reply(document: Any, status: int) -> Reply:
    """A JSON answer of any status."""
    body = json.dumps(document).encode()
    return Reply(status, body, [(b"content-length", str(len(body)).encode())])
