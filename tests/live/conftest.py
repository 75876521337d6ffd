"""What the live tests share: a home with a small zoo in it, and a cluster.

A test that uses the ``shared`` cluster belongs to ``make test``. One with a cluster of its own,
which it may kill, upgrade or scale, is ``slow``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .clients import PINNED, ask, wait_until
from .running import Running, cluster, modelless

CACHED = "fashion-mnist/cnn-s/int8-28"
"""The only name whose answers the shared cluster keeps."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.live)
        item.add_marker(pytest.mark.timeout(300, func_only=True))  # clusters take their time
        if not uses_shared(item):
            item.add_marker(pytest.mark.slow)
    items.sort(key=uses_shared)  # last: no other cluster runs beside the shared one


def uses_shared(item: pytest.Item) -> bool:
    """Whether it needs the shared cluster."""
    return "shared" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def live_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the Fashion-MNIST zoo, profiled on both device classes."""
    home = tmp_path_factory.mktemp("live")
    for arguments in (
        ("zoo", "add", "fashion-mnist"),
        ("profile", "--accept-noise", "--batches", "1,2,8", "--device-class", "cpu-1,cpu-2"),
    ):
        done = modelless(home, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    return home


@pytest.fixture(scope="session")
def shared(live_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two gateways with devices of their own, which load on demand and record.

    Tests may load variants, but not those that another test wants to be absent. ``PINNED`` is
    loaded in both gateways.
    """
    home = tmp_path_factory.mktemp("shared")
    shutil.copytree(live_home, home, ignore=shutil.ignore_patterns("run"), dirs_exist_ok=True)
    config = f"""
gateways: {{count: 2}}
policies: {{scaling: on-demand, eviction: miss-cost, placement: room-to-load}}
residency: {{pinned: [{PINNED}], preload: [{PINNED}]}}
record: {{folder: {home / "recording"}}}
cache: {{scopes: [{CACHED}]}}
batch: {{folder: {home / "rows"}}}
"""
    with cluster(home, config=config, marker="shared") as up:

        def is_pinned_everywhere() -> bool:
            with ThreadPoolExecutor(8) as clients:  # an idle first gateway answers alone
                list(clients.map(lambda _: ask(up, PINNED), range(8)))
            members = up.get("/modelless/status")["members"]
            return [member["pinned"] for member in members] == [[f"{PINNED}@1"]] * 2

        wait_until(is_pinned_everywhere, 60.0)
        yield up
    assert not up.processes(), "Ctrl-C leaves nothing behind"
