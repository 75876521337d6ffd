"""The task ``fashion-mnist``: five small networks in two precisions, accuracy measured end to end.

The models are shipped with the package, small as they are, together with the test split on which
their accuracy was measured, so anyone can measure it again.
``benchmarks/profiling/fashion_mnist_training.py`` made them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
        manifest = self._manifest()
        records = manifest["variants"]
        for done, record in enumerate(records, start=1):
            name = f"{record['precision']}-{SIDE_PX}"
            on_progress(f"{record['model']}/{name}", done, len(records))
            yield BuiltVariant(
                model=Model(
                    task=TASK.name,
                    name=record["model"],
                    family="fashion-mnist-cnn",
                    source="trained by modelless on Fashion-MNIST",
                    licence="Apache-2.0",
                ),
                name=name,
                precision=Precision(record["precision"]),
                resolution_px=SIDE_PX,
                engine=Engine.ONNXRUNTIME_CPU,
                onnx_bytes=self._read(record["file"], record["artifact"]),
                accuracy=Accuracy(
                    metric=TASK.accuracy_metric,
                    provenance=Provenance.MEASURED,
                    source=f"{manifest['data_source']}, test split ({TEST_IMAGES})",
                    **record["accuracy"],
                ),
            )

    def test_split(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The labelled images on which accuracy was measured.

        Returns:
            Images UINT8 [10000, 28, 28], 0 black to 255 white, and class indices UINT8 [10000].

        Raises:
            IntegrityError: a file is missing or not the one of the manifest.
        """
        files = self._manifest()["data_files"]
        images, labels = (
            np.frombuffer(gzip.decompress(self._read(name, files[name])), np.uint8, offset=header)
            for name, header in ((TEST_IMAGES, 16), (TEST_LABELS, 8))
        )
        return images.reshape(TEST_COUNT, SIDE_PX, SIDE_PX), labels

    def _manifest(self) -> dict[str, Any]:
        """Returns the description of the shipped networks: how each was made, and its accuracy."""
        document: dict[str, Any] = json.loads(self._read("manifest.json"))
        return document

    def _read(self, name: str, expected: Mapping[str, Any] | None = None) -> bytes:
        path = self._folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise IntegrityError(
                f"{path}: cannot be read ({error}). Reinstall modelless."
            ) from error
        if expected and hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise IntegrityError(f"{path}: is not the file of the manifest. Reinstall modelless.")
        return content
