"""The state-dict reader: what it reads, and that it runs nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from modelless.variants.zoo.efficientnet_lite import read_state_dict

ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def plain(value: object) -> bytes:
    """``value`` as opcodes that leave it on the stack."""
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    key: str, shape: tuple[int, ...], strides: tuple[int, ...], count: int, kind: bytes
) -> bytes:
    reference = b"(" + plain("storage") + b"ctorch\n" + kind + b"\n"
    reference += plain(key) + plain("cpu") + plain(count) + b"NtQ"
    view = plain(0) + plain(shape) + plain(strides) + plain(False)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + view + ORDERED_DICT + b"tR"


def write(path: Path, tensors: dict[str, bytes], body: bytes = b"") -> None:
    """Write a file as ``torch.save`` did before PyTorch 1.6."""
    items = b"".join(plain(name) + each for name, each in tensors.items())
    state = b"\x80\x02" + ORDERED_DICT + b"(" + items + b"u."
    head = b"".join(pickle.dumps(value, 2) for value in (1, 1001, {"little_endian": True}))
    path.write_bytes(head + state + pickle.dumps(["a", "b"], 2) + body)


def test_reads_tensors_in_order_with_their_strides_and_types(tmp_path: Path) -> None:
    floats, steps = np.arange(12, dtype=np.float32), np.array([7], dtype=np.int64)
    tensors = {
        "transposed": tensor("a", (3, 4), (1, 3), 12, b"FloatStorage"),
        "steps": tensor("b", (), (), 1, b"LongStorage"),
    }
    body = b"".join(len(a).to_bytes(8, "little") + a.tobytes() for a in (floats, steps))
    weights = tmp_path / "weights.pth"
    write(weights, tensors, body)
    found = read_state_dict(weights)
    assert list(found) == ["transposed", "steps"]
    np.testing.assert_array_equal(found["transposed"], floats.reshape(4, 3).T)
    assert found["steps"].shape == ()
    assert found["steps"].dtype == np.int64
    assert found["transposed"].flags.c_contiguous
    assert found["transposed"].flags.owndata


def test_nothing_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    weights = tmp_path / "weights.pth"
    write(weights, {"weight": b"cos\nsystem\n(" + plain(f"touch {ran}") + b"tR"})
    with pytest.raises(KeyError, match="system"):
        read_state_dict(weights)
    assert not ran.exists()
