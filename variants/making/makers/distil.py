"""Distillation: a smaller network of the user learns to answer as the trained model does.

Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, sec. 2,
https://arxiv.org/abs/1503.02531. The student learns the teacher's probabilities, softened by a
temperature; they say more about each input than its label. It needs calibration data, the more the
better, and no labels. Answers that are not probabilities are learned by their squared error: for
logits, that is the limit of distillation at high temperatures (sec. 2.1 there).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from pydantic import Field, model_validator

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import write_model
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker, send_message
from modelless.variants.making.session import Session
from modelless.variants.making.training import deterministic, log_probabilities, soft_loss
from modelless.variants.vocabulary import Precision


class Distil(Maker):
    """A PyTorch module learns the model's answers on the calibration data and takes its place."""

    name: ClassVar[str] = "distil"
    precision: ClassVar[Precision | None] = Precision.FP32
    needs_calibration: ClassVar[bool] = True
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy", "torch", "onnxscript")

    student: str = Field(
        description="package.module:attribute, a torch.nn.Module or a function that makes one; it "
        "takes the model's inputs in order and returns logits if the model gives probabilities, "
        "else the same outputs"
    )
    student_sha256: str = Field("", description="of the file that defines it; computed by default")
    temperature: float = Field(4.0, gt=0, le=100, description="softness of the probabilities")
    epochs: int = Field(30, ge=1, le=10_000, description="passes over the calibration data")
    learning_rate: float = Field(1e-3, gt=0, lt=1, description="learning rate of Adam")
    seed: int = Field(
        0, ge=0, lt=2**32, description="seed of the order of the data and of new weights"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_sha256(cls, settings: Any) -> Any:
        """A student whose code has changed is another student: nothing old is taken for it."""
        if not isinstance(settings, Mapping) or not isinstance(settings.get("student"), str):
            return settings
        found = _sha256_of(settings["student"])
        if settings.get("student_sha256") not in (None, "", found):
            raise ValueError(
                f"student_sha256: the file of {settings['student']} is another one than then"
            )
        return {**settings, "student_sha256": found}

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        from modelless.variants.conversion.converted import load_model
        from modelless.variants.conversion.pytorch import export_module, import_torch

        torch = import_torch()
        teacher = Session(write_model(model))
        if len(teacher.outputs) != 1:
            raise InvalidInputError.of("distil: outputs of the model", len(teacher.outputs), "1")
        (output,) = teacher.outputs
        feeds = [{name: feed[name] for name in teacher.inputs} for feed in calibration.feeds]
        answers = [teacher.run(feed)[output] for feed in feeds]
        with deterministic(torch, self.seed):
            student = load_model(self.student, torch.nn.Module)
            learning = _Learning(torch, student, self.temperature, answers)
            agreement = learning.learn(feeds, self.epochs, self.learning_rate)
            made = export_module(
                learning.answering().eval(), CalibrationData(tuple(feeds)), [output]
            )
        count = sum(parameter.numel() for parameter in student.parameters())
        items = sum(len(answer) for answer in answers)
        return Made(made, (f"{count} weights learned from {items} items; {agreement}",))


class _Learning:
    """One student and what it is to answer.

    Args:
        torch: the module.
        student: an ``nn.Module``.
        temperature: see ``Distil``.
        answers: the teacher's, call by call.
    """

    def __init__(
        self, torch: Any, student: Any, temperature: float, answers: Sequence[NDArray[Any]]
    ) -> None:
        self._torch = torch
        self._student = student
        self._temperature = temperature
        self._are_probabilities = all(
            each.ndim == 2
            and each.shape[1] > 1
            and bool((each >= 0).all())
            and np.allclose(each.sum(1), 1.0, atol=1e-3)
            for each in answers
        )
        if self._are_probabilities:
            answers = [log_probabilities(each) for each in answers]
        self._targets = [torch.from_numpy(np.asarray(each, np.float32)) for each in answers]

    def learn(
        self, feeds: Sequence[Mapping[str, NDArray[Any]]], epochs: int, learning_rate: float
    ) -> str:
        """Learn; returns in words how near it came on what it learned from."""
        torch, student = self._torch, self._student
        calls = [tuple(torch.from_numpy(np.array(each)) for each in f.values()) for f in feeds]
        optimiser = torch.optim.Adam(student.parameters(), lr=learning_rate)
        student.train()
        for epoch in range(epochs):
            send_message(f"learning, {epoch} of {epochs} epochs done")
            for place in torch.randperm(len(calls)).tolist():
                optimiser.zero_grad()
                loss = self._loss(self._answer(calls[place], place), self._targets[place])
                loss.backward()
                optimiser.step()
        student.eval()
        with torch.no_grad():
            found = [self._answer(call, place) for place, call in enumerate(calls)]
        if not self._are_probabilities:
            errors = torch.cat(
                [(f - t).abs().flatten() for f, t in zip(found, self._targets, strict=True)]
            )
            return f"its answers on them differ by {errors.mean().item():.3g} on average"
        same = torch.cat(
            [f.argmax(1) == t.argmax(1) for f, t in zip(found, self._targets, strict=True)]
        )
        return f"on {same.float().mean().item():.1%} of them it answers the same"

    def answering(self) -> Any:
        """The student with answers of the kind that the teacher gives."""
        if not self._are_probabilities:
            return self._student
        return self._torch.nn.Sequential(self._student, self._torch.nn.Softmax(1))

    def _answer(self, call: tuple[Any, ...], place: int) -> Any:
        found = self._student(*call)
        wanted = tuple(self._targets[place].shape)
        shape = tuple(getattr(found, "shape", ()))
        if shape != wanted:
            raise InvalidInputError.of(
                "distil: what the student returns", list(shape), f"a tensor of shape {list(wanted)}"
            )
        return found

    def _loss(self, found: Any, wanted: Any) -> Any:
        if not self._are_probabilities:
            return self._torch.nn.functional.mse_loss(found, wanted)
        return soft_loss(self._torch, found, wanted, self._temperature)


def _sha256_of(student: str) -> str:
    """Of the file that defines it; empty where there is none to be found."""
    try:
        spec = find_spec(student.partition(":")[0])
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
