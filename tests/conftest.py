"""Set-up of all tests: telemetry is off, and tests on published tables skip where those are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import modelless  # noqa: F401  (it turns ONNX Runtime's telemetry off; tests may import that later)

TABLES = Path(__file__).parents[2] / "shared" / "data"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked ``shared_data`` if that folder is not beside the checkout."""
    if item.get_closest_marker("shared_data") and not TABLES.is_dir():
        pytest.skip(f"needs published tables and traces in {TABLES}, not part of the checkout")
