"""Worlds for tests: small, quick, each with something of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.sim.worlds.world import WorldFile, parse_world

WORLDS = Path(__file__).parents[2] / "benchmarks" / "worlds"
SHIPPED = [pytest.param(path, id=path.stem) for path in sorted(WORLDS.glob("*.yaml"))] + [
    pytest.param(path, id=f"tables/{path.stem}", marks=pytest.mark.shared_data)
    for path in sorted((WORLDS / "tables").glob("*.yaml"))
]
"""Every world under ``benchmarks/worlds``, to parametrize tests with."""

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 7,
    "duration_s": 10,
    "devices": [
        {"name": "cpu-1", "count": 4, "memory_mib": 400},
        {"name": "gpu", "kind": "gpu", "count": 1, "memory_mib": 600, "price_usd_per_hour": 2.0},
    ],
    "tasks": [
        {
            "name": "vision",
            "variants": {
                "kind": "ladder",
                "count": 5,
                "latency_ms": [4, 40],
                "memory_mib": [20, 150],
                "speeds": {"cpu-1": 1, "gpu": 8},
            },
        }
    ],
    "queries": [
        {
            "tasks": ["vision"],
            "arrivals": {"kind": "poisson", "rate_per_s": 150},
            "slos": [
                {"weight": 2, "latency_ms": 50},
                {"weight": 1, "latency_ms": 200, "min_accuracy": 70, "tenant": "careful"},
                {"weight": 1, "latency_ms": 500, "max_cost_usd": 0.000001, "items": 2},
            ],
        }
    ],
}


def document(**changes: Any) -> dict[str, Any]:
    """The small world with some of its parts exchanged."""
    return {**copy.deepcopy(SMALL), **changes}


def world(folder: Path = Path(), **changes: Any) -> WorldFile:
    """``document``, checked."""
    return parse_world(document(**changes), folder)


def with_parts(**parts: dict[str, Any]) -> dict[str, Any]:
    """The small world with fields of the first entry of its lists changed."""
    changed = document()
    for name, fields in parts.items():
        changed[name][0].update(fields)
    return changed


EDGE: dict[str, Any] = {
    "devices": [
        {"name": "edge-cpu", "count": 2, "memory_mib": 300, "site": "edge"},
        {"name": "core-gpu", "kind": "gpu", "count": 1, "memory_mib": 800, "site": "core"},
    ],
    "network": {
        "gateway": "edge",
        "delays": [
            {"between": ["edge", "core"], "one_way_ms": 12},
            {"between": ["edge", "home"], "one_way_ms": 5},
        ],
        "worker_hop_ms": 0.3,
    },
    "tasks": [
        {
            "name": "vision",
            "variants": {
                "kind": "ladder",
                "count": 5,
                "memory_mib": [20, 150],
                "speeds": {"edge-cpu": 1, "core-gpu": 10},
            },
        }
    ],
    "queries": [
        {
            "tasks": ["vision"],
            "arrivals": {"kind": "gamma", "rate_per_s": 60, "cv": 2},
            "slos": [{"latency_ms": 90}],
        },
        {
            "tasks": ["vision"],
            "arrivals": {"kind": "poisson", "rate_per_s": 40},
            "slos": [{"latency_ms": 150, "min_accuracy": 74}],
            "site": "home",
        },
    ],
}

DRIFT: dict[str, Any] = {
    "devices": [{"name": "cpu-1", "count": 3, "memory_mib": 300, "per_host": 3, "contention": 0.1}],
    "tasks": [
        {
            "name": "task",
            "copies": 12,
            "variants": {
                "kind": "ladder",
                "count": 2,
                "latency_ms": [3, 8],
                "memory_mib": [60, 90],
                "load_s": [0.2, 0.5],
            },
        }
    ],
    "queries": [
        {
            "tasks": ["task-*"],
            "arrivals": {"kind": "poisson", "rate_per_s": 80},
            "popularity": {"zipf": 1.0, "drift_every_s": 2, "drift_swaps": 3},
            "slos": [{"latency_ms": 300}],
        }
    ],
    "warm_start": False,
}

FAULTS: list[dict[str, Any]] = [
    {"kind": "worker-dies", "worker": "cpu-1/0", "at_s": 2, "back_s": 5},
    {"kind": "worker-dies", "worker": "cpu-1/3", "at_s": 4},
    {"kind": "worker-slows", "worker": "cpu-1/1", "at_s": 3, "until_s": 6, "factor": 5},
    {"kind": "load-fails", "worker": "cpu-1/0", "at_s": 4, "until_s": 8},
]
