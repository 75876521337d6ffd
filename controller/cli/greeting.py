"""What to type next, once it is up."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from modelless.controller.config import Settings
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import Task

_SMALL = 64  # elements that a request on one line may hold
_FREE_AXIS = 2


def greeting(
    home: Path, settings: Settings, url: str, not_served: Container[str] = ()
) -> Iterator[str]:
    """The URL, and for each task that is served a command that works."""
    with closing(open_registry(home)) as registry:
        tasks = [
            task
            for task in registry.tasks()
            if task.name not in not_served and (not settings.tasks or task.name in settings.tasks)
        ]
    tasks.sort(key=lambda task: _tiny_request(task) is None)
    yield f"ready: {url}"
    for task in tasks:
        yield curl_line(url, task)
    for task in tasks[:1]:
        yield f"modelless infer PHOTO --task {task.name} --latency-ms 40"


def curl_line(url: str, task: Task) -> str:
    """A ``curl`` line that asks for an answer; for its signature where the input is a long one."""
    where = f"{url}/v2/models/{task.name}"
    request = _tiny_request(task)
    if request is None:
        return f"curl -s {where}"
    return f"curl -s {where}/infer -d '{json.dumps(request, separators=(',', ':'))}'"


def _tiny_request(task: Task) -> Mapping[str, Any] | None:
    inputs = []
    for spec in task.inputs:
        shape = [1, *(_FREE_AXIS if size == -1 else size for size in spec.shape[1:])]
        count = math.prod(shape)
        if count > _SMALL or spec.datatype in ("BOOL", "BYTES"):
            return None
        inputs.append(
            {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": [0] * count}
        )
    wanted = [
        {"name": spec.name, "parameters": {"classification": 3}}
        for spec in task.outputs
        if len(spec.shape) == 2
    ]
    request: dict[str, Any] = {"inputs": inputs, "parameters": {"latency_ms": 1000}}
    return {**request, "outputs": wanted} if wanted else request
