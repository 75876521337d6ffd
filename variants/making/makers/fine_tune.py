"""Fine-tuning: recovers the accuracy that pruning or another resolution cost.

Han et al., "Learning both Weights and Connections for Efficient Neural Networks", NeurIPS 2015,
https://arxiv.org/abs/1506.02626, sec. 3: the remaining weights start from their values, and those
that are zero stay zero. It needs no labels: it learns the source's soft answers (Hinton, Vinyals
and Dean, 2015, https://arxiv.org/abs/1503.02531, sec. 2). Outputs that do not come from a Softmax
are learned by their squared error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from pydantic import Field

from modelless.common.errors import InvalidInputError, require
from modelless.variants.graphs.canonical import at_least_opset, write_model
from modelless.variants.graphs.weights import attribute, constants, replace
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Fidelity, compare
from modelless.variants.making.maker import Made, Maker, send_message
from modelless.variants.making.session import Session
from modelless.variants.making.training import deterministic, log_probabilities, soft_loss

if TYPE_CHECKING:
    from modelless.variants.making.torch_graph import TorchGraph

_SOFTMAX_BY_AXIS: Final = 13
"""The first opset whose Softmax is over one axis."""

_HELD_OUT: Final = 5
"""One call in so many is not learned from; by them it is judged."""

_TELL_EVERY: Final = 10


class FineTune(Maker):
    """The weights that pruning left learn to answer as the source does; zeros stay zero."""

    name: ClassVar[str] = "fine-tune"
    needs_calibration: ClassVar[bool] = True
    needs_answers: ClassVar[bool] = True
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy", "torch")

    steps: int = Field(1000, ge=1, le=1_000_000, description="steps of 32 items each")
    learning_rate: float = Field(
        1e-3, gt=0, lt=1, description="initial learning rate of Adam; falls to 0 along a cosine"
    )
    temperature: float = Field(4.0, gt=0, le=100, description="softness of the probabilities")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the order of the steps")

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        torch = require("torch", "fine-tune", "pip install torch, https://pytorch.org")
        from modelless.variants.making.torch_graph import TorchGraph

        model = at_least_opset(model, _SOFTMAX_BY_AXIS)
        goal = _Goal(torch, model, calibration)
        seen, unseen = _split(len(calibration.feeds))
        before = goal.fidelity(model, unseen)
        with deterministic(torch, self.seed):
            graph = TorchGraph(model, goal.target)
            goal.check(graph, model)
            self._learn(torch, graph, goal, seen)
        held = constants(model.graph)
        for name, array in graph.learned():
            replace(held[name], array)
        after = goal.fidelity(model, unseen)
        if not after.nearness > before.nearness:
            raise InvalidInputError.of(
                "fine-tune: answers after it",
                f"{after.nearness:.1f} dB from the source's, on data not learned from",
                f"more than the {before.nearness:.1f} dB before it",
                "More calibration data, more steps or a smaller learning rate may help.",
            )
        count = sum(parameter.numel() for parameter in graph.parameters.values())
        items = sum(goal.items(place) for place in seen)
        return Made(
            model,
            (
                f"{count} weights learned in {self.steps} steps from {items} items; "
                f"{_words(before, after)}",
            ),
        )

    def _learn(self, torch: Any, graph: TorchGraph, goal: _Goal, seen: Sequence[int]) -> None:
        optimiser = torch.optim.Adam(graph.parameters.values(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        order: list[int] = []
        for step in range(self.steps):
            if step % _TELL_EVERY == 0:
                send_message(f"{step} of {self.steps} steps done")
            order = order or torch.randperm(len(seen)).tolist()
            optimiser.zero_grad()
            goal.loss(graph, seen[order.pop()], self.temperature).backward()
            optimiser.step()
            schedule.step()


class _Goal:
    """The targets of training: the source's answers to the calibration data.

    Attributes:
        target: the tensor to learn by: the model's output, or what its Softmax reads.
    """

    def __init__(self, torch: Any, model: ModelProto, calibration: CalibrationData) -> None:
        self._torch = torch
        outputs = [value.name for value in model.graph.output]
        if len(outputs) != 1:
            raise InvalidInputError.of("fine-tune: outputs of the model", len(outputs), "1")
        (self._output,) = outputs
        inputs = [value.name for value in model.graph.input]
        self._feeds = [{name: feed[name] for name in inputs} for feed in calibration.feeds]
        self._answers = [{self._output: each[self._output]} for each in calibration.answers]
        last = next((node for node in model.graph.node if self._output in node.output), None)
        self._softmax = last if last is not None and last.op_type == "Softmax" else None
        self.target = self._output if self._softmax is None else self._softmax.input[0]
        wanted: list[NDArray[Any]] = [each[self._output] for each in self._answers]
        if self._softmax is not None:
            wanted = [log_probabilities(each) for each in wanted]
        self._wanted = [torch.from_numpy(np.array(each, np.float32)) for each in wanted]

    def items(self, place: int) -> int:
        """How many items a call has."""
        return len(self._wanted[place])

    def loss(self, graph: TorchGraph, place: int, temperature: float) -> Any:
        """How far the graph is from the source's answers to a call."""
        found, wanted = graph(self._feeds[place]), self._wanted[place]
        if self._softmax is None:
            return self._torch.nn.functional.mse_loss(found, wanted)
        return soft_loss(self._torch, found, wanted, temperature, self._axis)

    def check(self, graph: TorchGraph, model: ModelProto) -> None:
        """InvalidInputError if the graph answers otherwise in PyTorch than when served."""
        with self._torch.no_grad():
            found = graph(self._feeds[0])
            if self._softmax is not None:
                found = self._torch.softmax(found, self._axis)
        wanted = Session(write_model(model)).run(self._feeds[0])[self._output]
        if found.shape != wanted.shape or not np.allclose(found.numpy(), wanted, 1e-3, 1e-4):
            raise InvalidInputError.of(
                "fine-tune: model",
                "other answers in PyTorch than in ONNX Runtime",
                "a model whose operators mean the same in both",
            )

    def fidelity(self, model: ModelProto, places: Sequence[int]) -> Fidelity:
        """How near the model's answers to these calls are to the source's."""
        session = Session(write_model(model))
        found: list[Feed] = [session.run(self._feeds[place]) for place in places]
        return compare([self._answers[place] for place in places], found)

    @property
    def _axis(self) -> int:
        return int(attribute(self._softmax, "axis", -1)) if self._softmax is not None else -1


def _split(calls: int) -> tuple[list[int], list[int]]:
    """The calls to learn from, and those to judge by."""
    if calls < 2:
        raise InvalidInputError.of(
            "fine-tune: calibration data", f"{calls} call of up to 32 items", "33 items or more"
        )
    unseen = list(range(0, calls, _HELD_OUT))
    return [place for place in range(calls) if place % _HELD_OUT], unseen


def _words(before: Fidelity, after: Fidelity) -> str:
    agreement = ""
    if before.top_1_agreement is not None and after.top_1_agreement is not None:
        agreement = (
            f" and the same first class for {after.top_1_agreement:.1%} instead of "
            f"{before.top_1_agreement:.1%}"
        )
    return (
        f"on {after.items} others its answers have an SQNR of {after.nearness:.1f} dB instead of "
        f"{before.nearness:.1f}{agreement}"
    )
