"""Unit tests cannot start Ray and cannot sleep: time is an argument, and so is whatever waits.

Those of what is in the store run on SQLite and on a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NoReturn

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from modelless.variants.store import Store, open_store

_NO_RAY = "unit tests start no Ray: test the core, or move this test to tests/live"
_NO_SLEEP = "unit tests do not sleep: hand in the clock or the sleep function, as the house does"
_SLEEP = time.sleep
_ASYNC_SLEEP = asyncio.sleep


def _start_ray(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError(_NO_RAY)


class Sleepless:
    """In the place of the two sleeps. It counts, too: a task that nobody awaits fails unheard."""

    def __init__(self) -> None:
        self.count = 0

    def _refuse(self) -> NoReturn:
        self.count += 1
        raise AssertionError(_NO_SLEEP)

    def sleep(self, seconds: float) -> None:
        # The standard library's own waiting (subprocess.wait polls) is not a test's doing.
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if caller not in sys.stdlib_module_names:
            self._refuse()
        _SLEEP(seconds)

    async def async_sleep(self, delay: float, result: object = None) -> object:
        if delay > 0:
            self._refuse()
        return await _ASYNC_SLEEP(delay, result)


class _DisarmedRay:
    """Lets a unit test import Ray, if it must, but takes its starter away until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name) if name == "ray" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_disarm(module: ModuleType) -> None:
            execute(module)
            self.monkeypatch.setattr(module, "init", _start_ray)

        spec.loader.exec_module = execute_and_disarm  # type: ignore[method-assign]
        return spec


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", _start_ray)
    else:
        monkeypatch.setattr(sys, "meta_path", [_DisarmedRay(monkeypatch), *sys.meta_path])


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleepless]:
    sleepless = Sleepless()
    monkeypatch.setattr(time, "sleep", sleepless.sleep)
    monkeypatch.setattr(asyncio, "sleep", sleepless.async_sleep)
    yield sleepless
    assert not sleepless.count, _NO_SLEEP


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines compile is kept for the session, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def current_template(postgresql: str) -> str:
    """A database to copy, which takes a tenth of the time of migrating an empty one."""
    url = make_url(postgresql)
    with _connected(postgresql) as connection:
        connection.execute(text("CREATE DATABASE modelless_current"))
    open_store(url.set(database="modelless_current")).close()
    return "modelless_current"


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    server = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        yield connection


@contextmanager
def _database(request: pytest.FixtureRequest, template: str) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('tmp_path')}/{template}.db"
        return
    if template == "current":
        template = request.getfixturevalue("current_template")
    server = request.getfixturevalue("postgresql")
    name = f"modelless_{uuid.uuid4().hex[:12]}"
    with _connected(server) as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database that is empty, of each kind."""
    with _database(request, "template1") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store without rows in a database of each kind."""
    with _database(request, "current") as url, open_store(url) as store:
        yield store


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which no file of Python's reaches the disk."""

    def fail(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr("os.fsync", fail)
