"""Content-addressed files, and what is done to them behind the store's back."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from modelless.common.errors import IntegrityError, InvalidInputError, StoreError
from modelless.variants import artifacts
from modelless.variants.artifacts import ArtifactStore, read_verified

DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def rewrite(path: Path, data: bytes) -> None:
    """Replace a read-only file's content."""
    path.chmod(0o644)
    path.write_bytes(data)


def test_round_trip(store: ArtifactStore) -> None:
    assert store.put(DATA) == SHA256
    assert store.fetch(SHA256).read_bytes() == DATA
    assert store.read(SHA256) == DATA


def test_putting_again_writes_nothing(store: ArtifactStore) -> None:
    path = store.fetch(store.put(DATA))
    before = path.stat()
    store.put(DATA)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "damaged", [DATA[:-1], b"", DATA[:100] + b"\0" + DATA[101:], b"another model"]
)
def test_damage_is_found_and_mended(store: ArtifactStore, damaged: bytes) -> None:
    path = store.fetch(store.put(DATA))
    rewrite(path, damaged)
    for look in (store.fetch, store.read):
        with pytest.raises(IntegrityError, match="modelless zoo add") as caught:
            look(SHA256)
        assert str(path) in str(caught.value)
    store.put(DATA)
    assert store.read(SHA256) == DATA


def test_truncation_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA[:-7])
    with pytest.raises(IntegrityError, match=f"truncated: it has {len(DATA) - 7} bytes"):
        read_verified(tmp_path / "a", SHA256, size_bytes=len(DATA))
    (tmp_path / "a").write_bytes(DATA + b"!")
    with pytest.raises(IntegrityError, match="swapped"):
        read_verified(tmp_path / "a", SHA256, size_bytes=len(DATA))


def test_a_missing_artifact(store: ArtifactStore) -> None:
    with pytest.raises(IntegrityError, match=r"No such file.*modelless zoo add"):
        store.fetch(SHA256)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_no_regular_file_hangs_nothing(store: ArtifactStore, kind: str) -> None:
    path = store.fetch(store.put(DATA))
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(IntegrityError, match="not a regular file"):
        store.fetch(SHA256)


@pytest.mark.parametrize("name", ["", "abc", SHA256.upper(), "../" + SHA256[3:], SHA256 + "\n"])
def test_only_hashes_are_names(store: ArtifactStore, name: str) -> None:
    for look in (store.fetch, store.read, store.locate):
        with pytest.raises(InvalidInputError, match="64 digits"):
            look(name)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    small = ArtifactStore(tmp_path, max_bytes=len(DATA) - 1)
    for data in (DATA, b""):
        with pytest.raises(InvalidInputError, match=f"1 to {len(DATA) - 1}"):
            small.put(data)
    ArtifactStore(tmp_path).put(DATA)
    with pytest.raises(IntegrityError, match="too large"):
        small.fetch(SHA256)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="cannot be written"):
        ArtifactStore(tmp_path / "artifacts").put(DATA)


def test_a_full_disk_leaves_nothing_half_written(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.put(DATA)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_ctrl_c_leaves_nothing_half_written(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put(DATA)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_local_file_is_located_unread(store: ArtifactStore) -> None:
    path = store.fetch(store.put(DATA))
    rewrite(path, b"damaged")
    assert store.locate(SHA256) == path, "whoever loads it finds out"
    with pytest.raises(IntegrityError, match="not the file"):
        read_verified(store.locate(SHA256), SHA256)
    with pytest.raises(InvalidInputError, match="sha256"):
        store.locate("../../etc/passwd")
