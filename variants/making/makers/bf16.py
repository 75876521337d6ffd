"""Weights rounded to bfloat16 and widened before use; arithmetic stays in float32.

Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training" (2019),
https://arxiv.org/abs/1905.12322: float32's range with 8 bits of precision. A constant behind a Cast
is the form that engines recognise as compressed weights. Every engine runs it; an engine with
bfloat16 arithmetic may use that by its own setting. (ONNX Runtime has no bfloat16 convolution on
CPUs, so a graph that computes in bfloat16 would not load there.)
"""

from __future__ import annotations

from typing import ClassVar, Final

import ml_dtypes
from onnx import ModelProto, TensorProto, helper, numpy_helper

from modelless.variants.graphs.canonical import at_least_opset
from modelless.variants.graphs.weights import replace, require_weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker
from modelless.variants.vocabulary import Precision

_CPU_NOTE: Final = (
    "half the size to store and fetch; ONNX Runtime on a CPU widens the weights at load, so there "
    "it takes the memory and the time of float32"
)


class Bf16(Maker):
    """Weights stored as bfloat16, widened to float32 where they are used."""

    name: ClassVar[str] = "bf16"
    precision: ClassVar[Precision | None] = Precision.BF16

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        model = at_least_opset(model, 13)  # the first whose Cast takes bfloat16
        graph = model.graph
        names = {weight.name for weight in require_weights(model, self.name)}
        casts = []
        for tensor in graph.initializer:
            if tensor.name not in names:
                continue
            wide = tensor.name
            replace(tensor, numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16))
            tensor.name = f"{wide}/bf16"
            casts.append(
                helper.make_node(
                    "Cast", [tensor.name], [wide], name=f"{wide}/widen", to=TensorProto.FLOAT
                )
            )
        graph.node.extend(casts)
        return Made(model, (_CPU_NOTE,))
