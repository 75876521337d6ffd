"""Compiled engines on disk: what is a hit, what is thrown away, what is refused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey

KEY = EngineKey("0" * 64, "A Card", "9.0", "tensorrt-10.13.0", "fp32", "batch 1 to 32")


def key(number: int) -> EngineKey:
    """One of several keys."""
    return dataclasses.replace(KEY, artifact_sha256=f"{number:064}")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines")
    assert cache.read(KEY) is None
    cache.write(KEY, b"a plan")
    cache.write(KEY, b"a better plan")
    assert EngineCache(tmp_path / "engines").read(KEY) == b"a better plan"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(EngineKey)])
def test_every_part_of_the_key_counts(tmp_path: Path, field: str) -> None:
    cache = EngineCache(tmp_path / "engines")
    cache.write(KEY, b"a plan")
    assert cache.read(dataclasses.replace(KEY, **{field: "another"})) is None


@pytest.mark.parametrize("damaged", [b"", b"short", b"\0" * 40])
def test_a_damaged_plan_is_none(tmp_path: Path, damaged: bytes) -> None:
    cache = EngineCache(tmp_path / "engines")
    cache.write(KEY, b"a plan")
    plan = cache.folder(KEY) / "plan"
    plan.chmod(0o600)
    plan.write_bytes(damaged)
    assert cache.read(KEY) is None


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", max_bytes=250)
    for number in (1, 2):
        cache.write(key(number), b"x" * 68)  # 100 bytes with the digest
        os.utime(cache.folder(key(number)), ns=(number, number))
    assert cache.read(key(1)) is not None  # used: now 2 is the older one
    cache.write(key(3), b"x" * 68)
    assert [cache.read(key(number)) is not None for number in (1, 2, 3)] == [True, False, True]


def test_what_was_just_written_stays_though_it_is_too_large(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", max_bytes=10)
    cache.write(key(1), b"x" * 100)
    cache.write(key(2), b"x" * 100)
    assert cache.read(key(1)) is None
    assert cache.read(key(2)) == b"x" * 100


def test_files_that_a_library_puts_into_a_keys_folder_count(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", max_bytes=50)
    (cache.folder(key(1)) / "part.engine").write_bytes(b"x" * 100)
    cache.trim(key(2))
    assert list((tmp_path / "engines").iterdir()) == []


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines").chmod(0o777)
    with pytest.raises(EnvironmentUnfitError, match="chmod go-w"):
        EngineCache(tmp_path / "engines").read(KEY)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfitError, match="XDG_CACHE_HOME"):
        EngineCache(tmp_path / "file" / "engines").write(KEY, b"a plan")


def test_nobody_else_can_look_in(tmp_path: Path) -> None:
    folder = EngineCache(tmp_path / "engines").folder(KEY)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
