"""What was served lately, kept on disk, so that the next run can load it before anybody asks.

A hint and no more: where the file is missing, damaged or of a later version, nothing is preloaded.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modelless.variants.artifacts import write_whole

logger = logging.getLogger(__name__)

HALF_LIFE_S: Final = 1800.0
WRITE_EVERY_S: Final = 10.0
MOST_VARIANTS: Final = 1000
_FILE: Final = "last-run.json"


def read_last_run(home: Path) -> tuple[str, ...]:
    """The variants that the last run served, those it served most lately first."""
    try:
        counts = json.loads((home / _FILE).read_text(encoding="utf-8"))["served"]
        sound = {
            name: float(count)
            for name, count in counts.items()
            if isinstance(count, (int, float)) and math.isfinite(count) and count > 0.0
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(sorted(sound, key=lambda name: (-sound[name], name)))


class LastRun:
    """Counts what is served, the past for less and less, and writes it down now and then.

    Args:
        home: where the store is.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE
        self._counts: dict[str, float] = {}
        self._counted_s = self._written_s = -math.inf
        self._is_new = False

    def count(self, served: Mapping[str, int], now_s: float) -> None:
        """So many answers by variant came since the last call."""
        if self._counts and now_s > self._counted_s:
            kept = 0.5 ** ((now_s - self._counted_s) / HALF_LIFE_S)
            self._counts = {name: count * kept for name, count in self._counts.items()}
        self._counted_s = max(self._counted_s, now_s)
        for variant_id, count in served.items():
            self._counts[variant_id] = self._counts.get(variant_id, 0.0) + count
            self._is_new = True
        if self._is_new and now_s - self._written_s >= WRITE_EVERY_S:
            self._write(now_s)

    def _write(self, now_s: float) -> None:
        self._written_s, self._is_new = now_s, False
        most = sorted(self._counts, key=lambda name: -self._counts[name])[:MOST_VARIANTS]
        self._counts = {name: self._counts[name] for name in most}
        document = {"served": {name: round(count, 3) for name, count in self._counts.items()}}
        try:
            write_whole(self._path, json.dumps(document, indent=1).encode())
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)
