"""What all tests share: those on published tables are skipped where the tables are not."""

from __future__ import annotations

from pathlib import Path

import pytest

TABLES = Path(__file__).parents[2] / "shared" / "data"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked ``shared_data`` if there is no such folder beside the checkout."""
    if item.get_closest_marker("shared_data") and not TABLES.is_dir():
        pytest.skip(f"needs published tables and traces in {TABLES}, not part of the checkout")
