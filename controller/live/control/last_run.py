"""Keeps on disk what was served lately and what was loaded, for the next run to load again.

It is only a hint: if the file is missing, damaged or of a later version, nothing is preloaded. It
is written while a run goes on, so it is there after a crash as well.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from modelless.common.files import write_whole

logger = logging.getLogger(__name__)

HALF_LIFE_S: Final = 1800.0
WRITE_EVERY_S: Final = 10.0
MOST_VARIANTS: Final = 1000
REGAINED_S: Final = 300.0
"""So long what the run before had loaded may take to be loaded again; then it is forgotten."""
LAST_RUN: Final = "last-run.json"


def read_last_run(home: Path) -> tuple[str, ...]:
    """The variants that the last run had loaded, those first that it served most lately.

    What it served, if it is not known what was loaded.
    """
    served, loaded = _read(home / LAST_RUN)
    return tuple(sorted(loaded or served, key=lambda name: (-served.get(name, 0.0), name)))


class LastRun:
    """Counts what is served, the past for less and less, and writes it down now and then.

    It goes on with what the file says: a control loop that begins anew, or a cluster that has not
    loaded everything again yet, must not make less of it.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / LAST_RUN
        self._counts, self._owed = _read(self._path)
        self._loaded: frozenset[str] = frozenset()
        self._counted_s = self._written_s = -math.inf
        self._owed_until_s = math.inf
        self._is_new = False

    def count(self, served: Mapping[str, int], now_s: float) -> None:
        """So many answers by variant came since the last call."""
        if self._counts and now_s > self._counted_s > -math.inf:
            kept = 0.5 ** ((now_s - self._counted_s) / HALF_LIFE_S)
            self._counts = {name: count * kept for name, count in self._counts.items()}
        self._counted_s = max(self._counted_s, now_s)
        for variant_id, count in served.items():
            self._counts[variant_id] = self._counts.get(variant_id, 0.0) + count
            self._is_new = True
        if self._is_new and now_s - self._written_s >= WRITE_EVERY_S:
            self._write(now_s)

    def hold(self, loaded: Collection[str], now_s: float) -> None:
        """These variants are loaded somewhere now. That none is tells nothing: all may be going."""
        if math.isinf(self._owed_until_s):
            self._owed_until_s = now_s + REGAINED_S
        owed = self._owed - set(loaded) if now_s < self._owed_until_s else frozenset[str]()
        if loaded and (self._loaded != set(loaded) or owed != self._owed):
            self._loaded, self._is_new = frozenset(loaded), True
        self._owed = owed

    def _write(self, now_s: float) -> None:
        self._written_s, self._is_new = now_s, False
        most = sorted(self._counts, key=lambda name: -self._counts[name])[:MOST_VARIANTS]
        self._counts = {name: self._counts[name] for name in most}
        document = {
            "served": {name: round(count, 3) for name, count in self._counts.items()},
            "loaded": sorted(self._loaded | self._owed)[:MOST_VARIANTS],
        }
        try:
            write_whole(self._path, json.dumps(document, indent=1).encode())
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)


class _Noted(NamedTuple):
    served: dict[str, float]
    loaded: frozenset[str]


def _read(path: Path) -> _Noted:
    """Read the file, as far as it makes sense."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        served = {
            name: float(count)
            for name, count in document["served"].items()
            if isinstance(count, (int, float)) and math.isfinite(count) and count > 0.0
        }
        loaded = document.get("loaded", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Noted({}, frozenset())
    names = loaded if isinstance(loaded, list) else []
    return _Noted(served, frozenset(name for name in names if isinstance(name, str)))
