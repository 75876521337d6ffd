"""From an ONNX file to a TensorRT plan: parse, choose shapes and precision, compile.

https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/python-api-docs.html
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.vocabulary import Precision, TensorSpec, Variant

logger = logging.getLogger(__name__)

Shape = tuple[int, ...]

OPT_BATCH: Final = 8
MAX_BATCH: Final = 32
MAX_SIDE: Final = 1024
"""Most that a free axis beside the batch may be: memory is planned for the largest shape."""

_FREE_SIDE: Final = 224
_WORKSPACE_BYTES: Final = 1 << 30
_MESSAGES_KEPT: Final = 8
_REDUCED: Final = {Precision.FP16: "FP16", Precision.BF16: "BF16"}


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """The shapes of one input that a plan is compiled for: any from least to most, best at opt."""

    name: str
    least: Shape
    opt: Shape
    most: Shape


def shape_profiles(inputs: Sequence[TensorSpec], side_px: int | None) -> tuple[ShapeProfile, ...]:
    """The shapes to compile for: batches of 1 to 32, other free axes from 1 to 1024.

    Args:
        inputs: the graph's; a free size is -1.
        side_px: the size expected of free axes after the first; 224 if None.
    """
    usual = min(side_px or _FREE_SIDE, MAX_SIDE)

    def filled(shape: Shape, batch: int, side: int) -> Shape:
        free = (batch, *[side] * (len(shape) - 1))
        return tuple(b if a == -1 else a for a, b in zip(shape, free, strict=True))

    return tuple(
        ShapeProfile(
            spec.name,
            filled(spec.shape, 1, 1),
            filled(spec.shape, OPT_BATCH, usual),
            filled(spec.shape, MAX_BATCH, MAX_SIDE),
        )
        for spec in inputs
    )


def make_log(trt: Any) -> Any:
    """A TensorRT logger that passes on to Python's, and keeps the last errors in ``errors``."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors = [*self.errors, msg][-_MESSAGES_KEPT:]
            else:
                logger.debug("TensorRT: %s", msg)

    return Log()


def build_plan(
    trt: Any, log: Any, data: bytes, variant: Variant, profiles: Sequence[ShapeProfile]
) -> bytes:
    """Compile an ONNX file for the card in this process.

    A graph is computed in the types it is written in, so that its accuracy is what was measured.
    Only where the variant says fp16 or bf16 of a float32 graph may TensorRT choose those.

    Args:
        trt: the module ``tensorrt``.
        log: by ``make_log``.
        data: the file, checked.
        variant: what is registered.
        profiles: one for each input with a free axis.

    Raises:
        EnvironmentUnfitError: it has an operator that TensorRT lacks, or cannot be compiled here.
    """
    builder = trt.Builder(log)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    flag = _REDUCED.get(variant.precision)
    if flag is None:
        typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    else:
        typed = 0
        config.set_flag(getattr(trt.BuilderFlag, flag))
    network = builder.create_network(typed)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(data):
        said = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise _unfit(trt, variant, said)
    shapes = builder.create_optimization_profile()
    for profile in profiles:
        shapes.set_shape(profile.name, profile.least, profile.opt, profile.most)
    config.add_optimization_profile(shapes)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise _unfit(trt, variant, log.errors)
    return bytes(plan)


def _unfit(trt: Any, variant: Variant, said: Sequence[str]) -> EnvironmentUnfitError:
    reason = said[-1].strip().splitlines()[0][:300].rstrip(".") if said else "no reason given"
    return EnvironmentUnfitError(
        f"TensorRT {trt.__version__} cannot compile {variant.id}: {reason}. "
        "Register it with the engine onnxruntime-tensorrt, which leaves such parts to CUDA."
    )
