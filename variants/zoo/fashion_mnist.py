"""The task ``fashion-mnist``: five small networks in two precisions, accuracy measured end to end.

The models are shipped with the package, small as they are, together with the test split on which
their accuracy was measured, so anyone can measure it again.
``benchmarks/profiling/fashion_mnist_training.py`` made them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelless.common.errors import IntegrityError
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
)
from modelless.variants.zoo.catalog import BuiltVariant

DATA: Final = Path(__file__).parent / "data" / "fashion_mnist"
SIDE_PX: Final = 28
TEST_COUNT: Final = 10_000
TEST_IMAGES: Final = "t10k-images-idx3-ubyte.gz"
TEST_LABELS: Final = "t10k-labels-idx1-ubyte.gz"

TASK: Final = Task(
    name="fashion-mnist",
    inputs=(TensorSpec("image", "UINT8", (-1, SIDE_PX, SIDE_PX)),),
    outputs=(TensorSpec("probabilities", "FP32", (-1, 10)),),
    accuracy_metric="top-1",
    description="What article of clothing a 28x28 grey-scale picture shows, out of ten.",
    labels=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker"),
        *("Bag", "Ankle boot"),
    ),
)

_REINSTALL = "Reinstall modelless; if you changed the file on purpose, make the manifest anew."
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Percent = Annotated[float, Field(ge=0.0, le=100.0)]
_Count = Annotated[int, Field(ge=1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileRecord(_Record):
    """A file as it must be.

    Attributes:
        sha256: hex digest of its bytes.
        size_bytes: its length.
    """

    sha256: _Sha256
    size_bytes: Annotated[int, Field(ge=1, le=64 << 20)]


class AccuracyRecord(_Record):
    """Top-1 accuracy on the test split, with its Wilson 95 % interval."""

    percent: _Percent
    low_percent: _Percent
    high_percent: _Percent
    sample_count: _Count


class ModelRecord(_Record):
    """How one network was trained.

    Attributes:
        layers: from input to output, in words.
        learning_rate: the peak of its one-cycle schedule.
        validation_percent: fp32 top-1 on training images that were held out.
        training_cpu_s: processor seconds it took; the only field that is not reproducible.
    """

    layers: tuple[str, ...]
    epochs: _Count
    batch_size: _Count
    learning_rate: float
    weight_decay: float
    seed: int
    validation_percent: _Percent
    training_cpu_s: float


class VariantRecord(_Record):
    """One shipped ONNX file; parameters and multiply-adds an image are those of the network."""

    model: str
    precision: Precision
    file: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,60}\.onnx$")]
    artifact: FileRecord
    accuracy: AccuracyRecord
    parameter_count: _Count
    multiply_adds: _Count


class Manifest(_Record):
    """``manifest.json``: what is shipped, how it was made and how good it was found to be.

    Attributes:
        data_source, data_licence: of the pictures.
        data_files: both splits as they were used; only the test split is shipped.
        training: the settings common to all networks, in words.
        tools: versions of what made the files, and the platform on which they are bit-identical.
        models: by name.
        variants: in the order in which they are built.
    """

    task: str
    data_source: str
    data_licence: str
    data_files: dict[str, FileRecord]
    training: tuple[str, ...]
    tools: dict[str, str]
    models: dict[str, ModelRecord]
    variants: tuple[VariantRecord, ...]


def read_manifest(folder: Path = DATA) -> Manifest:
    """The manifest in ``folder``; IntegrityError if it is missing or malformed."""
    path = folder / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error}). {_REINSTALL}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise IntegrityError(f"{path}: {where}: {first['msg']}. {_REINSTALL}") from error


def read_checked(path: Path, expected: FileRecord) -> bytes:
    """The bytes of ``path``; IntegrityError unless length and hash are the expected ones."""
    try:
        with path.open("rb") as file:
            content = file.read(expected.size_bytes + 1)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error}). {_REINSTALL}") from error
    digest = hashlib.sha256(content).hexdigest()
    if len(content) != expected.size_bytes or digest != expected.sha256:
        raise IntegrityError(
            f"{path}: is not the file of the manifest; expected {expected.size_bytes} bytes with "
            f"sha256 {expected.sha256[:16]}... {_REINSTALL}"
        )
    return content


def decode_idx(packed: bytes, shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    """Decode a gzipped IDX file of unsigned bytes whose shape is known beforehand.

    Never unpacks more than the expected length, whatever the file claims.

    Args:
        packed: the file's bytes.
        shape: what it must contain, e.g. ``(10000, 28, 28)``.
        name: for the error message.

    Returns:
        UINT8 array of ``shape``, read-only.

    Raises:
        IntegrityError: it is no such file.
    """
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    length = len(header) + int(np.prod(shape))
    inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = inflate.decompress(packed, length + 1)
    except zlib.error as error:
        raise IntegrityError(f"{name}: not a gzip file ({error}). {_REINSTALL}") from error
    if len(content) != length or not inflate.eof or not content.startswith(header):
        raise IntegrityError(
            f"{name}: expected an IDX file of unsigned bytes of shape {shape} "
            f"({length} bytes unpacked). {_REINSTALL}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


class FashionMnist:
    """The zoo's entry of the task ``fashion-mnist``: ten variants, all shipped, nothing to install.

    Args:
        folder: where the files lie; the package's own by default.
    """

    name: str = "fashion-mnist"
    task: Task = TASK
    summary: str = "five small networks, fp32 and int8, shipped; accuracy measured on 10,000 images"

    def __init__(self, folder: Path = DATA) -> None:
        self._folder = folder

    def build(self, on_progress: Callable[[str, int, int], None]) -> Iterator[BuiltVariant]:
        """Yield each variant, its file checked against the manifest.

        Args:
            on_progress: called with what is done, how many are done and of how many.

        Raises:
            IntegrityError: a file is missing or not the one of the manifest.
        """
        manifest = read_manifest(self._folder)
        total = len(manifest.variants)
        source = f"{manifest.data_source}, test split ({TEST_IMAGES})"
        for done, record in enumerate(manifest.variants, start=1):
            content = read_checked(self._folder / record.file, record.artifact)
            name = f"{record.precision.value}-{SIDE_PX}"
            on_progress(f"{record.model}/{name}", done, total)
            yield BuiltVariant(
                model=Model(
                    task=TASK.name,
                    name=record.model,
                    family="fashion-mnist-cnn",
                    source="trained by modelless on Fashion-MNIST",
                    licence="Apache-2.0",
                ),
                name=name,
                precision=record.precision,
                resolution_px=SIDE_PX,
                engine=Engine.ONNXRUNTIME_CPU,
                onnx_bytes=content,
                accuracy=Accuracy(
                    percent=record.accuracy.percent,
                    metric=TASK.accuracy_metric,
                    provenance=Provenance.MEASURED,
                    source=source,
                    low_percent=record.accuracy.low_percent,
                    high_percent=record.accuracy.high_percent,
                    sample_count=record.accuracy.sample_count,
                ),
                parameter_count=record.parameter_count,
                multiply_adds=record.multiply_adds,
            )

    def test_split(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The labelled images on which accuracy was measured.

        Returns:
            Images UINT8 [10000, 28, 28], 0 black to 255 white, and class indices UINT8 [10000].

        Raises:
            IntegrityError: a file is missing or not the one of the manifest.
        """
        files = read_manifest(self._folder).data_files
        images, labels = (
            decode_idx(read_checked(self._folder / name, files[name]), shape, name)
            for name, shape in (
                (TEST_IMAGES, (TEST_COUNT, SIDE_PX, SIDE_PX)),
                (TEST_LABELS, (TEST_COUNT,)),
            )
        )
        return images, labels
