"""Finished runs on disk: a comparison that is started again goes on where it ended."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from modelless.common.files import write_whole
from modelless.controller.sim.compare.jobs import BOUND, Figures, Job
from modelless.controller.sim.compare.sources import (
    Sources,
    arrival_modules,
    data_files,
    policy_modules,
)

_SIMULATOR = (
    "modelless.controller.sim.run",
    "modelless.policies.batching.earliest_deadline_first",  # whoever names no other gets it
)
_BOUND = "modelless.controller.sim.bound.clairvoyant"
_MOST_LETTERS = 40
"""Of a contender's name in a file's: unambiguous is the key behind it."""


class KeptRuns:
    """Figures of runs in a folder, one JSON file each, by all that they depend on.

    Args:
        folder: made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = Sources()
        self._modules: dict[str, set[str]] = {}

    def read(self, job: Job) -> Figures | None:
        """The job's figures, if they were kept and nothing they depend on has changed."""
        try:
            told = json.loads(self._path(job).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return told if isinstance(told, dict) else None

    def write(self, job: Job, figures: Figures) -> None:
        """Keep a job's figures; whole or not at all."""
        write_whole(self._path(job), json.dumps(figures).encode(), mode=0o644)

    def _path(self, job: Job) -> Path:
        document = job.file.world.model_dump(mode="json", exclude={"seed", "description"})
        del document["limits"]["policy_s"]  # it decides whether there are figures, and not which
        code = {*_SIMULATOR, *arrival_modules(document["queries"])}
        if job.contender != BOUND:
            code |= self._policy_modules(document["policies"])
        else:  # nobody decides in it
            code.add(_BOUND)
            del document["policies"]
        said = json.dumps(document, sort_keys=True)
        sources = self._sources.digest(code, data_files(document, job.file.folder))
        key = hashlib.sha256(f"{said}\0{sources}".encode()).hexdigest()[:16]
        plain = "".join(each if each.isalnum() or each in "-._" else "_" for each in job.contender)
        return self._folder / f"{plain[:_MOST_LETTERS]}-{key}-{job.seed}.json"

    def _policy_modules(self, policies: Any) -> set[str]:
        """As ``policy_modules``, which asks every installed package; once for each suite."""
        said = json.dumps(policies, sort_keys=True)
        if said not in self._modules:
            self._modules[said] = policy_modules(policies)
        return self._modules[said]
