"""Set-up of all tests: no telemetry, a brief Hypothesis; tests on absent published tables skip."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

import modelless  # noqa: F401  (it turns ONNX Runtime's telemetry off; tests may import that later)

# ``--hypothesis-profile long`` takes the other one. Neither has a deadline: a test that passes or
# fails by the clock says how busy the machine is.
settings.register_profile("short", max_examples=30, deadline=None)
settings.register_profile("long", max_examples=300, deadline=None)
settings.load_profile("short")

TABLES = Path(__file__).parents[2] / "shared" / "data"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked ``shared_data`` if that folder is not beside the checkout."""
    if item.get_closest_marker("shared_data") and not TABLES.is_dir():
        pytest.skip(f"needs published tables and traces in {TABLES}, not part of the checkout")
