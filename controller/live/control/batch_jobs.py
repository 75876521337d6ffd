"""Offline runs that clients begin over HTTP: each is a ``modelless batch`` in its own process.

A run reads and writes in ``batch.folder`` only; with keys, in its tenant's folder in there, and its
queries bear the key that it was begun with. Its id is that of its output, so the same request goes
on with a run that ended, whatever ended it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import InvalidInputError, NotFoundError, OverloadedError
from modelless.common.files import make_private_folder
from modelless.controller.config import BatchSettings

_MOST_KNOWN: Final = 256
_OPTIONS: Final = ("task", "min_accuracy", "deadline_s", "top", "rows_per_file")
_COMMAND: Final = (sys.executable, "-P", "-m", "modelless.controller.cli")


@dataclass
class _Job:
    asked: Mapping[str, Any]
    tenant: str
    output: Path
    log: Path
    process: subprocess.Popen[bytes]
    is_cancelled: bool = False


class BatchJobs:
    """The offline runs of a cluster.

    Args:
        home: of the cluster.
        settings: where runs may read and write, and how many at a time.
        command: that begins ``modelless``.
    """

    def __init__(
        self, home: Path, settings: BatchSettings, command: Sequence[str] = _COMMAND
    ) -> None:
        self._home, self._settings, self._command = home, settings, command
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.RLock()  # calls come from several threads

    def begin(self, asked: Mapping[str, Any], tenant: str, secret: str) -> dict[str, Any]:
        """Begin a run, or go on with one that ended; return its state.

        Args:
            asked: see ``api.batches.BatchRequest``.
            tenant: of the key; empty where there are no keys.
            secret: of the key.

        Raises:
            NotFoundError: ``batch.folder`` is not set.
            InvalidInputError: a path leads out of the folder, or another run writes there.
            OverloadedError: too many runs are under way.
        """
        with self._lock:
            return self._begin(asked, tenant, secret)

    def _begin(self, asked: Mapping[str, Any], tenant: str, secret: str) -> dict[str, Any]:
        root = self._root(tenant)
        paths = [_inside(root, name, asked[name]) for name in ("input", "output")]
        output = paths[1]
        job_id = hashlib.blake2b(f"{tenant}/{output}".encode(), digest_size=8).hexdigest()
        known = self._jobs.get(job_id)
        running = [job for job in self._jobs.values() if job.process.poll() is None]
        if known in running:
            if known is not None and known.asked != asked:
                allowed = "another folder, as another run writes there"
                raise InvalidInputError.of("output", asked["output"], allowed)
            return self.state(job_id, tenant)
        if len(running) >= self._settings.max_running:
            raise OverloadedError(f"{len(running)} offline runs are under way; try again", 60.0)
        folder = self._home / "run" / "batches"
        make_private_folder(folder)
        words = [f"--{name.removesuffix('_s').replace('_', '-')}={value}{'s' * (name[-2:] == '_s')}"
                 for name in _OPTIONS if (value := asked[name]) is not None]  # fmt: skip
        environment = {key: each for key, each in os.environ.items() if key != "MODELLESS_KEY"}
        environment |= {"MODELLESS_KEY": secret} if secret else {}
        log = folder / f"{job_id}.json"
        with log.open("wb") as told:
            process = subprocess.Popen(
                [*self._command, f"--home={self._home}", "batch", *words, "--json", "--",
                 *map(str, paths)],
                stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.DEVNULL, cwd=folder,
                env=environment,
            )  # fmt: skip
        self._jobs.pop(job_id, None)
        self._jobs[job_id] = _Job(asked, tenant, output, log, process)
        for name in [name for name, job in self._jobs.items() if job.process.poll() is not None]:
            if len(self._jobs) > _MOST_KNOWN:
                del self._jobs[name]
        return self.state(job_id, tenant)

    def state(self, job_id: str, tenant: str) -> dict[str, Any]:
        """Return what has become of a run, as plain JSON.

        Raises:
            NotFoundError: it is unknown, or another tenant's.
        """
        with self._lock:
            job = self._find(job_id, tenant)
            code, found, run = job.process.poll(), _read(job.log), _read(job.output / "_run.json")
        state = "running" if code is None else "cancelled" if job.is_cancelled else "failed"
        if code == 0 or found.get("rows_with_error"):
            state = "done"
        parts = len(list(job.output.glob("part-*.parquet")))
        rows = run.get("rows")
        return {
            "id": job_id,
            "state": state,
            **{name: job.asked[name] for name in ("task", "input", "output")},
            "rows": rows,
            "rows_done": min(parts * run.get("rows_per_file", 0), rows or 0),
            "error": found.get("error") or ("it was killed" if state == "failed" else None),
            "served_by": found.get("served_by", {}),
        }

    def cancel(self, job_id: str, tenant: str) -> dict[str, Any]:
        """End a run; what is written stays. Returns and raises as ``state``."""
        with self._lock:
            job = self._find(job_id, tenant)
            is_running = job.process.poll() is None
            if is_running:
                job.is_cancelled = True
                job.process.terminate()
        if is_running:
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(1.0)
        return self.state(job_id, tenant)

    def close(self) -> None:
        """End all runs."""
        with self._lock:
            for job in self._jobs.values():
                job.process.terminate()

    def _find(self, job_id: str, tenant: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None or job.tenant != tenant:
            raise NotFoundError(
                f"there is no offline run {job_id!r:.40}; the request that began it goes on with it"
            )
        return job

    def _root(self, tenant: str) -> Path:
        if self._settings.folder is None:
            raise NotFoundError(
                "offline runs over HTTP are off: set batch.folder, a folder with their inputs "
                "and outputs; or run 'modelless batch'"
            )
        return Path(self._settings.folder).resolve() / tenant


def _inside(root: Path, field: str, name: str) -> Path:
    path = root if "\0" in name else (root / name).resolve()
    if path == root or not path.is_relative_to(root):
        raise InvalidInputError.of(field, name, "a path in the folder of offline runs, relative")
    return path


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(file.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
