"""Make ``data/snapshot.json`` from public tables; takes a few seconds.

    python benchmarks/profiling/make_snapshot.py TABLE.csv...

For each source and kind of device it fits an additive model: the log latency of an item is a level
of the setting (device, engine, precision, batch, clients) and an effect of the item (model and
resolution). The snapshot has the effects of the items, and no row of a table: an item counts only
if at least two devices ran it, and its effect is a mean over all of its rows there. The level of
the effects is that of the prior, so they say nothing of how fast a device is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from modelless.profiler.cost_model.unmeasured.features import NameCodes, encode, item_latency_log
from modelless.profiler.cost_model.unmeasured.prior import digest_of, shipped_prior
from modelless.profiler.cost_model.unmeasured.snapshot import ANY_KIND, COLUMNS, FORMAT
from modelless.profiler.measure.table import TableRow, read_table

_LEAST_DEVICES = 2
_STEPS = 30


def main(
    tables: Annotated[list[Path], typer.Argument(help="Profiles in the canonical schema.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("snapshot.json"),
) -> None:
    """Make a snapshot."""
    by_table = {path.name: read_table(path) for path in tables}
    document: dict[str, Any] = {
        "format": FORMAT,
        "made_by": "benchmarks.profiling.make_snapshot",
        "made_from": {name: len(some) for name, some in by_table.items()},
        "columns": COLUMNS,
        "groups": list(fit_groups([row for some in by_table.values() for row in some])),
    }
    document["sha256"] = digest_of(document)
    output.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def fit_groups(rows: Sequence[TableRow]) -> Iterator[dict[str, Any]]:
    """Yields the items of each source and kind that several devices ran, and of all its kinds."""
    for source in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == source]
        kinds = sorted({row.device_kind for row in mine})
        for kind in [*kinds, ANY_KIND] if len(kinds) > 1 else kinds:
            some = [row for row in mine if kind in (row.device_kind, ANY_KIND)]
            if items := list(_fit_items(some)):
                yield {"source": source, "kind": kind, "items": items}


def _fit_items(rows: Sequence[TableRow]) -> Iterator[list[Any]]:
    devices: dict[Any, set[str]] = {}
    for row in rows:
        devices.setdefault(row.item, set()).add(row.device)
    rows = [row for row in rows if len(devices[row.item]) >= _LEAST_DEVICES]
    if not rows:
        return
    first = {row.item: row for row in rows}
    items = {item: number for number, item in enumerate(first)}
    item = np.array([items[row.item] for row in rows])
    settings: dict[Any, int] = {}
    setting = np.array(
        [
            settings.setdefault(
                (row.device, row.engine, row.precision, row.batch, row.concurrency), len(settings)
            )
            for row in rows
        ]
    )
    values = item_latency_log(rows)
    effects, levels = np.zeros(len(items)), np.zeros(len(settings))
    for _ in range(_STEPS):
        levels = np.bincount(setting, values - effects[item]) / np.bincount(setting)
        effects = np.bincount(item, values - levels[setting]) / np.bincount(item)
    items_only = [replace(row, device_kind=ANY_KIND, batch=1) for row in first.values()]
    expected_log = encode(items_only, NameCodes(), shipped_prior().roofline).roofline_log
    effects += np.median(expected_log - effects)
    for row, effect in zip(first.values(), effects.tolist(), strict=True):
        gmacs = None if row.gmacs is None else float(f"{row.gmacs:.3g}")
        yield [row.task, row.model, row.resolution_px, gmacs, float(f"{np.exp(effect):.3g}")]


if __name__ == "__main__":
    typer.run(main)
