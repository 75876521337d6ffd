"""The store as a whole: into another database, into one file, and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from modelless.common.errors import InvalidInputError
from modelless.common.files import expanded
from modelless.controller.history.audit import note_act, user_name
from modelless.controller.history.feedback import FEEDBACK
from modelless.controller.live.cluster.running import read_state
from modelless.controller.live.control.last_run import LAST_RUN
from modelless.controller.live.control.pins import PINS
from modelless.controller.live.control.totals import SPENDING
from modelless.controller.live.key_file import KEYS
from modelless.controller.usecases.home import AnyPath, Home, home_folder, open_home
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.variants.store import open_store
from modelless.variants.store.copying import copy_store, restore_backup, write_backup

STATE: Final = (KEYS, PINS, FEEDBACK, SPENDING, LAST_RUN)
"""The files of a home that a backup has besides the store."""


def migrate_store(source: str, target: str) -> dict[str, int]:
    """Copy all rows of a store into an empty one, and compare what arrived.

    A cluster may go on working with the source; what it writes later is not in the copy. Artifacts
    stay where they are. Raises as ``copy_store`` and ``open_store`` do, and InvalidInputError if
    there is no such source, or the target is in memory.

    Args:
        source, target: ``sqlite:///...`` or ``postgresql+psycopg://...``.

    Returns:
        The number of rows by table.
    """
    if source == target:
        raise InvalidInputError.of("TARGET", target, "another store than SOURCE")
    _check_file("SOURCE", source)
    _check_file("TARGET", target, may_be_new=True)
    with open_store(source) as old, open_store(target) as new:
        return copy_store(old, new)


def backup_store(
    file: AnyPath, *, home: Home = None, on_progress: Progress = ignore
) -> dict[str, int]:
    """Write the store as it is at one moment, its artifacts and ``STATE`` into one file.

    Raises as ``write_backup`` does, and InvalidInputError if there is no store.

    Returns:
        The number of rows by table.
    """
    path = expanded("backup file", Path(file))
    folder = home_folder(home)
    if url := os.environ.get("MODELLESS_STORE_URL"):
        _check_file("store URL", url)
    elif not (folder / "store.db").exists():
        raise InvalidInputError.of(
            "home", str(folder), "a home with a store", "--home or --store names another."
        )
    with open_home(home) as registry:
        told = _telling(on_progress, "artifacts written")
        files = {name: folder / name for name in STATE}
        return write_backup(registry.store, registry.artifacts, path, told, files)


def restore_store(
    file: AnyPath, *, replace: bool = False, home: Home = None, on_progress: Progress = ignore
) -> tuple[dict[str, int], bool]:
    """Bring back what a backup has.

    Raises as ``restore_backup`` does, and InvalidInputError if the store is in memory.

    While modelless runs from the home, only rows and artifacts come back: it keeps ``STATE`` in
    memory, and would write over what was restored.

    Args:
        replace: remove what the store has, and write over the files; else there must be none.

    Returns:
        The number of rows by table; and whether ``STATE`` came back.
    """
    path, folder = expanded("backup file", Path(file)), home_folder(home)
    is_down = read_state(folder) is None
    files = {name: folder / name for name in STATE} if is_down else {}
    if url := os.environ.get("MODELLESS_STORE_URL"):
        _check_file("store URL", url, may_be_new=True)
    with open_home(home) as registry:
        told = _telling(on_progress, "artifacts restored")
        note_act(folder, "store-restore", user_name(), file=str(path), replace=replace)
        rows = restore_backup(
            registry.store, registry.artifacts, path, told, files, replace=replace
        )
    return rows, is_down


def _check_file(field: str, url: str, *, may_be_new: bool = False) -> None:
    """Raise InvalidInputError for SQLite in memory, and for its file if it is not there.

    Args:
        may_be_new: the file may be missing.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return
    except (ArgumentError, ValueError):  # ``open_store`` says what is wrong with it
        return
    path = (parsed.database or "").removeprefix("file:")
    if path in ("", ":memory:") or parsed.query.get("mode") == "memory":
        raise InvalidInputError.of(
            field, url, "a store that stays, such as sqlite:////path/to/store.db"
        )
    if not may_be_new and not Path(path).exists():
        raise InvalidInputError.of(field, url, "a store that is there")


def _telling(on_progress: Progress, activity: str) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(Step(activity, done, total))
