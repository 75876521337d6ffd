"""The shipped snapshot: how long public models take on the typical device of a kind.

``benchmarks/profiling/make_snapshot.py`` fitted its figures to public tables; it holds no
measurement. Predictions learn from it where the store has nothing to learn from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any, Final

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.unmeasured.prior import digest_of
from modelless.profiler.measure.table import TableRow

FORMAT: Final = 1
ANY_KIND: Final = "any"
"""The kind of typical devices, so that their level is not that of any kind."""

COLUMNS = ("task", "model", "resolution_px", "gmacs", "latency_ms")
"""The columns of an item."""


@cache
def shipped_snapshot() -> Sequence[TableRow]:
    """Returns the items of this package's snapshot as rows of typical devices.

    Raises:
        InvalidInputError: the package's file is damaged.
    """
    resource = files("modelless.profiler.cost_model.unmeasured").joinpath("data", "snapshot.json")
    document = json.loads(resource.read_bytes())
    digest = document.pop("sha256", "")
    if digest != digest_of(document) or document["format"] != FORMAT:
        raise InvalidInputError.of(
            "the package's snapshot.json", digest, digest_of(document), "Install modelless again."
        )
    return rows_of_groups(document["groups"])


def rows_of_groups(groups: Iterable[Mapping[str, Any]]) -> list[TableRow]:
    """Returns the items of all groups as rows."""
    blank: dict[str, Any] = dict.fromkeys(field.name for field in fields(TableRow))
    blank |= dict.fromkeys(("family", "engine", "precision", "accuracy_metric"), "")
    blank |= {"device_kind": ANY_KIND, "batch": 1}
    return [
        TableRow(
            **blank
            | {"source": group["source"], "device": f"typical {group['kind']} device"}
            | dict(zip(COLUMNS, item, strict=True))
        )
        for group in groups
        for item in group["items"]
    ]
