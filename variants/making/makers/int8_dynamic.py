"""Dynamic int8: rounds weights beforehand, and takes the ranges of activations from each batch.

ONNX Runtime's ``quantize_dynamic``,
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html. It needs no
calibration data. It quantises only matrix products and recurrent layers, as ONNX Runtime advises:
convolutions quantised in this way (``ConvInteger``) have no fast kernels on CPUs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import onnx
from onnx import ModelProto
from pydantic import Field

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.weights import weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.session import import_onnxruntime
from modelless.variants.vocabulary import Precision

# A message that ONNX Runtime logs on seeing a DequantizeLinear, though it only restores pixels.
_GUESS: Final = "Please check if the model is already quantized"
_OPERATORS: Final = ("Gemm", "MatMul", "LSTM", "Attention")


class Int8Dynamic(Maker):
    """8-bit matrix products whose activations are ranged batch by batch; convolutions stay."""

    name: ClassVar[str] = "int8-dynamic"
    precision: ClassVar[Precision | None] = Precision.INT8
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy")

    per_channel: bool = Field(True, description="a scale for each output channel of a weight")
    reduce_range: bool = Field(
        False,
        description="7-bit weights: on x86 without VNNI, OpenVINO saturates sums of 8-bit ones",
    )

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        import_onnxruntime()
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata

        found = weights(model)
        taken = [weight for weight in found if weight.node.op_type in _OPERATORS]
        if not taken and not any(node.op_type == "LSTM" for node in model.graph.node):
            raise InvalidInputError.of(
                "int8-dynamic: model",
                "no matrix product with a constant float32 weight",
                "one of " + ", ".join(_OPERATORS),
                "int8-static takes convolutions.",
            )
        add_pre_process_metadata(model)  # else it logs advice, which recipes follow by `optimise`
        with tempfile.TemporaryDirectory() as folder, _without_message(_GUESS):
            path = Path(folder) / "int8.onnx"
            quantize_dynamic(
                model,
                path,
                op_types_to_quantize=list(_OPERATORS),
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                weight_type=QuantType.QInt8,
            )
            result = onnx.load_model_from_string(path.read_bytes())
        total = sum(weight.array.size for weight in found)
        share = sum(weight.array.size for weight in taken) / total if total else 1.0
        return Made(result, (f"{share:.0%} of the weights are 8-bit; the rest stays as it was",))


@contextmanager
def _without_message(part: str) -> Iterator[None]:
    """Messages of the root logger that contain ``part`` are dropped."""

    def wanted(record: logging.LogRecord) -> bool:
        return part not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(wanted)
    try:
        yield
    finally:
        root.removeFilter(wanted)
