"""Triton's server doing the same work: dynamic batching without delay, two instances.

Needs an interpreter of its own, in which ``pip install nvidia-pytriton onnxruntime`` was done. Its
wheel has Triton's C++ server with the Python backend, so ONNX Runtime runs in two Python threads.

    PYTHON benchmarks/serving/plain_triton.py ARTIFACT PORT
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime


def make_instance(artifact: str) -> object:
    """A function that runs a session of its own, with the thread settings of all peers here."""
    from pytriton.decorators import batch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(artifact, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    @batch
    def classify(image: np.ndarray) -> list[np.ndarray]:
        return session.run(None, {name: image})

    return classify


if __name__ == "__main__":
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    onnxruntime.disable_telemetry_events()
    artifact, port = sys.argv[1], int(sys.argv[2])
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    config = TritonConfig(http_address="127.0.0.1", allow_metrics=False, **ports)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="classifier",
            infer_func=[make_instance(artifact), make_instance(artifact)],
            inputs=[Tensor(name="image", dtype=np.uint8, shape=(224, 224, 3))],
            outputs=[Tensor(name="probabilities", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher()),
            strict=False,
        )
        triton.serve()
