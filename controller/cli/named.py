"""What a command line names: the task and the model, registered already or new; and by whom."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from modelless.common.errors import InvalidInputError
from modelless.variants.vocabulary import Model, Task

if TYPE_CHECKING:
    from modelless.variants.registry.registry import Registry


def described_task(path: Path, name: str | None) -> Task:
    """The task that a file describes.

    Args:
        path: the file.
        name: what the command line calls it; None where it says nothing.

    Raises:
        InvalidInputError: see ``read_task``; or the file is about another task.
    """
    from modelless.controller.cli.task_files import read_task

    found = read_task(path)
    if name not in (None, found.name):
        raise InvalidInputError.of("--task", name, f"{found.name!r}, as the task file says")
    return found


def known_model(registry: Registry, task: Task, name: str) -> Model | None:
    """The model as it is registered; None where it, or its task, is new."""
    if all(each.name != task.name for each in registry.tasks()):
        return None
    return next((model for model in registry.models(task.name) if model.name == name), None)


def check_resolution(side_px: int | None) -> None:
    """Refuse a side that no picture has; None is none stated."""
    if side_px is not None and not 1 <= side_px <= 65_536:
        raise InvalidInputError.of("resolution", side_px, "1 to 65536 (pixels)")


def who() -> str:
    """Who gives the command, as the operating system knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unknown"
