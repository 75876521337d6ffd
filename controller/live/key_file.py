"""The file of a home's keys, ``keys.json``, for this user alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from modelless.common.errors import StoreError
from modelless.common.files import held, write_whole
from modelless.controller.api.keys import Key, KeyRing, keys_document, read_keys_document

_T = TypeVar("_T")

KEYS: Final = "keys.json"


def read_keys(home: Path) -> KeyRing:
    """Return the keys of a home.

    Raises:
        StoreError: the file is there and cannot be read: nobody may take that for no keys.
    """
    path = home / KEYS
    try:
        return KeyRing(read_keys_document(json.loads(path.read_bytes())))
    except FileNotFoundError:
        return KeyRing()
    except (OSError, ValueError) as error:
        raise StoreError(f"the keys in {path} cannot be read: {error}; restore the file") from None


def change_keys(home: Path, change: Callable[[KeyRing], tuple[Iterable[Key], _T]]) -> _T:
    """Replace the keys by what ``change`` returns of them; returns what else it returns.

    Raises:
        EnvironmentUnfitError: another process changes them.
        StoreError: the file cannot be read or written.
    """
    path = home / KEYS
    with held(home / "keys.lock", "changing keys"):
        keys, result = change(read_keys(home))
        try:
            write_whole(path, json.dumps(keys_document(keys)).encode(), mode=0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}") from None
    return result


class KeyFollower:
    """The keys of a home, read anew when the file changes.

    Raises:
        StoreError: the file cannot be read.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._mark = self._look()
        self.ring = read_keys(home)

    def follow(self) -> None:
        """Read the keys if they changed; StoreError, and the earlier keys stay, if that fails."""
        mark = self._look()
        if mark is None and self._mark is not None:
            raise StoreError(f"{self._home / KEYS} is gone; the keys that it held still count")
        if mark != self._mark:
            self.ring = read_keys(self._home)
            self._mark = mark

    def _look(self) -> tuple[int, int] | None:
        try:
            found = (self._home / KEYS).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns
