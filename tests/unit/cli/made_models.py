"""Importable models, as users name them, and a maker that can be told to fail."""

from __future__ import annotations

import os
import random
import signal
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline

from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker

TRAINED_ON = 1000


@cache
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """scikit-learn's digits: float32 [1797, 64], 0 to 1, and classes int64 [1797]."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int64)


@cache
def network() -> MLPClassifier:
    """A small network, trained; a function that makes a model."""
    x, y = (each[:TRAINED_ON] for each in digits())
    return MLPClassifier((64,), random_state=0, max_iter=400).fit(x, y)


TOPICS = ("the team won the match and the cup", "the bank raised its rates and prices fell")


def texts(count: int) -> list[tuple[str, int]]:
    """Texts of 3 to 15 words of a topic, and which topic it is."""
    chosen = random.Random(count)
    return [
        (" ".join(chosen.choices(TOPICS[n % 2].split(), k=3 + n % 13)), n % 2) for n in range(count)
    ]


def reader() -> Pipeline:
    """A classifier of texts, trained."""
    read, labels = zip(*texts(200), strict=True)
    words = TfidfVectorizer(token_pattern="[a-zA-Z]+")  # noqa: S106  (no password)
    return make_pipeline(words, LogisticRegression()).fit(read, labels)


def lying() -> LogisticRegression:
    """A classifier that does not answer as its weights say."""
    x, y = (each[:TRAINED_ON] for each in digits())
    model = LogisticRegression(max_iter=300).fit(x, y)
    honest = model.predict_proba
    model.predict_proba = lambda rows: honest(rows)[:, ::-1]
    return model


def __getattr__(name: str) -> MLPClassifier:
    """``instance``: a model and no function; trained when it is asked for."""
    if name == "instance":
        return network()
    raise AttributeError(name)


class Dying(Maker):
    """Kills its process where the environment says so; else changes nothing but a name."""

    name: ClassVar[str] = "dying"

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        del calibration
        if os.environ.get("MODELLESS_TEST_DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        model.graph.name = "alive"
        return Made(model)


def convolution() -> Any:
    """A small torch network [N, 1, 8, 8] -> [N, 10], always with the same weights."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


@cache
def keras_clothes() -> Any:
    """A small Keras network [N, 28, 28] -> [N, 10], trained on Fashion-MNIST's last test images."""
    import keras

    from modelless.variants.zoo.fashion_mnist import FashionMnist

    keras.utils.set_random_seed(0)
    network = keras.Sequential(
        [
            keras.layers.Input((28, 28), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy")
    images, labels = FashionMnist().test_split()
    network.fit(images[2000:], labels[2000:], epochs=2, batch_size=64, verbose=0)
    return network
