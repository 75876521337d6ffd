"""The state-dict reader: what it reads, and what it must never run."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.common.errors import IntegrityError
from modelless.variants.zoo.unpickle import read_state_dict

MAGIC = 0x1950A86A20F9469CFC6C
ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def plain(value: object) -> bytes:
    """``value`` as opcodes that leave it on the stack."""
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    key: str,
    shape: Sequence[int],
    strides: Sequence[int],
    *,
    count: int,
    offset: int = 0,
    storage: bytes = b"FloatStorage",
) -> bytes:
    reference = b"(" + plain("storage") + b"ctorch\n" + storage + b"\n"
    reference += plain(key) + plain("cpu") + plain(count) + b"NtQ"
    view = plain(offset) + plain(tuple(shape)) + plain(tuple(strides)) + plain(False)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + view + ORDERED_DICT + b"tR"


def state(tensors: dict[str, bytes]) -> bytes:
    items = b"".join(plain(name) + body for name, body in tensors.items())
    return b"\x80\x02" + ORDERED_DICT + b"(" + items + b"u."


def container(
    state_pickle: bytes,
    storages: dict[str, NDArray[Any]] | None = None,
    *,
    magic: object = MAGIC,
    system: object = None,
) -> bytes:
    """A file as ``torch.save`` wrote it before PyTorch 1.6."""
    storages = storages or {}
    system = {"little_endian": True} if system is None else system
    head = b"".join(pickle.dumps(value, 2) for value in (magic, 1001, system))
    body = b"".join(len(a).to_bytes(8, "little") + a.tobytes() for a in storages.values())
    return head + state_pickle + pickle.dumps(list(storages), 2) + body


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "weights.pth"


def test_reads_tensors_in_order_with_their_strides_and_types(weights: Path) -> None:
    floats = np.arange(12, dtype=np.float32)
    steps = np.array([7], dtype=np.int64)
    tensors = {
        "transposed": tensor("a", (3, 4), (1, 3), count=12),
        "tail": tensor("a", (2,), (1,), count=12, offset=10),
        "steps": tensor("b", (), (), count=1, storage=b"LongStorage"),
    }
    weights.write_bytes(container(state(tensors), {"a": floats, "b": steps}))
    found = read_state_dict(weights)
    assert list(found) == ["transposed", "tail", "steps"]
    np.testing.assert_array_equal(found["transposed"], floats.reshape(4, 3).T)
    np.testing.assert_array_equal(found["tail"], [10.0, 11.0])
    assert found["steps"].shape == ()
    assert found["steps"].dtype == np.int64
    assert found["transposed"].flags.c_contiguous
    assert found["transposed"].flags.owndata


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.exec",
        "builtins.getattr",
        "torch.load",
        "torch._utils._rebuild_parameter",
        "collections.Counter",
        "numpy.load",
        "functools.partial",
    ],
)
def test_refuses_and_names_what_no_state_dict_needs(
    weights: Path, tmp_path: Path, name: str
) -> None:
    ran = tmp_path / "ran"
    module, _, attribute = name.rpartition(".")
    argument = plain(f"open({str(ran)!r}, 'w')" if attribute == "exec" else f"touch {ran}")
    call = f"c{module}\n{attribute}\n(".encode() + argument + b"tR"
    weights.write_bytes(container(state({"weight": call})))
    with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
        read_state_dict(weights)
    assert not ran.exists()


@pytest.mark.parametrize("place", range(5))
def test_refuses_a_stranger_in_any_of_the_five_pickles(weights: Path, place: int) -> None:
    evil = b"\x80\x02cos\nsystem\n(" + plain("true") + b"tR."
    parts = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True})]
    parts += [state({}), pickle.dumps([], 2)]
    parts[place] = evil
    weights.write_bytes(b"".join(parts))
    with pytest.raises(IntegrityError, match=r"os\.system"):
        read_state_dict(weights)


def test_protocol_4_names_are_refused_too(weights: Path) -> None:
    weights.write_bytes(container(pickle.dumps(print, 4)))
    with pytest.raises(IntegrityError, match=r"builtins\.print"):
        read_state_dict(weights)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (tensor("a", (5,), (1,), count=4), 4),  # longer than its storage
        (tensor("a", (2,), (1,), count=4, offset=3), 4),
        (tensor("a", (2, 2), (4, 1), count=4), 4),
        (tensor("a", (1 << 20, 1 << 20), (0, 0), count=4), 4),  # one element a million times
        (tensor("a", (-1,), (1,), count=4), 4),
        (tensor("a", (2,), (-1,), count=4, offset=3), 4),
        (tensor("a", (2,), (1,), count=4, offset=-2), 4),
        (tensor("a", (1,) * 9, (1,) * 9, count=4), 4),
        (tensor("a", (2,), (1, 1), count=4), 4),
        (tensor("a", (4,), (1,), count=1 << 40), 4),  # announces more than is there
        (tensor("a", (4,), (1,), count=4), 5),
        (tensor("b", (4,), (1,), count=4), 4),  # of a storage that is not there
        (plain("not a tensor"), 4),
    ],
)
def test_refuses_tensors_that_are_not_what_they_claim(
    weights: Path, body: bytes, stored: int
) -> None:
    content = container(state({"weight": body}), {"a": np.zeros(stored, np.float32)})
    weights.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"weights\.pth"):
        read_state_dict(weights)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 a zip",
        b"\x80\x02.",
        pickle.dumps({"weight": 1}),
        container(pickle.dumps([1, 2])),
        container(state({}), magic=1),
        container(state({}), system={"little_endian": False}),
        container(state({}), system="little"),
    ],
)
def test_refuses_other_files(weights: Path, content: bytes) -> None:
    weights.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"weights\.pth"):
        read_state_dict(weights)


def test_refuses_a_file_cut_short(weights: Path) -> None:
    body = state({"weight": tensor("a", (64,), (1,), count=64)})
    content = container(body, {"a": np.ones(64, np.float32)})
    weights.write_bytes(content)
    assert read_state_dict(weights)["weight"].sum() == 64
    for length in range(0, len(content), 7):
        weights.write_bytes(content[:length])
        with pytest.raises(IntegrityError):
            read_state_dict(weights)


def test_the_hash_is_checked_before_anything_is_unpickled(weights: Path) -> None:
    weights.write_bytes(container(state({"weight": b"cos\nsystem\n" + plain("true") + b"R"})))
    with pytest.raises(IntegrityError, match="sha256"):
        read_state_dict(weights, sha256="0" * 64)
    good = container(state({}))
    weights.write_bytes(good)
    assert read_state_dict(weights, sha256=hashlib.sha256(good).hexdigest()) == {}


def test_refuses_a_file_that_is_too_large(weights: Path) -> None:
    weights.write_bytes(container(state({})))
    with pytest.raises(IntegrityError, match="allowed: up to 16"):
        read_state_dict(weights, max_bytes=16)
