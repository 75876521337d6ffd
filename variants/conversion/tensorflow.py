"""Keras models, through tf2onnx.

https://github.com/onnx/tensorflow-onnx. A model comes as importable code. ``.keras`` and ``.h5``
files may hold pickled functions and SavedModels name operators that reach files, so none is read:
let a function load it that you name.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from onnx import GraphProto

from modelless.common.errors import InvalidInputError, require
from modelless.variants.conversion.converted import Source, finish, load_model, output_names
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Outputs

_HINT: Final = "pip install tensorflow tf2onnx"
_OPSET: Final = 17


def convert_tensorflow(source: str, inputs: CalibrationData) -> Source:
    """See ``converted.convert``.

    The outputs are called ``output``, or ``output_0``, ``output_1``, ... if there are several. The
    model goes as a function, because ``tf2onnx.convert.from_keras`` fails on Keras 3's Sequential.
    """
    # Its C++ side tells stderr what it found of the processor; 2 leaves warnings out, not errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf2onnx: Any = require("tf2onnx", "conversion", _HINT)
    tensorflow: Any = require("tensorflow", "conversion", _HINT)
    model = load_model(source, tensorflow.keras.Model)
    names = list(inputs.feeds[0])
    signature = [_spec(tensorflow, inputs, name) for name in names]

    def forward(*given: Any) -> Any:
        return model(given[0] if len(given) == 1 else list(given), training=False)

    try:
        made, _ = tf2onnx.convert.from_function(
            tensorflow.function(forward), input_signature=signature, opset=_OPSET
        )
    except Exception as error:  # tf2onnx raises whatever it meets first
        raise InvalidInputError(
            f"conversion: tf2onnx cannot convert {source}: {type(error).__name__}: {error}"
        ) from error
    outputs = output_names(len(made.graph.output))
    _rename_outputs(made.graph, outputs)

    def run(feed: Feed) -> Outputs:
        found = forward(*(tensorflow.constant(feed[name]) for name in names))
        arrays = [np.asarray(each) for each in tensorflow.nest.flatten(found)]
        return dict(zip(outputs, arrays, strict=True))

    return finish(made, run, source, inputs, "tensorflow", {"tensorflow", "tf2onnx"})


def _rename_outputs(graph: GraphProto, names: list[str]) -> None:
    new = {value.name: name for value, name in zip(graph.output, names, strict=True)}
    for value in graph.output:
        value.name = new[value.name]
    for node in graph.node:
        for part in (node.input, node.output):
            part[:] = [new.get(name, name) for name in part]


def _spec(tensorflow: Any, inputs: CalibrationData, name: str) -> Any:
    arrays = [feed[name] for feed in inputs.feeds]
    sizes = [
        size[0] if len(set(size)) == 1 else None
        for size in zip(*(array.shape[1:] for array in arrays), strict=True)
    ]
    return tensorflow.TensorSpec((None, *sizes), arrays[0].dtype, name=name)
