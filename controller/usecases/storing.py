"""The store as a whole: into another database, into one file, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modelless.common.errors import InvalidInputError
from modelless.controller.history.audit import note_act
from modelless.controller.usecases.home import AnyPath, Home, home_folder, open_home, user_name
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.variants.store import open_store
from modelless.variants.store.copying import copy_store, restore_backup, write_backup


def migrate_store(source: str, target: str) -> dict[str, int]:
    """Copy all rows of a store into an empty one, and compare what arrived.

    A cluster may go on working with the source; what it writes later is not in the copy. Artifacts
    stay where they are. Raises as ``copy_store`` and ``open_store`` do.

    Args:
        source, target: ``sqlite:///...`` or ``postgresql+psycopg://...``.

    Returns:
        The number of rows by table.
    """
    if source == target:
        raise InvalidInputError.of("TARGET", target, "another store than SOURCE")
    with open_store(source) as old, open_store(target) as new:
        return copy_store(old, new)


def backup_store(
    file: AnyPath, *, home: Home = None, on_progress: Progress = ignore
) -> dict[str, int]:
    """Write the store as it is at one moment, with its artifacts, into one file.

    Keys are not in it. Raises as ``write_backup`` does.

    Returns:
        The number of rows by table.
    """
    path = Path(file).expanduser()
    with open_home(home) as registry:
        told = _telling(on_progress, "artifacts written")
        return write_backup(registry.store, registry.artifacts, path, told)


def restore_store(
    file: AnyPath, *, replace: bool = False, home: Home = None, on_progress: Progress = ignore
) -> dict[str, int]:
    """Bring back what a backup has. Raises as ``restore_backup`` does.

    Args:
        replace: remove what the store has; else it must have nothing.

    Returns:
        The number of rows by table.
    """
    path = Path(file).expanduser()
    with open_home(home) as registry:
        told = _telling(on_progress, "artifacts restored")
        note_act(home_folder(home), "store-restore", user_name(), file=str(path), replace=replace)
        return restore_backup(registry.store, registry.artifacts, path, told, replace=replace)


def _telling(on_progress: Progress, activity: str) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(Step(activity, done, total))
