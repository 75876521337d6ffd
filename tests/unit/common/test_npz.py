"""Archives that nobody vouches for are bounded by what they hold."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from modelless.common.npz import NPZ_ERRORS, read_arrays


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(["x", "yz"])}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    for file in (tmp_path / "a.npz", io.BytesIO((tmp_path / "a.npz").read_bytes())):
        found = read_arrays(file)
        assert found.keys() == arrays.keys()
        assert all((found[name] == arrays[name]).all() for name in arrays)


def test_more_than_is_allowed_is_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000))
    with pytest.raises(ValueError, match=r"bytes unpacked; allowed: up to 8000"):
        read_arrays(tmp_path / "a.npz", most_bytes=8000)


def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as packed:
        packed.writestr("a.npy", header.getvalue() + bytes(64))
    with pytest.raises(ValueError, match=rf"a\.npy says that it is {4 << 40} bytes large"):
        read_arrays(tmp_path / "a.npz")


def test_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(NPZ_ERRORS, match="allow_pickle"):
        read_arrays(tmp_path / "a.npz")
