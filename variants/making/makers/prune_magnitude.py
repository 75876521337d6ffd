"""Unstructured pruning: sets the smallest weights to zero, and finds the share of each layer.

Weights of all layers are compared by their LAMP score, ``w^2`` over the sum of the squares of the
weights of the layer that are not smaller: Lee et al., "Layer-Adaptive Sparsity for the
Magnitude-Based Pruning", ICLR 2021, https://arxiv.org/abs/2010.07611. Plain magnitudes cannot be
compared, because a layer with folded batch normalisation may have any scale. It does not retrain;
``fine-tune`` may follow.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from pydantic import Field

from modelless.variants.graphs.weights import constants, replace, require_weights
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.maker import Made, Maker


class PruneMagnitude(Maker):
    """The smallest weights become zero. It buys no latency: dense kernels multiply by zero too."""

    name: ClassVar[str] = "prune-magnitude"

    sparsity: float = Field(0.5, gt=0, lt=1, description="share of the weights to make zero")

    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """See ``Maker.make``."""
        layers = require_weights(model, self.name, "Prune before quantising.")
        found = {weight.name: weight.array for weight in layers}
        scores = {name: lamp_scores(array) for name, array in found.items()}
        pooled = np.concatenate([score.ravel() for score in scores.values()])
        last = max(round(self.sparsity * pooled.size), 1) - 1
        threshold = np.partition(pooled, last)[last]
        held = constants(model.graph)
        for name, array in found.items():
            replace(held[name], np.where(scores[name] <= threshold, np.float32(0), array))
        zeros = int((pooled <= threshold).sum())
        return Made(
            model,
            (
                f"{zeros / pooled.size:.1%} of {pooled.size} weights are zero",
                "no engine here has sparse kernels, so it takes the time and the memory of the "
                "dense model; only its compressed file is smaller",
            ),
        )


def lamp_scores(weight: NDArray[Any]) -> NDArray[np.float64]:
    """LAMP score of each weight of a layer, float64 of its shape, 0 to 1; the largest has 1."""
    squares = weight.astype(np.float64).ravel() ** 2
    order = np.argsort(squares, kind="stable")
    not_smaller = np.cumsum(squares[order][::-1])[::-1]
    scores = np.empty_like(squares)
    scores[order] = np.divide(
        squares[order], not_smaller, out=np.zeros_like(squares), where=not_smaller > 0
    )
    return scores.reshape(weight.shape)
