"""Half precision: weights and arithmetic in IEEE binary16, inputs and outputs as they were.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, https://arxiv.org/abs/1710.03740;
the conversion is ONNX Runtime's (``onnxruntime.transformers.float16``). Values beyond
65504 are clipped, and operators without a half-precision form stay in float32 between casts.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, Final

from onnx import ModelProto, TensorProto

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.makers.optimise import inferred
from modelless.variants.making.session import import_onnxruntime
from modelless.variants.vocabulary import Precision

# Their scales may be half precision only from opset 19 on, and what they are for is exactness.
_STAY: Final = ("QuantizeLinear", "DequantizeLinear")
_CPU_NOTE: Final = (
    "for GPUs: x86 processors have no half-precision kernels in ONNX Runtime, which casts to "
    "float32 and back there, so on them it is smaller but not quicker"
)


class Fp16(Maker):
    """IEEE half precision for weights and arithmetic; inputs and outputs keep their types."""

    name: ClassVar[str] = "fp16"
    precision: ClassVar[Precision | None] = Precision.FP16
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy")

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        import_onnxruntime()
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # one for every value that is clipped
            result = convert_float_to_float16(
                inferred(model),
                keep_io_types=True,
                disable_shape_infer=True,
                op_block_list=[*DEFAULT_OP_BLOCK_LIST, *_STAY],
            )
        if not any(tensor.data_type == TensorProto.FLOAT16 for tensor in result.graph.initializer):
            raise InvalidInputError.of("fp16: model", "no float32 weights", "some float32 weights")
        return Made(result, (_CPU_NOTE,))
