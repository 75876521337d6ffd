"""The task ``digits``: scikit-learn's classifiers of handwritten digits, kilobytes each.

They are trained on the spot, on half of the 1,797 digits of 8x8 pixels that scikit-learn holds
(``load_digits``; BSD-3-Clause), and measured on the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.conversion.converted import convert
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.vocabulary import Model, Task, TensorSpec
from modelless.variants.zoo.catalog import MadeEntry

PIXELS: Final = 64
_TRAINED: Final = ("linear", "mlp_16", "mlp_128")
_SEED: Final = 1998  # the year of the data set


class Digits(MadeEntry):
    """A linear model and two perceptrons."""

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "scikit-learn's digits by its own classifiers, trained on the spot"
    recipe: ClassVar[Mapping[str, Any]] = {
        "variants": {"fp32": ["optimise"], "int8": ["optimise", "int8-static"]}
    }
    items: int = 898

    @cached_property
    def task(self) -> Task:
        """64 grey levels in, 0 to 16; the digit and the probabilities of all ten out."""
        return Task(
            name=self.name,
            inputs=(TensorSpec("pixels", "FP32", (-1, PIXELS)),),
            outputs=(
                TensorSpec("label", "INT64", (-1,)),
                TensorSpec("probabilities", "FP32", (-1, 10)),
            ),
            accuracy_metric="top-1",
            description="Which digit 8x8 grey levels (0 to 16) show.",
            labels=tuple("0123456789"),
        )

    def models(self) -> Iterator[tuple[Model, bytes]]:
        """See ``MadeEntry.models``; trains them."""
        inputs = CalibrationData.of({"pixels": _halves()[0][0]})
        for trained in _TRAINED:
            source = convert("scikit-learn", f"{__name__}:{trained}", inputs)
            name = trained.replace("_", "-")
            model = Model(self.name, name, "scikit-learn", "trained by modelless", "Apache-2.0")
            yield model, source.onnx_bytes

    def draw(self, rng: np.random.Generator, count: int) -> Iterator[tuple[NDArray[Any], str]]:
        """Digits that no model was trained on, each at most once; see ``MadeEntry.draw``."""
        _, (pixels, labels) = _halves()
        if count > len(pixels):
            raise InvalidInputError.of("count", count, f"up to {len(pixels)}: there are no more")
        for index in rng.permutation(len(pixels))[:count]:
            yield pixels[index], str(labels[index])


def linear() -> Any:
    """Logistic regression."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000).fit(*_halves()[0])


def mlp_16() -> Any:
    """A perceptron of 16 hidden units."""
    return _perceptron(16)


def mlp_128() -> Any:
    """A perceptron of 128 hidden units."""
    return _perceptron(128)


@cache
def _perceptron(units: int) -> Any:
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    model = MLPClassifier(
        units, alpha=1.0, learning_rate_init=0.01, max_iter=1000, random_state=_SEED
    )
    with threadpool_limits(1):  # the products are so small that more threads only wait
        return model.fit(*_halves()[0])


def _halves() -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Pixels FP32 [digits, 64] and labels, of those to train on and of the others."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    return [(pixels[part].astype(np.float32), labels[part]) for part in np.array_split(order, 2)]
