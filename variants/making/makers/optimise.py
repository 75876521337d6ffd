"""Graph optimisation once, before serving: folds constants and fuses operators.

ONNX Runtime's offline optimisation,
https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html. Its ``basic``
level writes standard operators only; ``extended`` writes fused operators that only ONNX Runtime
knows. Its third level, layouts, depends on the processor, so it is not offered: a file must run
anywhere, and ONNX Runtime applies that level at load anyway.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar, Final, Literal

import onnx
from onnx import ModelProto, shape_inference
from pydantic import Field

from modelless.common.errors import InvalidInputError
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.session import import_onnxruntime

_ONLY_HERE: Final = "com.microsoft.nchwc"


class Optimise(Maker):
    """ONNX Runtime's offline graph optimisation, kept portable; may fix free sizes."""

    name: ClassVar[str] = "optimise"
    lossless: ClassVar[bool] = True
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")

    level: Literal["basic", "extended"] = Field(
        "basic", description="`basic`: any engine runs it; `extended`: only ONNX Runtime does"
    )
    sizes: dict[str, int] = Field(
        default_factory=dict,
        description="sizes to fix, by the name of the free dimension, e.g. `{N: 1}`",
    )

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        notes = []
        for dimension, size in self.sizes.items():
            _fix(model, dimension, size)
            notes.append(f"{dimension} is fixed to {size}: nothing else is taken any more")
        before = len(model.graph.node)
        result = _optimised(model, self.level)
        if any(node.domain == _ONLY_HERE for node in result.graph.node):
            raise InvalidInputError.of(
                "optimise: model", _ONLY_HERE, "operators of no one processor", "Leave it out."
            )
        notes.append(f"{before} nodes became {len(result.graph.node)}")
        return Made(result, tuple(notes))


def _fix(model: ModelProto, dimension: str, size: int) -> None:
    import_onnxruntime()
    from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_dim_param_fixed

    free = sorted(
        {
            size.dim_param
            for value in model.graph.input
            for size in value.type.tensor_type.shape.dim
            if size.dim_param
        }
    )
    if dimension not in free:
        raise InvalidInputError.of(
            "optimise.sizes", dimension, ", ".join(free) or "none: every size is fixed already"
        )
    if size < 1:
        raise InvalidInputError.of(f"optimise.sizes.{dimension}", size, "1 or more")
    make_dim_param_fixed(model.graph, dimension, size)
    fix_output_shapes(model)


def _optimised(model: ModelProto, level: str) -> ModelProto:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = {
        "basic": runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    }[level]
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        try:
            runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base but Exception
            raise InvalidInputError(f"optimise: ONNX Runtime refuses the model: {error}") from error
        return onnx.load_model_from_string(path.read_bytes())


def inferred(model: ModelProto) -> ModelProto:
    """A copy with the type and shape of every tensor that they can be inferred for."""
    return shape_inference.infer_shapes(model, data_prop=True)
