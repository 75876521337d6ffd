"""Calibration data: cut into calls, hashed, read without pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.variants.making.calibration import (
    CalibrationData,
    from_npz,
    read_calibration,
    to_npz,
)

X = np.arange(10, dtype=np.float32).reshape(5, 2)


def test_calls_of_a_batch() -> None:
    data = CalibrationData.of({"x": X, "y": X[:, 0]}, 2)
    assert [feed["x"].shape for feed in data.feeds] == [(2, 2), (2, 2), (1, 2)]
    assert data.feeds[1]["y"].tolist() == [4.0, 6.0]


@pytest.mark.parametrize("arrays", [{}, {"x": X[:0]}, {"x": X, "y": X[:3]}, {"x": np.array(1.0)}])
def test_uneven_or_no_items_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(InvalidInputError, match="calibration data: got"):
        CalibrationData.of(arrays)


def test_the_hash_is_of_names_types_shapes_values_and_calls() -> None:
    variants = [
        CalibrationData.of({"x": X}),
        CalibrationData.of({"y": X}),
        CalibrationData.of({"x": X.astype(np.float64)}),
        CalibrationData.of({"x": X.reshape(5, 1, 2)}),
        CalibrationData.of({"x": X + 1}),
        CalibrationData.of({"x": X}, 1),
        CalibrationData(),
    ]
    assert len({data.sha256 for data in variants}) == len(variants)
    assert CalibrationData.of({"x": np.asfortranarray(X)}).sha256 == variants[0].sha256


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=X)
    assert read_calibration(path).sha256 == CalibrationData.of({"x": X}).sha256
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InvalidInputError, match="file of plain arrays"):
        read_calibration(path)
    path.write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match="file of plain arrays"):
        read_calibration(path)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(InvalidInputError, match="file of plain arrays"):
        read_calibration(tmp_path / "one.npy")
    with pytest.raises(InvalidInputError, match="file of plain arrays"):
        read_calibration(tmp_path / "absent.npz")

    np.savez_compressed(path, x=np.zeros(10_000))
    damaged = bytearray(path.read_bytes())
    damaged[60:90] = b"\xff" * 30  # of what is packed; its names and sizes are whole
    path.write_bytes(damaged)
    with pytest.raises(InvalidInputError, match="file of plain arrays"):
        read_calibration(path)


def test_calls_are_kept_and_read_back_as_they_were() -> None:
    data = CalibrationData(
        tuple({"a/b": X[:rows], "y": np.arange(rows)} for rows in (5, 1, 3) for _ in range(4))
    )
    kept = to_npz(data)
    assert kept == to_npz(data)
    assert from_npz(kept).sha256 == data.sha256
    assert list(from_npz(kept).feeds[0]) == ["a/b", "y"]


@pytest.mark.parametrize("damaged", [b"", b"no zip", to_npz(CalibrationData.of({"x": X}))[:-30]])
def test_damage_is_told(damaged: bytes) -> None:
    with pytest.raises(IntegrityError, match="they are damaged"):
        from_npz(damaged)
