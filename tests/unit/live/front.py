"""A gateway's HTTP server in this process: the real server, frontend and dispatcher.

Only the device is made up: it answers every batch at once. Time is real.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modelless.controller.api.keys import KeyRing
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_reply import Reply, render_json, render_text
from modelless.controller.config import Settings
from modelless.controller.control.served_versions import Service
from modelless.controller.dispatch.messages import WorkerReport, WorkerReported
from modelless.controller.dispatch.trials import TrialArms
from modelless.controller.live.front.access import Access
from modelless.controller.live.front.bodies import BodyBudget
from modelless.controller.live.front.console.pages import VariantRow
from modelless.controller.live.front.feedback import FeedbackDesk, ReceiptTags
from modelless.controller.live.front.frontend import V2Frontend
from modelless.controller.live.front.gateway import rows_of
from modelless.controller.live.front.http_server import open_socket
from modelless.controller.live.front.interfaces import RunBatch
from modelless.controller.live.knowledge import Knowledge
from modelless.controller.live.recordings import open_dispatcher
from tests.unit.cli.tiny import TASK

BATCH_STATE = {
    "id": "5e0c9a1b2c3d4e5f",
    "state": "running",
    "task": "pixels",
    "input": "a.npy",
    "output": "b",
    "rows": None,
    "rows_done": 0,
    "error": None,
    "served_by": {},
}


class Answer(NamedTuple):
    """An HTTP reply."""

    status: int
    headers: Mapping[str, str]
    document: Any


class Front:
    """A running server.

    Attributes:
        frontend: of the server.
        path: of its socket.
        ring: the keys that count.
        tags: of its receipts.
        statistics: as the control loop tells them.
        access: decides who may do what.
        ran: batches that the device was given.
        pins: scopes that were pinned or unpinned, and by whom.
        batches: what was asked of offline runs.
        answers_at_once: whether the device does; else ``finish`` ends the batches.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        path: Path,
        limits: Limits,
        budget_bytes: int,
        settings: Settings,
        folder: Path,
    ) -> None:
        self.ring = KeyRing()
        self.tags = ReceiptTags()
        self.access = Access(settings, lambda: self.ring)
        self.statistics: dict[str, dict[str, list[float]]] = {}
        self.path = path
        self.ran: list[RunBatch] = []
        self.answers_at_once = True
        self.pins: list[tuple[str, bool, str]] = []
        self.batches: list[tuple[object, ...]] = []
        dispatcher, _ = open_dispatcher("g", Settings(), knowledge)
        arms = TrialArms(0, "g", dispatcher.instances.is_served)
        self._knowledge = knowledge
        self.cluster = self  # answers for it, too
        self.frontend = V2Frontend(
            knowledge.catalog,
            knowledge.servable(),
            dispatcher,
            self,
            time.monotonic,
            settings,
            "g",
            FeedbackDesk("g", arms, knowledge.catalog.tasks, self.tags),
            self.access,
            folder,
            limits,
            BodyBudget(budget_bytes),
        )
        report = WorkerReport("g", "cpu-1", tuple(knowledge.catalog.versions))
        self.frontend.decide(WorkerReported(report))

    def scrape(self, accept: str, respond: Callable[[Reply], None]) -> None:
        respond(render_text(b"modelless_up 1\n", accept))

    def batch(self, respond: Callable[[Reply], None], act: str, *arguments: object) -> None:
        self.batches.append((act, *arguments))
        respond(render_json(BATCH_STATE))

    def pin(self, scope: str, is_pinned: bool, by: str, respond: Callable[[Reply], None]) -> None:
        self.pins.append((scope, is_pinned, by))
        respond(render_json({"name": scope, "pinned": is_pinned}))

    def wake_at(self, at_s: float) -> None:
        """Nobody waits for a time here."""

    def status(self) -> Mapping[str, Any]:
        return {"members": [], "statistics": self.statistics}

    def check_health(self) -> None:
        """All is well."""

    def variant_rows(self) -> list[VariantRow]:
        return rows_of(self._knowledge, Service())

    def run_batch(self, batch: RunBatch) -> None:
        self.ran.append(batch)
        if self.answers_at_once:
            asyncio.get_running_loop().call_soon(self.finish, batch)

    def receipt_id(self, query_id: int) -> str:
        """The id of a query's receipt, where there are no keys."""
        return f"g-{query_id}.{self.tags.tag(query_id, '')}"

    def finish(self, batch: RunBatch) -> None:
        """The device has run the batch."""
        rows = [len(tensors["image"]) for tensors in batch.inputs]
        outputs = [{"scores": np.full((count, 4), 0.25, np.float32)} for count in rows]
        self.frontend.on_batch_done(batch.batch_id, 0.001, outputs, lost=False)

    @property
    def is_reading(self) -> bool:
        """Whether a request is read in the other thread, or runs after that."""
        return bool(self.frontend._read_aside)

    @property
    def has_open(self) -> bool:
        """Whether a query waits or runs."""
        return bool(self.frontend._open)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer to one request on a connection of its own."""
        sent = {"host": "localhost", "content-length": len(body), **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {each}" for name, each in sent.items())]
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            status = int(head.split()[1])
            told = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            text = await reader.readexactly(int(told.get("content-length", "0")))
        finally:
            writer.close()
        length = int(told.get("inference-header-content-length", len(text)))
        return Answer(status, told, _read(told, text[:length]))


def _read(headers: Mapping[str, str], body: bytes) -> Any:
    """Text as it is, the body of any other answer as JSON; None if it is empty."""
    if headers.get("content-type", "").startswith("text/"):
        return body.decode()
    return json.loads(body) if body else None


@asynccontextmanager
async def serving(
    knowledge: Knowledge,
    folder: Path,
    limits: Limits | None = None,
    budget_bytes: int = 1 << 30,
    *,
    settings: Settings | None = None,
) -> AsyncIterator[Front]:
    """A server on a socket in the folder."""
    front = Front(
        knowledge,
        folder / "socket",
        limits or Limits(),
        budget_bytes,
        settings or Settings(),
        folder,
    )
    server, connections = await open_socket(front.frontend, str(front.path), 64)
    try:
        yield front
    finally:
        server.close()
        for connection in tuple(connections):
            connection.close()
        front.frontend.close()


def query(shape: tuple[int, ...] = (1, 2, 2, 3), **parameters: Any) -> bytes:
    """A query of the task, all of it JSON."""
    image = np.zeros(shape, np.uint8)
    given = {"name": "image", "shape": list(shape), "datatype": "UINT8", "data": image.tolist()}
    return json.dumps({"inputs": [given], "parameters": parameters}).encode()


async def until(condition: Callable[[], object]) -> None:
    """Let everything else run until it is so."""
    end_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end_s, "not so after 30 s"
        await asyncio.sleep(0)


INFER = f"/v2/models/{TASK.name}/infer"
