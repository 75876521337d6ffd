"""Plain servers doing the same work: dynamic batching without delay, two instances of the model.

    python benchmarks/serving/plain_peers.py serve ARTIFACT PORT
    PYTHON benchmarks/serving/plain_peers.py triton ARTIFACT PORT

- serve: Ray Serve, two replicas, ``@serve.batch``, ONNX Runtime in a thread.
- triton: needs an interpreter of its own, in which ``pip install nvidia-pytriton onnxruntime`` was
  done. Its wheel has Triton's C++ server with the Python backend, so ONNX Runtime runs in two
  Python threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import numpy as np


def run_serve(artifact: str, port: int) -> None:
    """Run Ray Serve until it is interrupted: the code of its batching guide, with inference off the
    event loop."""
    import ray
    from ray import serve

    @serve.deployment(num_replicas=2, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.1})
    class Classifier:
        def __init__(self, artifact: str) -> None:
            from front_door import open_session

            self.session = open_session(artifact)
            self.name = self.session.get_inputs()[0].name

        @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
        async def classify(self, images):
            batch = images[0] if len(images) == 1 else np.concatenate(images)
            (scores,) = await asyncio.to_thread(self.session.run, None, {self.name: batch})
            return [row.tobytes() for row in scores]

        async def __call__(self, request):
            from starlette.responses import Response

            pixels = np.frombuffer(await request.body(), np.uint8).reshape(1, 224, 224, 3)
            scores = await self.classify(pixels)
            return Response(scores, media_type="application/octet-stream")

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": sys.path[0]}},
    )
    serve.start(http_options={"port": port}, logging_config={"enable_access_log": False})
    serve.run(Classifier.bind(artifact), name="plain", route_prefix="/")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    serve.shutdown()  # or HAProxy outlives everything and keeps the port
    ray.shutdown()


def run_triton(artifact: str, port: int) -> None:
    """Run Triton until it is interrupted."""
    import onnxruntime
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    onnxruntime.disable_telemetry_events()
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    config = TritonConfig(http_address="127.0.0.1", allow_metrics=False, **ports)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="classifier",
            infer_func=[_make_instance(artifact), _make_instance(artifact)],
            inputs=[Tensor(name="image", dtype=np.uint8, shape=(224, 224, 3))],
            outputs=[Tensor(name="probabilities", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher()),
            strict=False,
        )
        triton.serve()


def _make_instance(artifact: str) -> object:
    """A function that runs a session of its own, with the thread settings of all peers here."""
    import onnxruntime
    from pytriton.decorators import batch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(artifact, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    @batch
    def classify(image: np.ndarray) -> list[np.ndarray]:
        return session.run(None, {name: image})

    return classify


if __name__ == "__main__":
    {"serve": run_serve, "triton": run_triton}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
