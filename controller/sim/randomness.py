"""Random streams, one for each source, that do not depend on each other or on the process.

Streams are children of one ``SeedSequence``, spawned by name instead of by count, so that a source
draws the same whatever other sources there are (common random numbers when policies are compared).
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *names: str) -> np.random.Generator:
    """The generator of the source that ``names`` name."""
    key = tuple(zlib.crc32(name.encode()) for name in names)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
