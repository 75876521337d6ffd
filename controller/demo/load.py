"""An open-loop load: queries are sent when they are due, whatever becomes of those before them.

It is sent by a process of its own, ``python -m modelless.controller.demo.load SPEC.json``, so that
drawing tables and sending queries do not disturb each other. Each second it writes one line of
JSON: the queries that have ended since the last one. It ends by itself when nobody reads them.

It must not be the bottleneck: requests are prepared beforehand, and replies are read by their
length.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.demo.query_log import Row
from modelless.controller.usecases.client import encode_infer, read_class
from modelless.variants.vocabulary import SLO

GRACE_S = 12.0
"""How long to wait for the last replies: more than the deadline of queries that name none."""

_FIRST_CONNECTIONS, _MOST_CONNECTIONS = 4, 256
"""More queries at once than the most wait in the client, and are timed all the same."""
_SEND_BUFFER_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n")
_CLOSES = b"\r\nconnection: close\r\n"


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KindSpec(_Spec):
    """A kind of queries.

    Attributes:
        limits: ``latency_ms``, ``min_accuracy``, ``max_cost_usd``; those that are set.
        weight: its share among the kinds, relative.
        deadline_ms: by which the client wants its answer.
        images: a NumPy file, one item a query along axis 0.
        labels: for each image the acceptable classes; empty where they are not known.
    """

    name: str
    task: str
    limits: dict[str, float] = Field(default_factory=dict)
    weight: float = Field(gt=0.0)
    deadline_ms: float = Field(gt=0.0)
    images: Path
    labels: list[list[int]]
    input_name: str
    output_name: str


class StepSpec(_Spec):
    """A stretch of constant mean rate: ``seconds`` long, ``per_s`` queries a second on average."""

    seconds: float = Field(gt=0.0)
    per_s: float = Field(ge=0.0)


class LoadSpec(_Spec):
    """A load to send.

    Attributes:
        url: ``http://host:port``.
        kinds, steps: what and how fast, in order.
        seed: of the times and of the order.
    """

    url: str
    kinds: list[KindSpec] = Field(min_length=1)
    steps: list[StepSpec] = Field(min_length=1)
    seed: int = 0

    @property
    def length_s(self) -> float:
        """How long queries are sent, seconds."""
        return sum(step.seconds for step in self.steps)

    def offered_per_s(self, at_s: float) -> float:
        """The mean rate that is due ``at_s`` seconds after the beginning; 0 outside."""
        start_s = 0.0
        for step in self.steps:
            if start_s <= at_s < start_s + step.seconds:
                return step.per_s
            start_s += step.seconds
        return 0.0


class ScheduledQuery(NamedTuple):
    """A query to be sent: when (seconds from the beginning), of which kind, with which image."""

    due_s: float
    kind: int
    image: int


def schedule(spec: LoadSpec, image_counts: Sequence[int]) -> list[ScheduledQuery]:
    """When to send what: a Poisson process whose rate follows the steps; the same for a seed."""
    rng = np.random.default_rng(spec.seed)
    weights = np.array([kind.weight for kind in spec.kinds])
    shots: list[ScheduledQuery] = []
    start_s = 0.0
    for step in spec.steps:
        count = int(rng.poisson(step.per_s * step.seconds))
        due_s = np.sort(rng.uniform(start_s, start_s + step.seconds, count))
        kinds = rng.choice(len(weights), size=count, p=weights / weights.sum())
        draws = rng.integers(0, 1 << 30, size=count)
        shots += [
            ScheduledQuery(float(at_s), int(kind), int(draw) % image_counts[kind])
            for at_s, kind, draw in zip(due_s, kinds, draws, strict=True)
        ]
        start_s += step.seconds
    return shots


class Reply(NamedTuple):
    """An HTTP reply as far as it matters here: its status (0 for none), its body, or why none.

    ``is_last`` tells that the server closes the connection after it.
    """

    status: int
    body: bytes
    lost: str = ""
    is_last: bool = False


BROKEN = Reply(0, b"", "broken", is_last=True)
"""The connection broke under the query."""

TIMED_OUT = Reply(0, b"", "timed out")
"""No reply came until ``GRACE_S`` after the end."""

UNREACHED = Reply(0, b"", "unreached")
"""Nobody accepted a connection to send the query on."""


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The next reply of a keep-alive connection; ``BROKEN`` if it is not whole or not HTTP."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        return Reply(int(head[9:12]), body, is_last=_CLOSES in head)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return BROKEN


@dataclass(slots=True, eq=False)
class _Sent:
    """A query on its way, and when it was handed to a connection or began to wait for one."""

    shot: ScheduledQuery
    at_s: float


class Load:
    """Sends a schedule and keeps the rows.

    Args:
        requests: the bytes of each kind's request with each of its images.
        report: called every second, in a thread, with the rows that are new; at the end with the
            last ones and True.
    """

    def __init__(
        self,
        spec: LoadSpec,
        requests: Sequence[Sequence[bytes]],
        report: Callable[[list[Row], bool], None],
    ) -> None:
        self._spec = spec
        self._requests = requests
        self._report = report
        self._waiting: asyncio.Queue[_Sent] = asyncio.Queue()
        self._unanswered: set[_Sent] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._open = self._idle = 0
        self._is_over = False
        self._rows: list[Row] = []
        self._begin_s = 0.0

    async def run(self) -> None:
        """Send everything when it is due, then wait for the replies, at most ``GRACE_S``."""
        shots = schedule(self._spec, [len(of_kind) for of_kind in self._requests])
        async with asyncio.TaskGroup() as group:
            for _ in range(_FIRST_CONNECTIONS):
                self._connect(group)
            await asyncio.sleep(0.05)
            self._begin_s = time.monotonic()
            group.create_task(self._report_each_second())
            for shot in shots:
                await self._wait_until(shot.due_s)
                sent = _Sent(shot, time.monotonic())
                self._unanswered.add(sent)
                self._waiting.put_nowait(sent)
                is_connecting = len(self._connections) - self._open
                if self._waiting.qsize() > self._idle + is_connecting:
                    self._connect(group)
            await self._wait_until(self._spec.length_s)
            end_s = time.monotonic() + GRACE_S
            while self._unanswered and time.monotonic() < end_s:
                await asyncio.sleep(0.02)
            self._is_over = True
            for connection in self._connections:
                connection.cancel()
        while not self._waiting.empty():
            self._enter(self._waiting.get_nowait(), UNREACHED)
        for sent in tuple(self._unanswered):
            self._enter(sent, TIMED_OUT)
        self._report(self._rows, True)

    async def _wait_until(self, due_s: float) -> None:
        await asyncio.sleep(max(self._begin_s + due_s - time.monotonic(), 0.0))

    async def _report_each_second(self) -> None:
        while not self._is_over:
            await asyncio.sleep(1.0)
            rows, self._rows = self._rows, []
            await asyncio.to_thread(self._report, rows, False)  # a full pipe delays no query

    def _connect(self, group: asyncio.TaskGroup) -> None:
        if len(self._connections) < _MOST_CONNECTIONS:
            task = group.create_task(self._keep_connection())
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _keep_connection(self) -> None:
        """Send what waits, a query at a time; connect anew when the connection ends."""
        parts = urlsplit(self._spec.url)
        unsent: _Sent | None = None
        while True:
            try:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            except OSError:
                if unsent is not None:
                    self._waiting.put_nowait(unsent)
                if not self._open and not self._waiting.empty():  # no other connection will send it
                    self._enter(self._waiting.get_nowait(), UNREACHED)
                return
            made: Any = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            self._open += 1
            try:
                unsent = await self._send_on(reader, writer, unsent)
            finally:
                self._open -= 1
                writer.close()

    async def _send_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: _Sent | None
    ) -> _Sent | None:
        """Send ``sent`` and what waits until the connection ends; a query that came too late."""
        while True:
            if sent is None:
                self._idle += 1
                try:
                    sent = await self._waiting.get()
                finally:
                    self._idle -= 1
            if reader.at_eof() or writer.is_closing():  # it was closed while it was idle
                return sent
            writer.write(self._requests[sent.shot.kind][sent.shot.image])
            reply = await read_reply(reader)
            self._enter(sent, reply)
            if reply.is_last:
                return None
            sent = None

    def _enter(self, sent: _Sent, reply: Reply) -> None:
        self._unanswered.discard(sent)
        shot = sent.shot
        latency_ms = (time.monotonic() - sent.at_s) * 1e3
        lag_ms = (sent.at_s - self._begin_s - shot.due_s) * 1e3
        kind = self._spec.kinds[shot.kind]
        acceptable = kind.labels[shot.image] if kind.labels else []
        self._rows.append(row_of(shot, reply, latency_ms, lag_ms, acceptable))


def row_of(
    shot: ScheduledQuery, reply: Reply, latency_ms: float, lag_ms: float, acceptable: Sequence[int]
) -> Row:
    """Make the row of a reply.

    Args:
        reply: what came; a body that cannot be read counts as no reply, and as "unreadable".
        lag_ms: from when it was due until it was sent.
        acceptable: classes that are right; empty if that is not known.
    """
    row = Row(shot.kind, shot.due_s, reply.status, latency_ms, lag_ms, lost=reply.lost)
    try:
        document = json.loads(reply.body) if reply.body else {}
        if reply.status != 200:
            return row._replace(error=str(document.get("error", "")))
        said = document["parameters"]
        _, found, _ = read_class(document["outputs"][0]["data"][0])
        return row._replace(
            observed_ms=float(said["observed_latency_ms"]),
            variant=str(said["variant"]),
            accuracy=float(said["accuracy"]),
            is_right=found in acceptable if acceptable else None,
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return row if reply.status != 200 else row._replace(status=0, lost="unreadable")


def prepare_requests(spec: LoadSpec) -> list[list[bytes]]:
    """The bytes of each kind's request with each of its images."""
    host = urlsplit(spec.url).netloc
    requests = []
    for kind in spec.kinds:
        images: NDArray[Any] = np.load(kind.images, allow_pickle=False)
        slo = SLO(**kind.limits)  # type: ignore[arg-type]  # the limits are floats
        classes = {kind.output_name: 1}
        queries = (
            encode_infer(kind.task, {kind.input_name: image[None]}, slo, classes=classes)
            for image in images
        )
        requests.append([query.to_bytes(host) for query in queries])
    return requests


def main(arguments: Sequence[str]) -> int:
    """Carry out the spec in the file named; see the module."""
    spec = LoadSpec.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    requests = prepare_requests(spec)
    begun_s = time.process_time()

    def report(rows: list[Row], is_last: bool) -> None:
        cpu_s = round(time.process_time() - begun_s, 3)
        line = {"rows": rows, "is_last": is_last, "cpu_s": cpu_s}
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    async def run() -> None:
        await Load(spec, requests, report).run()

    code = 0
    try:
        asyncio.run(run())
    except* (KeyboardInterrupt, BrokenPipeError):
        code = 130
    return code


class LoadProcess:
    """The process that sends the load. Use as a context manager: leaving it ends the process.

    Args:
        folder: where the spec is written; must exist.

    Attributes:
        cpu_s: processor time the client has taken so far, seconds, its start left out.
    """

    def __init__(self, spec: LoadSpec, folder: Path) -> None:
        path = folder / "load.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        self._command = [sys.executable, "-P", "-m", "modelless.controller.demo.load", str(path)]
        self._complaints = folder / "load.err"
        self.cpu_s = 0.0

    def __enter__(self) -> LoadProcess:
        with self._complaints.open("w") as complaints:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo, which ends this one in its turn
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.communicate()

    def batches(self) -> Iterator[list[Row]]:
        """Report the queries that have ended, second by second, until all have.

        Raises:
            EnvironmentUnfitError: the process died.
        """
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        for line in self._process.stdout:
            said = json.loads(line)
            self.cpu_s = float(said["cpu_s"])
            yield [Row(*row) for row in said["rows"]]
            if said["is_last"]:
                return
        words = self._complaints.read_text(encoding="utf-8", errors="replace").strip()
        last = (words.splitlines() or ["without a word"])[-1]
        raise EnvironmentUnfitError(f"the client has died: {last}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
