"""Boosted trees in one thread: with more, joblib polls them, and unit tests do not sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .worlds import one_thread


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
