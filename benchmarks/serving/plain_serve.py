"""Plain Ray Serve doing the same work: two replicas, ``@serve.batch``, ONNX Runtime in a thread.

python benchmarks/serving/plain_serve.py ARTIFACT PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=2, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.1})
class Classifier:
    """The code of Serve's batching guide, with inference off the event loop."""

    def __init__(self, artifact: str) -> None:
        from front_door import open_session

        self.session = open_session(artifact)
        self.name = self.session.get_inputs()[0].name

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
    async def classify(self, images: list[np.ndarray]) -> list[bytes]:
        batch = images[0] if len(images) == 1 else np.concatenate(images)
        (scores,) = await asyncio.to_thread(self.session.run, None, {self.name: batch})
        return [row.tobytes() for row in scores]

    async def __call__(self, request: Request) -> Response:
        pixels = np.frombuffer(await request.body(), np.uint8).reshape(1, 224, 224, 3)
        return Response(await self.classify(pixels), media_type="application/octet-stream")


if __name__ == "__main__":
    artifact, port = sys.argv[1], int(sys.argv[2])
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
