"""TensorRT on an NVIDIA card, from the same ONNX files as every other engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.variants.graphs.inspection import read_signature
from modelless.variants.runtimes.cuda_runtime import Cuda, Graph, Stream, TensorBuffer
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import MeasuredVariant, load_measured
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.signature import dtype_of
from modelless.variants.vocabulary import Engine, Precision, TensorSpec, Variant

logger = logging.getLogger(__name__)

Shape = tuple[int, ...]

# -- from an ONNX file to a plan: parse, choose shapes and precision, compile ----------------------
#
# https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/python-api-docs.html

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


# -- running an engine: a context, its buffers, and a CUDA graph for shapes that stay -------------


class Execution:
    """A context of an engine with buffers of its own; one caller at a time.

    A captured graph is bound to its context, shapes and addresses, so each graph has an execution
    to itself, which is never run with other shapes.
    """

    def __init__(
        self,
        engine: Any,
        cuda: Cuda,
        stream: Stream,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        context = engine.create_execution_context()
        if context is None:
            raise EnvironmentUnfitError("TensorRT has no memory left for another context")
        self._context = context
        self._stream = stream
        self._inputs, self._outputs = inputs, outputs
        self._buffers = {spec.name: TensorBuffer(cuda) for spec in (*inputs, *outputs)}
        self._dtypes = {spec.name: dtype_of(spec.datatype) for spec in (*inputs, *outputs)}
        self._shapes: dict[str, Shape] = {}
        self._graph: Graph | None = None

    def capture(self, tensors: Tensors) -> None:
        """Record a run of these shapes, to be replayed by ``run``.

        Raises:
            EnvironmentUnfitError: it cannot be captured; without a graph it runs as before.
        """
        self.run(tensors)  # the first enqueue of a shape sets up what must not be captured
        self._graph = self._stream.capture(self._queue)

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch whose names, datatypes and ranks were checked.

        Raises:
            EnvironmentUnfitError: TensorRT or CUDA failed.
        """
        if self._graph is None:
            self._bind({name: array.shape for name, array in tensors.items()})
        for name, array in tensors.items():
            np.copyto(self._array(name), array)
        if self._graph is None:
            self._queue()
        else:
            self._stream.launch(self._graph)
        self._stream.wait()
        return {spec.name: self._array(spec.name).copy() for spec in self._outputs}

    def close(self) -> None:
        """Give everything back."""
        if self._graph is not None:
            self._graph.close()
        for buffer in self._buffers.values():
            buffer.free()
        self._context = None

    def _bind(self, shapes: Mapping[str, Shape]) -> None:
        """Tell the context the inputs' shapes, learn the outputs', make room for all of them."""
        if all(self._shapes.get(name) == shape for name, shape in shapes.items()):
            return
        self._shapes = {}  # bound to nothing, should one of the following fail
        bound = dict(shapes)
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise EnvironmentUnfitError(f"TensorRT does not take {name} of shape {list(shape)}")
        for spec in self._outputs:
            shape = tuple(self._context.get_tensor_shape(spec.name))
            if min(shape, default=0) < 0:
                raise EnvironmentUnfitError(
                    f"TensorRT cannot tell the shape of {spec.name} before it runs; use the "
                    "engine onnxruntime-cuda"
                )
            bound[spec.name] = shape
        for name, buffer in self._buffers.items():
            buffer.hold(math.prod(bound[name]) * self._dtypes[name].itemsize)
            self._context.set_tensor_address(name, buffer.device)
        self._shapes = bound

    def _queue(self) -> None:
        for spec in self._inputs:
            self._stream.copy_in(self._buffers[spec.name], self._size_bytes(spec.name))
        if not self._context.execute_async_v3(self._stream.handle):
            raise EnvironmentUnfitError("TensorRT could not start the batch")
        for spec in self._outputs:
            self._stream.copy_out(self._buffers[spec.name], self._size_bytes(spec.name))

    def _array(self, name: str) -> NDArray[Any]:
        return self._buffers[name].array(self._shapes[name], self._dtypes[name])

    def _size_bytes(self, name: str) -> int:
        return math.prod(self._shapes[name]) * self._dtypes[name].itemsize


MAX_GRAPHS: Final = 4
"""Most CUDA graphs of a variant: each has a context with activation memory of its own."""


class TensorRt:
    """The engine ``tensorrt``. Compiled plans are cached, see ``EngineCache``."""

    engine = Engine.TENSORRT

    def __init__(self, cache: EngineCache | None = None) -> None:
        import tensorrt

        self._trt: Any = tensorrt
        self._cuda = Cuda()
        self._cache = cache or EngineCache()

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> TensorRtVariant:
        """See ``Runtime.load``. The first time compiles, which takes minutes for a large model.

        Batches of the shapes in ``warm_up``, of the first four, are replayed as CUDA graphs: for
        small batches launching the kernels takes longer than running them. ``threads`` count for
        nothing: the card computes.
        """

        def open_variant(data: bytes) -> TensorRtVariant:
            inputs, outputs = read_signature(data, variant.id)
            profiles = shape_profiles(inputs, variant.resolution_px)
            engine = self._engine(data, variant, profiles)
            loaded = TensorRtVariant(variant, threads, engine, self._cuda, inputs, outputs)
            try:
                for tensors in warm_up[:MAX_GRAPHS]:
                    loaded.capture(tensors)
            except BaseException:
                loaded.unload()
                raise
            return loaded

        return load_measured(variant, artifact, threads, open_variant, warm_up, self._cuda)

    def _engine(self, data: bytes, variant: Variant, profiles: tuple[ShapeProfile, ...]) -> Any:
        """The compiled engine, from the cache if it is there and TensorRT takes it."""
        log = make_log(self._trt)
        runtime = self._trt.Runtime(log)
        key = EngineKey(
            artifact_sha256=variant.artifact_sha256,
            device_name=self._cuda.device_name,
            compute_capability=self._cuda.compute_capability,
            compiler=f"tensorrt-{self._trt.__version__}",
            precision=variant.precision.value,
            profile=repr(profiles),
        )
        plan = self._cache.read(key)
        engine = runtime.deserialize_cuda_engine(plan) if plan is not None else None
        if engine is None:
            plan = build_plan(self._trt, log, data, variant, profiles)
            self._cache.write(key, plan)
            engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            reason = log.errors[-1] if log.errors else "no reason given"
            raise EnvironmentUnfitError(
                f"TensorRT {self._trt.__version__} cannot load what it compiled of {variant.id}: "
                f"{reason}. If the card's memory is full, unload something."
            )
        return engine


class TensorRtVariant(MeasuredVariant):
    """A loaded variant. One caller at a time, from any thread; the GIL is released while it waits.

    Shapes that were captured are replayed as graphs; the others share one more context, whose
    buffers grow to the largest batch that came.
    """

    __slots__ = ("_any_shape", "_cuda", "_engine", "_graphs", "_inputs", "_outputs", "_stream")

    def __init__(
        self,
        variant: Variant,
        threads: int,
        engine: Any,
        cuda: Cuda,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        super().__init__(variant, threads)
        self._engine = engine
        self._cuda = cuda
        self._inputs, self._outputs = inputs, outputs
        self._stream = Stream(cuda)
        self._graphs: dict[tuple[Shape, ...], Execution] = {}
        self._any_shape: Execution | None = self._execution()

    def capture(self, tensors: Tensors) -> None:
        """Replay batches of this shape as a CUDA graph from now on, if it can be captured."""
        self._check_inputs(self._inputs, tensors)
        shapes = self._shapes(tensors)
        if shapes in self._graphs:
            return
        execution = self._execution()
        try:
            execution.capture(tensors)
        except ModellessError as error:  # e.g. a layer that waits for the host
            logger.info("%s runs without a CUDA graph: %s", self.variant.id, error)
            execution.close()
        else:
            self._graphs[shapes] = execution

    def infer(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """See ``MeasuredVariant.infer``. Shapes outside the plan's are refused as inputs."""
        if self._any_shape is None:
            self._refuse_unloaded()
        self._check_inputs(self._inputs, inputs)
        shapes = self._shapes(inputs)
        execution = self._graphs.get(shapes)
        if execution is None:
            self._check_compiled_for(shapes)
            execution = self._any_shape
        try:
            return execution.run(inputs)
        except EnvironmentUnfitError as error:
            raise self._failed_running(str(error)) from error

    def unload(self) -> None:
        """Free everything. A second time does nothing."""
        if self._any_shape is None:
            return
        for execution in (self._any_shape, *self._graphs.values()):
            execution.close()
        self._graphs.clear()
        self._any_shape = self._engine = None
        self._stream.close()

    def _execution(self) -> Execution:
        return Execution(self._engine, self._cuda, self._stream, self._inputs, self._outputs)

    def _shapes(self, tensors: Tensors) -> tuple[Shape, ...]:
        return tuple(tensors[spec.name].shape for spec in self._inputs)

    def _check_compiled_for(self, shapes: Sequence[Shape]) -> None:
        for spec, shape in zip(self._inputs, shapes, strict=True):
            least, _, most = (
                tuple(each) for each in self._engine.get_tensor_profile_shape(spec.name, 0)
            )
            if not all(
                low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
            ):
                raise self._refuse_inputs(
                    f"{spec.name} is of shape {list(shape)}",
                    f"{list(least)} to {list(most)}, which it is compiled for",
                )
