"""Requests held against a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelless.controller.api.v2_request import InferRequest, RequestedOutput
from modelless.controller.api.v2_signature import match_signature
from modelless.variants.errors import InvalidInputError
from modelless.variants.vocabulary import SLO, Task, TensorSpec

TASK = Task(
    "pairs",
    (TensorSpec("image", "UINT8", (-1, -1, -1, 3)), TensorSpec("weight", "FP32", (-1,))),
    (TensorSpec("probabilities", "FP32", (-1, 10)),),
    "top-1",
)


def request(*outputs: str, **tensors: np.ndarray[Any, Any]) -> InferRequest:
    requested = tuple(RequestedOutput(name) for name in outputs)
    return InferRequest(None, SLO(), tensors, requested, False, None, {})


def image(*shape: int, dtype: type = np.uint8) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("items", [1, 8])
def test_counts_the_items(items: int) -> None:
    given = request(
        "probabilities", weight=image(items, dtype=np.float32), image=image(items, 4, 5, 3)
    )
    assert match_signature(given, TASK) == items


WEIGHT = image(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (request(image=image(2, 4, 4, 3)), r"^inputs: got \['image'\]; .* Add weight\."),
        (
            request(imag=image(2, 4, 4, 3), weight=WEIGHT),
            r"^inputs\[0\]\.name: got 'imag'; allowed: image, weight\. Did you mean 'image'\?",
        ),
        (
            request(image=image(2, 4, 4, 3), weight=WEIGHT, extra=WEIGHT),
            r"^inputs\[2\]\.name: got 'extra'",
        ),
        (
            request(image=image(2, 4, 4, 3, dtype=np.float32), weight=WEIGHT),
            r"^inputs\[0\]\.datatype: got 'FP32'; allowed: UINT8",
        ),
        (
            request(weight=WEIGHT, image=image(2, 4, 3)),
            r"^inputs\[1\]\.shape: got \[2, 4, 3\]; allowed: \[-1, -1, -1, 3\], -1 being any",
        ),
        (request(image=image(2, 3, 4, 4), weight=WEIGHT), r"^inputs\[0\]\.shape: got \[2, 3"),
        (request(image=image(0, 4, 4, 3), weight=WEIGHT), r"^inputs\[0\]\.shape: .* 1 item or mo"),
        (request(image=image(2, 0, 4, 3), weight=WEIGHT), r"^inputs\[0\]\.shape: .* every axis"),
        (
            request(image=image(3, 4, 4, 3), weight=WEIGHT),
            r"^inputs\[1\]\.shape: got \[2\]; allowed: 3 items, as the inputs before it",
        ),
        (
            request("probs", image=image(2, 4, 4, 3), weight=WEIGHT),
            r"^outputs\[0\]\.name: got 'probs'; allowed: probabilities",
        ),
    ],
)
def test_mismatch(given: InferRequest, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        match_signature(given, TASK)
