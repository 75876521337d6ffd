"""pyarrow, which is optional."""

from __future__ import annotations

from typing import Any

from modelless.common.errors import require


def import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; EnvironmentUnfitError if they are not installed."""
    install = "pip install 'modelless[parquet]'"
    return require("pyarrow", "Parquet", install), require("pyarrow.parquet", "Parquet", install)
