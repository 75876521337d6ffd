"""Tiny graphs whose work is known, by which a device is told apart from others.

They are what models are made of: tensors copied, matrices multiplied, filters slid over one channel
each, operators started. Each is run by the engine that runs variants, so that the rates are those a
variant meets, the engine's own kernels included. The roofline model (Williams, Waterman and
Patterson, CACM 2009) needs the first two; the others are where it is known to be too hopeful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 17, 8

MEMORY_BYTES: Final = 64 << 20
"""What a copy in memory is measured with: larger than most last-level caches, and where it is not,
larger than the part of a shared cache that one of many tenants can count on."""

_CACHE_BYTES: Final = {"L2": 1 << 20, "L3": 8 << 20}  # where the host does not say
_MOST_CACHE_BYTES: Final = 32 << 20
_COPIES: Final = 4
_SIDE: Final = 384  # of the matrices: three of them fill an ordinary second-level cache
_CHANNELS, _PICTURE_PX, _KERNEL_PX = 96, 56, 3
_FILTERS: Final = 4
_CHAIN: Final = 256


class Quantity(StrEnum):
    """What a probe measures."""

    COPY = "copy"
    PRODUCT = "product"
    DEPTHWISE = "depthwise"
    RUN = "run"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One graph.

    Attributes:
        quantity: what it measures.
        of: which kind of it: a cache level or ``memory``; a precision; empty if there is but one.
        model: the ONNX file.
        feeds: its input.
        work: of one run: bytes read and written; multiply-adds; operators.
    """

    quantity: Quantity
    of: str
    model: bytes
    feeds: Mapping[str, NDArray[Any]]
    work: int

    @property
    def name(self) -> str:
        """``product fp32``."""
        return f"{self.quantity.value} {self.of}".rstrip()


def probes(cache_bytes: Mapping[str, int]) -> list[Probe]:
    """Every probe, for a device whose caches are of those sizes by level (``L2``, ``L3``)."""
    found = [_copy("memory", MEMORY_BYTES, 1)]
    for level, otherwise in _CACHE_BYTES.items():
        size_bytes = min(cache_bytes.get(level, otherwise), _MOST_CACHE_BYTES)
        found.append(
            _copy(level, size_bytes // 4, _COPIES)
        )  # the rest is for whoever else is in it
    found += [_product("fp32", np.float32), _product("fp16", np.float16), _int8_product()]
    found += [_depthwise(), _int8_depthwise()]
    found += [_chain(Quantity.RUN, 1), _chain(Quantity.CHAIN, _CHAIN)]
    return found


def _copy(level: str, size_bytes: int, times: int) -> Probe:
    """Negation, so many times in a row: an operator that does nothing but read and write."""
    x = np.ones(size_bytes // 4, np.float32)
    work = 2 * times * x.nbytes
    return _probe(Quantity.COPY, level, _in_a_row("Neg", times), [], x, work)


def _chain(quantity: Quantity, length: int) -> Probe:
    x = np.ones(1, np.float32)
    return _probe(quantity, "", _in_a_row("Neg", length), [], x, length)


def _product(precision: str, dtype: DTypeLike) -> Probe:
    x = np.ones((_SIDE, _SIDE), dtype)
    nodes = [helper.make_node("MatMul", ["x0", "w"], ["x1"])]
    weights = [numpy_helper.from_array(x, "w")]
    return _probe(Quantity.PRODUCT, precision, nodes, weights, x, _SIDE**3)


def _int8_product() -> Probe:
    """uint8 activations by int8 weights, as static quantisation writes them."""
    x = np.ones((_SIDE, _SIDE), np.uint8)
    node = helper.make_node("QLinearMatMul", _quantised("x0"), ["x1"])
    weights = _quantised_weight(np.ones((_SIDE, _SIDE), np.int8))
    return _probe(Quantity.PRODUCT, "int8", [node], weights, x, _SIDE**3)


def _depthwise() -> Probe:
    weight = np.ones((_CHANNELS, 1, _KERNEL_PX, _KERNEL_PX), np.float32)
    nodes = [
        helper.make_node("Conv", [f"x{step}", "w"], [f"x{step + 1}"], **_FILTER_ATTRIBUTES)
        for step in range(_FILTERS)
    ]
    return _filters("fp32", nodes, [numpy_helper.from_array(weight, "w")], np.float32)


def _int8_depthwise() -> Probe:
    weight = np.ones((_CHANNELS, 1, _KERNEL_PX, _KERNEL_PX), np.int8)
    nodes = [
        helper.make_node(
            "QLinearConv", _quantised(f"x{step}"), [f"x{step + 1}"], **_FILTER_ATTRIBUTES
        )
        for step in range(_FILTERS)
    ]
    return _filters("int8", nodes, _quantised_weight(weight), np.uint8)


_FILTER_ATTRIBUTES: Final[dict[str, Any]] = {"group": _CHANNELS, "pads": [_KERNEL_PX // 2] * 4}


def _filters(
    precision: str, nodes: Sequence[NodeProto], weights: Sequence[TensorProto], dtype: DTypeLike
) -> Probe:
    x = np.ones((1, _CHANNELS, _PICTURE_PX, _PICTURE_PX), dtype)
    work = _FILTERS * x.size * _KERNEL_PX**2
    return _probe(Quantity.DEPTHWISE, precision, nodes, weights, x, work)


def _quantised(x: str) -> list[str]:
    return [x, "scale", "x_zero", "w", "scale", "w_zero", "scale", "x_zero"]


def _quantised_weight(weight: NDArray[Any]) -> list[TensorProto]:
    return [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.uint8), "x_zero"),
        numpy_helper.from_array(np.array(0, np.int8), "w_zero"),
    ]


def _in_a_row(operator: str, times: int) -> list[NodeProto]:
    return [helper.make_node(operator, [f"x{i}"], [f"x{i + 1}"]) for i in range(times)]


def _probe(
    quantity: Quantity,
    of: str,
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    x: NDArray[Any],
    work: int,
) -> Probe:
    """A probe of nodes from ``x0`` to the last one's output, both of ``x``'s shape and type."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        quantity.value,
        [helper.make_tensor_value_info("x0", kind, x.shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], kind, x.shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return Probe(quantity, of, model.SerializeToString(), {"x0": x}, work)
