"""What a pool's workers ask of Ray."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import PoolSettings, parse_settings


def test_rays_own_resources_go_under_the_names_that_ray_takes() -> None:
    wanted = {"GPU": 1.0, "CPU": 2.0, "memory": 1e9, "bench": 0.5}
    assert PoolSettings(device_class="gpu-1", resources=wanted).actor_options() == {
        "num_cpus": 2.0,
        "num_gpus": 1.0,
        "memory": 1e9,
        "resources": {"bench": 0.5},
    }
    assert PoolSettings(device_class="cpu-1").actor_options() == {"resources": {}}


def test_labels_are_rays_label_selector() -> None:
    pool = PoolSettings(device_class="cpu-1", labels={"site": "edge", "zone": "!b"})
    assert pool.actor_options() == {
        "resources": {},
        "label_selector": {"site": "edge", "zone": "!b"},
    }


@pytest.mark.parametrize(
    ("fields", "budget_bytes"),
    [
        ({}, 1 << 30),
        ({"resources": {"GPU": 1}}, 1 << 30),
        ({"resources": {"GPU": 2}}, 1 << 30),
        ({"resources": {"GPU": 0.25}}, 1 << 28),
        ({"resources": {"GPU": 0.25}, "memory_bytes": 1 << 29}, 1 << 29),
    ],
)
def test_workers_of_one_gpu_share_its_memory(fields: dict[str, Any], budget_bytes: int) -> None:
    pool = PoolSettings(device_class="gpu-1", **fields)
    assert pool.budget_bytes(1 << 30) == budget_bytes


def test_gateways_without_a_device_cannot_be_resized() -> None:
    with pytest.raises(InvalidInputError, match=r"gateways\.sizes"):
        parse_settings(
            {
                "gateways": {"device_class": None, "sizes": ["cpu-2"]},
                "pools": [{"device_class": "cpu-1"}],
            }
        )
