"""Static int8: integer convolutions and matrix products, ranges measured beforehand.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", CVPR 2018, https://arxiv.org/abs/1712.05877, section 2; weights by channel as in
Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference" (2018),
https://arxiv.org/abs/1806.08342, section 3. The graph is written by ONNX Runtime's quantiser in the
QDQ form (pairs of QuantizeLinear and DequantizeLinear), which other engines read too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from pydantic import Field

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import at_least_opset, refill, write_model
from modelless.variants.graphs.weights import (
    add_constant,
    attribute,
    constants,
    readers,
    replace,
    require_weights,
    weights,
)
from modelless.variants.making.activation_ranges import (
    ActivationRange,
    Method,
    activations,
    measure_ranges,
)
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.fidelity import compare, run_all
from modelless.variants.making.maker import Made, Maker
from modelless.variants.making.makers.optimise import inferred
from modelless.variants.making.session import Session, import_onnxruntime
from modelless.variants.vocabulary import Precision

# -- bias correction ------------------------------------------------------------------------------
#
# Rounded weights shift the mean of a channel, E[y'] - E[y], for all inputs alike. The correction
# subtracts the shift from the bias, which costs nothing when served: Nagel et al., "Data-Free
# Quantization Through Weight Equalization and Bias Correction", ICCV 2019,
# https://arxiv.org/abs/1906.04721, section 4.2; the means are measured on data as in its appendix
# D. It goes layer by layer, so that each is corrected for what is left of the shifts before it.

_CHANNEL_AXIS = 1
_INT32 = np.iinfo(np.int32)


def with_biases(model: ModelProto) -> None:
    """Give convolutions and Gemms that have none a bias of zeros, so that there is one to correct.

    Args:
        model: float32; changed.
    """
    for weight in weights(model):
        node = weight.node
        if node.op_type not in ("Conv", "Gemm") or (len(node.input) > 2 and node.input[2]):
            continue
        channels = weight.array.shape[0]
        if node.op_type == "Gemm" and not attribute(node, "transB", 0):
            channels = weight.array.shape[1]
        zeros = np.zeros(channels, np.float32)
        name = add_constant(model.graph, f"{node.name}/bias", zeros)
        node.input[:] = [*node.input[:2], name]


def correct_biases(model: ModelProto, quantised: ModelProto, calibration: CalibrationData) -> int:
    """Correct the integer biases of ``quantised``; it takes one run of the data for each.

    A layer whose bias is not an int32 constant of its own, as a matrix product's is not, stays as
    it is.

    Args:
        model: the float32 model, whose layers bear the same names.
        quantised: its form with pairs of QuantizeLinear and DequantizeLinear; changed.
        calibration: one call at least.

    Returns:
        How many layers were corrected.
    """
    outputs = {weight.node.name: weight.node.output[0] for weight in weights(model)}
    biases = [bias for bias in _biases(quantised.graph) if bias.layer.name in outputs]
    if not biases:
        return 0
    wanted = _means(model, [outputs[bias.layer.name] for bias in biases], calibration)
    for bias in biases:
        name = bias.layer.output[0]
        shift = _means(quantised, [name], calibration)[name] - wanted[outputs[bias.layer.name]]
        codes = numpy_helper.to_array(bias.codes).astype(np.float64) - shift / bias.scale
        replace(bias.codes, np.clip(np.rint(codes), _INT32.min, _INT32.max).astype(np.int32))
    return len(biases)


@dataclass(frozen=True, slots=True)
class _Bias:
    """An integer bias: int32 [channels], worth ``scale`` (float64, one or [channels]) a step."""

    layer: NodeProto
    codes: TensorProto
    scale: NDArray[np.float64]


def _biases(graph: GraphProto) -> list[_Bias]:
    """Of convolutions and Gemms, in the order in which they run."""
    held, counts = constants(graph), readers(graph)
    restored = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    found = []
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3:
            continue
        restore = restored.get(node.input[2])
        if restore is None or counts[node.input[2]] != 1:
            continue
        codes, scale = held.get(restore.input[0]), held.get(restore.input[1])
        if codes is None or scale is None or codes.data_type != TensorProto.INT32:
            continue
        if counts[restore.input[0]] == 1:
            steps = numpy_helper.to_array(scale).astype(np.float64)
            found.append(_Bias(node, codes, steps))
    return found


def _means(
    model: ModelProto, names: list[str], calibration: CalibrationData
) -> dict[str, NDArray[np.float64]]:
    """Means by channel, float64 [channels], of tensors [items, channels, ...]."""
    sums: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(names, 0)
    for name, values in activations(model, names, calibration):
        others = tuple(axis for axis in range(values.ndim) if axis != _CHANNEL_AXIS)
        total = values.sum(axis=others, dtype=np.float64)
        sums[name] = sums[name] + total if name in sums else total
        counts[name] += values.size // values.shape[_CHANNEL_AXIS]
    return {name: sums[name] / counts[name] for name in sums}


# The layers that bear rounding worst: each is quantised alone and the model's outputs compared.
#
# The signal-to-quantisation-noise ratio of the outputs, one layer at a time, is the sensitivity by
# which mixed precision is commonly assigned: Wu et al., "Integer Quantization for Deep Learning
# Inference" (2020), https://arxiv.org/abs/2004.09602, section 6.1 ("partial quantization").

_CALLS: Final = 8


def rank_layers(
    model: ModelProto,
    quantise_alone: Callable[[str], ModelProto],
    layers: Sequence[str],
    calibration: CalibrationData,
) -> list[tuple[str, float]]:
    """Layers and the SQNR, dB, of the outputs when each is quantised alone; the worst first.

    Args:
        model: the float model.
        quantise_alone: the model with only that layer quantised.
        layers: names of nodes.
        calibration: its first calls are compared on.
    """
    some = CalibrationData(calibration.feeds[:_CALLS])
    source = run_all(Session(write_model(model)), some)
    found = []
    for layer in layers:
        made = run_all(Session(write_model(quantise_alone(layer))), some)
        found.append((layer, compare(source, made).nearness))
    return sorted(found, key=lambda each: each[1])


# Operators that have integer kernels, or pass integers on as they are. The last ones of networks
# (Softmax, Sigmoid) are left out: outputs in steps of 1/256 would tie classes.
_OPERATORS: Final = (
    *("Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "Flatten", "Gemm"),
    *("GlobalAveragePool", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape"),
    *("Resize", "Split", "Squeeze", "Transpose", "Unsqueeze"),
)
_OPSET: Final = 13  # the first whose DequantizeLinear has a scale for each channel
_OWN_OUTPUT: Final = frozenset({"Gemm", "MatMul"})


class Int8Static(Maker):
    """Integer arithmetic throughout, the activations' ranges measured on calibration data."""

    name: ClassVar[str] = "int8-static"
    precision: ClassVar[Precision | None] = Precision.INT8
    needs_calibration: ClassVar[bool] = True
    tools: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy")

    calibration: Method = Field("min-max", description="rule for the activations' ranges")
    percentile: float = Field(
        99.99, gt=50, le=100, description="per cent of the values that `percentile` keeps"
    )
    per_channel: bool = Field(True, description="a scale for each output channel of a weight")
    reduce_range: bool = Field(
        False,
        description="7-bit weights: on x86 without VNNI, OpenVINO saturates sums of 8-bit ones",
    )
    keep_worst: int = Field(
        0, ge=0, description="number of layers left in float32: those that disturb the outputs most"
    )
    keep_float: list[str] = Field(
        default_factory=list, description="names of nodes left in float32 besides"
    )
    bias_correction: bool = Field(
        False, description="corrects biases for the change of the layers' means by rounding"
    )

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        model = inferred(at_least_opset(model, _OPSET))
        _flatten_biases(model)
        found = require_weights(model, self.name, "A model is quantised once.")
        layers = [weight.node.name for weight in found]
        if self.bias_correction:
            with_biases(model)
        if self.keep_worst >= len(layers):
            raise InvalidInputError.of(
                "int8-static.keep_worst", self.keep_worst, f"less than {len(layers)}, its layers"
            )
        names = {node.name for node in model.graph.node}
        for name in self.keep_float:
            if name not in names:
                raise InvalidInputError.of(
                    "int8-static.keep_float", name, "names of the model's nodes"
                )
        ranges = measure_ranges(
            model, _activations(model), calibration, self.calibration, self.percentile
        )
        notes = [f"activation ranges by {self.calibration} over {len(calibration.feeds)} calls"]
        excluded = list(self.keep_float)
        if self.keep_worst:
            ranked = rank_layers(
                model,
                lambda layer: self._quantised(model, ranges, only=[layer]),
                layers,
                calibration,
            )
            worst = ranked[: self.keep_worst]
            excluded += [layer for layer, _ in worst]
            notes.append(
                "kept in float32, with the SQNR of the outputs when each is rounded alone: "
                + ", ".join(f"{layer} ({sqnr_db:.1f} dB)" for layer, sqnr_db in worst)
            )
        made = self._quantised(model, ranges, excluded=excluded)
        if self.bias_correction:
            count = correct_biases(model, made, calibration)
            notes.append(f"biases corrected in {count} of {len(layers)} layers")
        return Made(made, tuple(notes))

    def _quantised(
        self,
        model: ModelProto,
        ranges: dict[str, ActivationRange],
        *,
        only: Sequence[str] = (),
        excluded: Sequence[str] = (),
    ) -> ModelProto:
        import_onnxruntime()
        from onnxruntime.quantization import QDQQuantizer, QuantType, TensorData

        quantizer = QDQQuantizer(
            deepcopy(model),
            self.per_channel,
            self.reduce_range,
            QuantType.QInt8,
            QuantType.QUInt8,
            {
                name: TensorData(lowest=np.float32(found.low), highest=np.float32(found.high))
                for name, found in ranges.items()
            },
            list(only),
            list(excluded),
            list(_OPERATORS),
            {},
        )
        quantizer.quantize_model()
        result: ModelProto = quantizer.model.model
        _free_last_outputs(result)
        return result


def _activations(model: ModelProto) -> Iterator[str]:
    """The float32 tensors, not constant, that quantisable operators read and write."""
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in _values(model)
        if value.type.HasField("tensor_type")
    }
    for node in model.graph.node:
        if node.op_type in _OPERATORS:
            for name in (*node.input, *node.output):
                if kinds.get(name) == TensorProto.FLOAT:
                    yield name


def _flatten_biases(model: ModelProto) -> None:
    """Gemms' biases [1, channels], as scikit-learn's are, become [channels].

    ONNX Runtime's quantiser takes each of a bias's first axis for a channel's.
    """
    held, counts = constants(model.graph), readers(model.graph)
    for node in model.graph.node:
        if node.op_type == "Gemm" and len(node.input) > 2:
            bias = held.get(node.input[2])
            if bias is not None and counts[bias.name] == 1 and list(bias.dims[:-1]) == [1]:
                replace(bias, numpy_helper.to_array(bias)[0])


def _values(model: ModelProto) -> Iterator[ValueInfoProto]:
    constant = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.name not in constant:
            yield value


def _free_last_outputs(model: ModelProto) -> None:
    """Take the rounding off products whose results no integer operator reads.

    Integer matrix products can write float32. Rounding logits only to compute a float Softmax of
    them, or to hand them out, would lose accuracy for nothing.
    """
    graph = model.graph
    counts = readers(graph)
    by_output = {name: node for node in graph.node for name in node.output}
    by_input: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            by_input.setdefault(name, []).append(node)
    dropped = set()
    for restore in graph.node:
        if restore.op_type != "DequantizeLinear":
            continue
        rounding = by_output.get(restore.input[0])
        if rounding is None or rounding.op_type != "QuantizeLinear":
            continue
        layer = by_output.get(rounding.input[0])
        if layer is None or layer.op_type not in _OWN_OUTPUT:
            continue
        following = by_input.get(restore.output[0], [])
        if any(node.op_type in _OPERATORS for node in following):
            continue
        if counts[rounding.input[0]] != 1 or counts[rounding.output[0]] != 1:
            continue
        layer.output[0] = restore.output[0]
        dropped |= {rounding.name, restore.name}
    refill(graph.node, [node for node in graph.node if node.name not in dropped])
