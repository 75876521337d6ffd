"""Two gateways that share one worker of a pool take turns at it, and over-commit nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from modelless.variants.zoo.fashion_mnist import FashionMnist

from .running import Running, cluster

LIMIT_MS = 400.0
SPAN_S = 5.0
CLIENTS = 8


@pytest.mark.parametrize("gateways", [1, 2])
def test_attainment_does_not_suffer_from_a_second_gateway(live_home: Path, gateways: int) -> None:
    config = f"""
gateways: {{count: {gateways}, device_class: null}}
pools: [{{device_class: cpu-1, workers: 1}}]
"""
    with cluster(live_home, config=config, marker=f"shared{gateways}") as up:
        answers, problems = load(up)
    in_time = sum(float(said["observed_latency_ms"]) <= LIMIT_MS for said in answers)
    asked_by = {str(said["receipt_id"]).rpartition("-")[0] for said in answers}
    assert len(asked_by) == gateways, "HAProxy sent everything to one gateway"
    assert len(answers) > 50
    assert in_time >= 0.97 * (len(answers) + len(problems)), problems[:3]


def load(up: Running) -> tuple[list[dict[str, object]], list[str]]:
    """Clients that ask one query after the other: what the answers said, and the refusals."""
    images, _ = FashionMnist().test_split()
    answers: list[dict[str, object]] = []
    problems: list[str] = []

    def ask() -> None:
        end_s = time.monotonic() + SPAN_S
        tensor = triton.InferInput("image", list(images[:1].shape), "UINT8")
        tensor.set_data_from_numpy(images[:1])
        with triton.InferenceServerClient(up.address, network_timeout=30.0) as client:
            while time.monotonic() < end_s:
                try:
                    result = client.infer(
                        "fashion-mnist", [tensor], parameters={"latency_ms": LIMIT_MS}
                    )
                    answers.append(result.get_response()["parameters"])
                except InferenceServerException as error:
                    problems.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a query hangs"
    return answers, problems
