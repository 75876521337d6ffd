"""The demo's open-loop client as a process, for the benchmarks that break what it talks to."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from modelless.controller.demo.load import GRACE_S as GRACE_S
from modelless.controller.demo.load_spec import LoadSpec, schedule
from modelless.controller.demo.query_log import Row

TASK = "fashion-mnist"
IMAGES = 16


class OpenLoop:
    """Queries are sent when they are due, whatever becomes of those before them.

    Args:
        url, folder: of the server; where to put its files.
        steps: (seconds, queries a second).
        seed: of the times at which they are due.

    Attributes:
        sent: how many queries there are, by the schedule.
        began_s: when it began, of ``time.monotonic``.
    """

    def __init__(
        self, url: str, folder: Path, steps: list[tuple[float, float]], latency_ms: float, seed: int
    ) -> None:
        images = folder / "images.npy"
        shape = (IMAGES, 28, 28)
        np.save(images, np.random.default_rng(seed).integers(0, 255, shape, np.uint8))
        kind = {
            "name": "query",
            "task": TASK,
            "limits": {"latency_ms": latency_ms, "min_accuracy": 90.0},
            "weight": 1.0,
            "deadline_ms": latency_ms,
            "images": str(images),
            "labels": [],
            "input_name": "image",
            "output_name": "probabilities",
        }
        spec = {
            "url": url,
            "kinds": [kind],
            "steps": [{"seconds": seconds, "per_s": per_s} for seconds, per_s in steps],
            "seed": seed,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        self.sent = len(schedule(LoadSpec.model_validate(spec), [IMAGES]))
        self.rows: list[Row] = []
        self.began_s = 0.0
        self._begun = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "modelless.controller.demo.load", str(folder / "spec.json")],
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not self._begun.is_set():  # it reports a second after its beginning
                self.began_s = time.monotonic() - 1.0
                self._begun.set()
            self.rows += [Row(*row) for row in json.loads(line)["rows"]]

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
            SystemExit: the client has failed, or its log does not have every query.
        """
        if self._process.wait() != 0:
            raise SystemExit("the load has failed")
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
