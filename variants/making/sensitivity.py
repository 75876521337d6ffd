"""Which layers bear rounding worst: each is quantised alone and the model's outputs compared.

The signal-to-quantisation-noise ratio of the outputs, one layer at a time, is the sensitivity by
which mixed precision is commonly assigned: Wu et al., "Integer Quantization for Deep Learning
Inference" (2020), https://arxiv.org/abs/2004.09602, section 6.1 ("partial quantization").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onnx import ModelProto

from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.canonical import write_model
from modelless.variants.making.fidelity import compare, run_all
from modelless.variants.making.session import Session

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
        found.append((layer, compare(source, made).sqnr_db))
    return sorted(found, key=lambda each: each[1])
