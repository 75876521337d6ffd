"""pyarrow, which is optional."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from modelless.common.errors import EnvironmentUnfitError


def import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; EnvironmentUnfitError if they are not installed."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise EnvironmentUnfitError(
            "Parquet needs pyarrow, which is not installed: pip install 'modelless[parquet]'"
        ) from None
