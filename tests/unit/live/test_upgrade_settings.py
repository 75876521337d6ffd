"""What may change while a cluster serves, what may not, and whether there is room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.config import parse_settings
from modelless.controller.live.cluster.deployed import read_deployed, write_deployed
from modelless.controller.live.cluster.node_room import available_bytes, has_resources
from modelless.controller.live.cluster.upgrade import (
    settings_to_be,
)

RUNNING = parse_settings(
    {"http": {"port": 8123}, "gateways": {"count": 3}, "pools": [{"device_class": "cpu-2"}]}
).model_dump(mode="json")


def asked(**sections: Any) -> Any:
    return parse_settings({"pools": [{"device_class": "cpu-2"}], **sections})


def test_without_new_settings_it_goes_on_with_its_own() -> None:
    assert settings_to_be(RUNNING, None).model_dump(mode="json") == RUNNING


def test_what_is_not_asked_for_otherwise_stays_where_clients_know_it() -> None:
    to_be = settings_to_be(RUNNING, asked(seed=7, gateways={"count": 2}))
    assert (to_be.http.port, to_be.gateways.count, to_be.seed) == (8123, 2, 7)
    assert settings_to_be(RUNNING, asked(http={"port": 8123})).http.port == 8123


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"http": {"port": 8124}}, "http.port: got 8124; allowed: 8123"),
        ({"http": {"host": "127.0.0.2"}}, "http.host"),
        ({"ingress": "serve"}, "ingress: got 'serve'"),
        ({"pools": [{"device_class": "cpu-1"}]}, "pools: got 'cpu-1'"),
        ({"pools": []}, "pools: got 'none'"),
    ],
)
def test_what_takes_a_new_start_is_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field) as refused:
        settings_to_be(RUNNING, asked(**changed))
    assert "'modelless down', then 'modelless up'" in str(refused.value)


def test_settings_that_this_release_does_not_know_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"running settings.*novel"):
        settings_to_be({**RUNNING, "novel": 1}, None)


def test_one_worker_more_needs_a_card_of_its_own() -> None:
    pool = parse_settings({"pools": [{"device_class": "gpu", "resources": {"GPU": 1}}]}).pools[0]
    assert has_resources(pool, {"GPU": 1.0, "CPU": 3.0})
    assert not has_resources(pool, {"CPU": 3.0})


def test_memory_that_a_new_process_may_take(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == float("inf")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2048 kB\n")
    assert available_bytes(tmp_path) == 2 * 2**20


def test_what_is_deployed_is_noted(tmp_path: Path) -> None:
    settings = parse_settings(RUNNING)
    write_deployed(tmp_path, "127.0.0.1:6379", settings, is_own=True)
    deployed = read_deployed(tmp_path)
    assert deployed is not None
    assert (deployed.address, deployed.is_own) == ("127.0.0.1:6379", True)
    assert settings_to_be(deployed.settings, None) == settings


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": "x", "novel": 1}'])
def test_a_note_of_another_release_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "deployed.json").write_text(text)
    assert read_deployed(tmp_path) is None
