"""Importable models, as a user's own code would hold them; frameworks are imported when asked."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

NO_MODEL = "a text"
RIDGE = Ridge()
"""A model itself, not a function that makes one."""


@cache
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """scikit-learn's digits: float32 [1797, 64], 0 to 16, and classes int64 [1797]."""
    x, y = load_digits(return_X_y=True)
    return x.astype(np.float32), y.astype(np.int64)


@cache
def linear() -> BaseEstimator:
    """A classifier, trained."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    return model.fit(*(each[:600] for each in digits()))


@cache
def forest() -> BaseEstimator:
    """A classifier of trees, trained."""
    model = RandomForestClassifier(8, random_state=0)
    return model.fit(*(each[:600] for each in digits()))


@cache
def network() -> BaseEstimator:
    """A classifier of layers, trained."""
    return MLPClassifier((16,), random_state=0, max_iter=600).fit(
        *(each[:600] for each in digits())
    )


@cache
def ridge() -> BaseEstimator:
    """A regressor, trained."""
    return Ridge().fit(*(each[:600] for each in digits()))


def scaler() -> BaseEstimator:
    """What predicts nothing."""
    return StandardScaler().fit(digits()[0])


def untrained() -> BaseEstimator:
    """What cannot be converted."""
    return LogisticRegression()


def failing() -> BaseEstimator:
    """A factory that does not work."""
    raise RuntimeError("out of luck")


def convolution() -> Any:
    """A small torch network [N, 1, H, W] -> [N, 3], always with the same weights."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
            self.dropout = torch.nn.Dropout()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.dropout(torch.relu(self.conv(x)).mean((2, 3))))

    torch.manual_seed(0)
    return Network()


def sequential() -> Any:
    """A small Keras network [N, 16, 16, 3] -> [N, 4], always with the same weights."""
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((16, 16, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )


def two_headed() -> Any:
    """A Keras network of two inputs and two outputs."""
    import keras

    keras.utils.set_random_seed(0)
    inputs = [keras.Input((5,)), keras.Input((3,))]
    hidden = keras.layers.Concatenate()(inputs)
    return keras.Model(inputs, [keras.layers.Dense(2)(hidden), keras.layers.Dense(3)(hidden)])
