"""Feeds a convolutional network with smaller or larger pictures than it was trained on.

Cost falls with the square of the side, and accuracy more slowly: Howard et al., "MobileNets"
(2017), https://arxiv.org/abs/1704.04861, section 3.4 (the resolution multiplier; there with
training, here without).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from pydantic import Field

from modelless.common.errors import InvalidInputError
from modelless.variants.graphs.canonical import at_least_opset
from modelless.variants.graphs.weights import WEIGHTED, add_constant, attribute, constants
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker

_OPSET: Final = 18  # the first whose Resize antialiases and names its axes
_PICTURES: Final = (TensorProto.UINT8, TensorProto.FLOAT)


class Resolution(Maker):
    """The side of the network's own input: of its resize, or of one put in front."""

    name: ClassVar[str] = "resolution"
    tools: ClassVar[tuple[str, ...]] = ("onnx",)

    px: int = Field(ge=1, le=4096, description="side of the network's own input, pixels")

    @property
    def resolution_px(self) -> int:
        """Side of the network's own input, px."""
        return self.px

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        resize = _resize_in_front(model.graph)
        if resize is not None:
            before = _set_side(model.graph, resize, self.px)
            return Made(model, (f"its resize to {before} now goes to {self.px} px",))
        return Made(
            _with_resize(model, self.px), (f"pictures of any size are resized to {self.px} px",)
        )


def _resize_in_front(graph: GraphProto) -> NodeProto | None:
    """The first Resize to constant sizes, if it comes before every weighted layer."""
    held = constants(graph)
    node: NodeProto
    for node in graph.node:
        if node.op_type in WEIGHTED:
            return None
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] in held:
            return node
    return None


def _set_side(graph: GraphProto, resize: NodeProto, px: int) -> str:
    sizes = numpy_helper.to_array(constants(graph)[resize.input[3]]).copy()
    before = "x".join(str(size) for size in sizes)
    axes = attribute(resize, "axes", range(len(sizes)))
    # Where sizes are of all axes, items and channels keep theirs.
    places = range(len(sizes)) if len(axes) == 2 else _picture_axes(sizes)
    for place in places:
        sizes[place] = px
    resize.input[3] = add_constant(graph, f"{resize.name}/sizes", sizes)
    return before


def _picture_axes(sizes: Any) -> tuple[int, int]:
    last = len(sizes) == 4 and sizes[3] in (1, 3, 4) and sizes[1] not in (1, 3, 4)
    return (1, 2) if last else (len(sizes) - 2, len(sizes) - 1)


def _with_resize(model: ModelProto, px: int) -> ModelProto:
    model = at_least_opset(model, _OPSET)
    graph = model.graph
    picture = graph.input[0]
    dims = picture.type.tensor_type.shape.dim
    free = [axis for axis, size in enumerate(dims) if axis > 0 and not size.HasField("dim_value")]
    if (
        len(graph.input) != 1
        or len(dims) != 4
        or len(free) != 2
        or picture.type.tensor_type.elem_type not in _PICTURES
    ):
        shapes = {
            value.name: [
                size.dim_value or size.dim_param or "?" for size in value.type.tensor_type.shape.dim
            ]
            for value in graph.input
        }
        raise InvalidInputError.of(
            "resolution: inputs",
            shapes,
            "a Resize to constant sizes in front, or one input (uint8 or float32) of four axes "
            "whose height and width, and only these, are free besides the items",
        )
    resized = f"{picture.name}/resized"
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == picture.name:
                node.input[index] = resized
    sizes = add_constant(graph, f"{resized}/sizes", np.array([px, px], np.int64))
    graph.node.insert(
        0,
        helper.make_node(
            "Resize",
            [picture.name, "", "", sizes],
            [resized],
            name=resized,
            mode="linear",
            coordinate_transformation_mode="half_pixel",
            antialias=1,
            axes=free,
        ),
    )
    return model
