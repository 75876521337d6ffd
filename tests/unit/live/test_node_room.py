"""What no node has room for is said, and what fits is not."""

from __future__ import annotations

from typing import Any

import pytest

from modelless.controller.config import parse_settings
from modelless.controller.live.cluster.node_room import Node, cpus_for, nodes_of, without_room

NODES = [
    Node({"CPU": 4.0, "GPU": 2.0}, {"site": "core"}),
    Node({"CPU": 2.0, "npu": 0.3}, {"site": "edge"}),
]


def lacking(pool: dict[str, Any], gateways: dict[str, Any] | None = None) -> dict[str, str]:
    pool = {"device_class": "cpu-1", **pool}
    return without_room(parse_settings({"pools": [pool], "gateways": gateways or {}}), 2, NODES)


@pytest.mark.parametrize(
    "pool",
    [
        {"workers": 500},
        {"workers": 3, "resources": {"CPU": 2}},
        {"workers": 2, "resources": {"GPU": 1, "CPU": 2}},
        {"workers": 3, "resources": {"npu": 0.1}},  # 0.3 / 0.1 is a little less than 3
        {"workers": 1, "resources": {"TPU": 0}},
        {"workers": 4, "resources": {"CPU": 1}, "labels": {"site": "core"}},
        {"labels": {"site": "!core"}},
        {"labels": {"site": "in(edge, far)"}},
        {"labels": {"site": "!in(core)"}},
        {"labels": {"zone": "!far"}},  # Ray: a node without the label is not there
    ],
)
def test_what_fits(pool: dict[str, Any]) -> None:
    assert lacking(pool) == {}


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        (
            {"resources": {"TPU": 1}},
            "the workers of cpu-1 need pools[0].resources {TPU: 1} each: there is room for 0 of 1",
        ),
        ({"workers": 0, "resources": {"TPU": 1}}, "there is room for 0 of 1"),
        ({"workers": 4, "resources": {"CPU": 2}}, "there is room for 3 of 4"),
        (
            {"workers": 3, "resources": {"CPU": 1}, "labels": {"site": "edge"}},
            "need pools[0].resources {CPU: 1} and pools[0].labels {site: edge} each: "
            "there is room for 2 of 3",
        ),
        ({"labels": {"site": "far"}}, "pools[0].labels {site: far}"),
        ({"labels": {"site": "!in(core, edge)"}}, "pools[0].labels {site: !in(core, edge)}"),
        ({"labels": {"zone": "in(far)"}}, "there is room for 0"),
    ],
)
def test_what_does_not(pool: dict[str, Any], told: str) -> None:
    assert told in lacking(pool)["pools[0]"]


def test_gateways_go_by_their_labels() -> None:
    found = lacking({}, {"labels": {"site": "far"}})
    assert (
        found["gateways"]
        == "the gateways need gateways.labels {site: far} each: there is room for 0 of 2"
    )


def test_nodes_that_died_have_no_room() -> None:
    described = [
        {"Alive": True, "Resources": {"CPU": 1.0}, "Labels": {"site": "edge"}},
        {"Alive": False, "Resources": {"CPU": 8.0}, "Labels": {}},
    ]
    assert nodes_of(described) == [Node({"CPU": 1.0}, {"site": "edge"})]


def test_pools_share_what_there_is() -> None:
    pools = [{"device_class": name, "resources": {"GPU": 1}} for name in ("cpu-1", "gpu-1")]
    nodes = [Node({"GPU": 1.0}, {})]
    found = without_room(parse_settings({"pools": pools}), 2, nodes)
    assert list(found) == ["pools[1]"]
    assert nodes == [Node({"GPU": 1.0}, {})]
    assert without_room(parse_settings({"pools": pools}), 2, nodes * 2) == {}


def test_the_books_of_one_node_have_room_for_all_that_may_run() -> None:
    assert cpus_for(parse_settings({}), 2) == 1
    pools = [{"device_class": "cpu-1", "max_workers": 300}]
    assert cpus_for(parse_settings({"pools": pools}), 256) == 6  # 256, 300 and 3, a hundredth each
    pools = [{"device_class": "cpu-1", "workers": 2, "resources": {"CPU": 2}}]
    assert cpus_for(parse_settings({"pools": pools}), 2) == 5
