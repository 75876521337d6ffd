"""TensorRT on an NVIDIA card, from the same ONNX files as every other engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.variants.artifacts import read_verified
from modelless.variants.graphs.inspection import read_signature
from modelless.variants.runtimes.base import Tensors
from modelless.variants.runtimes.cuda_runtime import Cuda, Stream
from modelless.variants.runtimes.engine_cache import EngineCache, EngineKey
from modelless.variants.runtimes.loading import MeasuredVariant, load_measured
from modelless.variants.runtimes.tensorrt_build import (
    ShapeProfile,
    build_plan,
    make_log,
    shape_profiles,
)
from modelless.variants.runtimes.tensorrt_execution import Execution, Shape
from modelless.variants.vocabulary import Engine, TensorSpec, Variant

logger = logging.getLogger(__name__)

MAX_GRAPHS: Final = 4
"""Most CUDA graphs of a variant: each has a context with activation memory of its own."""


class TensorRt:
    """The engine ``tensorrt``. Compiled plans are cached, see ``EngineCache``."""

    def __init__(self, cache: EngineCache | None = None) -> None:
        import tensorrt

        self._trt: Any = tensorrt
        self._cuda = Cuda()
        self._cache = cache or EngineCache()

    @property
    def engine(self) -> Engine:
        """Which engine this is."""
        return Engine.TENSORRT

    def load(
        self, variant: Variant, artifact: Path, *, threads: int, warm_up: Sequence[Tensors] = ()
    ) -> TensorRtVariant:
        """See ``Runtime.load``. The first time compiles, which takes minutes for a large model.

        Batches of the shapes in ``warm_up``, of the first four, are replayed as CUDA graphs: for
        small batches launching the kernels takes longer than running them. ``threads`` count for
        nothing: the card computes.
        """

        def open_variant() -> TensorRtVariant:
            data = read_verified(
                artifact, variant.artifact_sha256, size_bytes=variant.artifact_bytes
            )
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

        return load_measured(variant, threads, open_variant, warm_up, self._cuda)

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
