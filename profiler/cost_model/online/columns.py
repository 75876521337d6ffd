"""Columns of floats that plain code writes one by one and numpy reads all at once."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]


def make_column(count: int) -> tuple[array[float], FloatArray]:
    """Returns ``count`` zeros twice over the same memory: for plain code and for numpy.

    Plain code reads or writes one element in a third of the time that numpy takes.
    """
    floats = array("d", bytes(8 * count))
    return floats, np.frombuffer(floats, dtype=np.float64)
