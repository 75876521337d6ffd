"""The demo's open-loop client for benchmarks: random images, and what became of the queries."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.demo.load import GRACE_S as GRACE_S
from modelless.controller.demo.load import KindSpec, LoadProcess, LoadSpec, StepSpec, schedule
from modelless.controller.demo.query_log import Row

TASK = "fashion-mnist"
IMAGES = 16
SIDES_PX = {"imagenet": (224, 224, 3), TASK: (28, 28)}


def spec_of(
    url: str,
    folder: Path,
    scope: str,
    kinds: Iterable[tuple[float, Mapping[str, float]]],
    steps: Sequence[tuple[float, float]],
    seed: int = 0,
) -> LoadSpec:
    """What the client is to send.

    Args:
        scope: a task, or a variant of it.
        kinds: (weight, limits) of each kind of client; its deadline is ``latency_ms``.
        steps: (seconds, queries a second).
        seed: of the times at which they are due.
    """
    images = folder / "images.npy"
    shape = (IMAGES, *SIDES_PX[scope.partition("/")[0]])
    np.save(images, np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    return LoadSpec(
        url=url,
        kinds=[
            KindSpec(
                name=str(number),
                task=scope,
                limits=dict(limits),
                weight=weight,
                deadline_ms=limits["latency_ms"],
                images=images,
                labels=[],
                input_name="image",
                output_name="probabilities",
            )
            for number, (weight, limits) in enumerate(kinds)
        ],
        steps=[StepSpec(seconds=seconds, per_s=per_s) for seconds, per_s in steps],
        seed=seed,
    )


def send(spec: LoadSpec, folder: Path) -> list[Row]:
    """Send everything, from a process of its own; what became of each query."""
    with LoadProcess(spec, folder) as load:
        return [row for rows in load.batches() for row in rows]


class OpenLoop:
    """Queries of one kind, sent when they are due, whatever becomes of those before them.

    Args:
        url, folder: of the server; where to put its files.
        steps: (seconds, queries a second).

    Attributes:
        sent: how many queries there are, by the schedule.
        began_s: when it began, of ``time.monotonic``.
    """

    def __init__(
        self, url: str, folder: Path, steps: list[tuple[float, float]], latency_ms: float, seed: int
    ) -> None:
        limits = {"latency_ms": latency_ms, "min_accuracy": 90.0}
        spec = spec_of(url, folder, TASK, [(1.0, limits)], steps, seed)
        self.sent = len(schedule(spec, [IMAGES]))
        self.rows: list[Row] = []
        self.began_s = 0.0
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(spec, folder), daemon=True)
        self._reader.start()

    def _read(self, spec: LoadSpec, folder: Path) -> None:
        with LoadProcess(spec, folder) as load:
            for rows in load.batches():
                if not self._begun.is_set():  # it reports a second after its beginning
                    self.began_s = time.monotonic() - 1.0
                    self._begun.set()
                self.rows += rows

    def wait_until(self, due_s: float) -> None:
        """Wait until that many seconds after its beginning."""
        if not self._begun.wait(30.0):
            raise SystemExit("the load did not begin")
        time.sleep(max(self.began_s + due_s - time.monotonic(), 0.0))

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def finish(self) -> list[Row]:
        """Wait for its end; every query's row, and there is one of each.

        Raises:
            SystemExit: its log does not have every query.
        """
        self._reader.join()
        if len(self.rows) != self.sent:
            raise SystemExit(f"{self.sent} queries were due, {len(self.rows)} are in the log")
        return self.rows


def is_in_time(row: Row, latency_ms: float) -> bool:
    return row.status == 200 and row.latency_ms <= latency_ms


def outcomes(rows: list[Row], latency_ms: float) -> dict[str, Any]:
    """Where the queries went: each is counted once.

    ``sent`` = ``in_time`` + ``late`` + those ``refused``, by HTTP status, + those ``lost``, by
    kind: *broken* (the connection broke under it), *timed out* (no reply until ``GRACE_S`` after
    the end), *unreached* (no connection was accepted), *unreadable* (a reply that says nothing).
    """
    answered = [row for row in rows if row.status == 200]
    in_time = sum(is_in_time(row, latency_ms) for row in answered)
    refused = Counter(str(row.status) for row in rows if row.status not in (0, 200))
    lost = Counter(row.lost for row in rows if row.status == 0)
    assert len(rows) == len(answered) + refused.total() + lost.total()
    return {
        "sent": len(rows),
        "in_time": in_time,
        "late": len(answered) - in_time,
        "refused": dict(refused),
        "lost": dict(lost),
    }
