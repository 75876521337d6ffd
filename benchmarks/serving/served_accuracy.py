"""Accuracy that is served beside the accuracy that is stated, for each variant of zoo entries.

    python benchmarks/serving/served_accuracy.py --home HOME printed-lines voice-activity digits

HOME must hold the entries, profiled, and serve them with ``serve_dominated: true`` (``modelless zoo
add``, ``profile``, ``up --config``).
Each variant is named by 2,000 queries whose items are drawn with another seed than those that its
accuracy was measured on; of digits, which are few, the same ones come again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.controller.usecases.client import Client
from modelless.controller.usecases.home import open_home
from modelless.variants.metrics import find_metric, score
from modelless.variants.validation import ValidationSet, open_validation_set
from modelless.variants.vocabulary import Variant
from modelless.variants.zoo import MadeEntry, find_entry

SEED = 1
CONNECTIONS = 4


def measure(
    client: Client, variants: list[Variant], entry: MadeEntry, queries: int
) -> Iterator[bool]:
    """Ask each variant; print what it states and serves; yield whether the former holds."""
    metric = find_metric(entry.task.accuracy_metric, entry.task)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "items"
        entry.write_items(path, min(queries, entry.items), SEED)
        items: ValidationSet = open_validation_set(path, entry.task, metric.expects)
        for variant in variants:

            def ask(query: int, scope: str = variant.id) -> NDArray[Any]:
                item = items.item(query % len(items))
                inputs = {name: array[None] for name, array in item.inputs.items()}
                reply = client.infer(scope, inputs, latency_ms=60_000)
                reply.raise_for_status()
                evidence: NDArray[Any] = metric.evidence(dict(reply.tensors), (item.expected,))
                return evidence

            with ThreadPoolExecutor(CONNECTIONS) as pool:
                rows = list(pool.map(ask, range(queries)))
            served, stated = score(metric, np.concatenate(rows)), variant.accuracy
            holds = (stated.low_percent or 0.0) <= served.percent <= (stated.high_percent or 100.0)
            print(
                f"{variant.id:50} stated {stated.percent:5.1f} ({stated.low_percent:.1f} to "
                f"{stated.high_percent:.1f}), served {served.percent:5.1f} of {queries}: "
                f"{'within' if holds else 'beyond'}",
                flush=True,
            )
            yield holds


def main() -> None:
    """Measure all; exit code 1 if fewer than nine of ten are within their interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("entries", nargs="+")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--queries", type=int, default=2000)
    chosen = parser.parse_args()
    holding: list[bool] = []
    with open_home(chosen.home) as registry, Client(home=chosen.home) as client:
        for name in chosen.entries:
            entry = find_entry(name)
            if not isinstance(entry, MadeEntry):
                sys.exit(f"{name}: its items are not drawn by rule")
            variants = list(registry.variants(name))
            holding += measure(client, variants, entry, chosen.queries)
    print(f"{sum(holding)} of {len(holding)} within the stated 95 % interval")
    sys.exit(sum(holding) < 0.9 * len(holding))


if __name__ == "__main__":
    main()
