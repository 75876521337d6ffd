"""What the live tests share: a home with a small zoo in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import modelless


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.live)


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
