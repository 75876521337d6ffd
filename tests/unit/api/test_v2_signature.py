"""Outputs a request asks for, held against its task."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.api.v2_request import InferRequest, RequestedOutput, check_outputs
from modelless.variants.vocabulary import SLO, Task, TensorSpec

TASK = Task(
    "classes",
    (TensorSpec("image", "UINT8", (-1, -1, -1, 3)),),
    (TensorSpec("probabilities", "FP32", (-1, 10)),),
    "top-1",
)


def request(*outputs: str) -> InferRequest:
    requested = tuple(RequestedOutput(name) for name in outputs)
    return InferRequest(None, SLO(), {}, requested, False, None, {})


def test_all_outputs_or_one_that_exists() -> None:
    check_outputs(request(), TASK)
    check_outputs(request("probabilities"), TASK)


def test_an_output_that_does_not_exist() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_outputs(request("probabilities", "probability"), TASK)
    assert str(caught.value) == (
        "outputs[1].name: got 'probability'; allowed: probabilities. Did you mean 'probabilities'?"
    )
