"""A Ray cluster of several nodes in a process of its own; its nodes can be killed and come back."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .running import own_environment, processes_marked


class Nodes:
    """The cluster that ``ray_nodes.py`` keeps up.

    Attributes:
        address: of its head.
        marker: in the environment of every process of it.
    """

    def __init__(self, process: subprocess.Popen[str], marker: str) -> None:
        self._process = process
        self.marker = marker
        self.address = self._answer()

    def kill(self, site: str) -> None:
        """Have the site's node die, daemons and workers all at once."""
        self._tell(f"kill {site}")

    def join(self, site: str) -> None:
        """Start a node there again."""
        self._tell(f"join {site}")

    def processes(self) -> dict[int, str]:
        """Command by process id."""
        return processes_marked(self.marker)

    def _tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        said = self._process.stdout.readline().strip()
        assert said, self._process.stderr.read()[-4000:]
        return said


@contextmanager
def ray_nodes() -> Iterator[Nodes]:
    """A head, and a node each at the sites ``edge`` and ``core``."""
    marker = f"modelless-test-nodes-{uuid.uuid4().hex[:8]}"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ray_nodes.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(marker),
    )
    try:
        yield Nodes(process, marker)
    finally:
        process.communicate(timeout=60)
        for process_id in processes_marked(marker):
            os.kill(process_id, 9)
