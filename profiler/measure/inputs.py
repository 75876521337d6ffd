"""Inputs for measurements: arrays of a task's signature, filled from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.signature import TEXT, dtype_of
from modelless.variants.vocabulary import TensorSpec

MOST_WARM_UP = 8
"""The most items in a batch to warm up with; the session keeps the memory of the batch."""

FREE_AXIS = 224
"""The size of a free axis for which none is given: the usual side of an image."""

# Largest value drawn. Integers other than bytes are most often token ids or flags: small ones are
# valid everywhere. As texts they are also valid where a model reads numbers.
_LARGEST = {"BOOL": 1, "UINT8": 255}
_LARGEST_OF_OTHERS = 99


def sample_inputs(
    specs: Sequence[TensorSpec],
    batch: int,
    *,
    free_axes: Mapping[str, Sequence[int]] | None = None,
    texts: Mapping[str, Sequence[str]] = MappingProxyType({}),
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """Returns one array for each spec with ``batch`` items along axis 0; equal seeds give equal
    arrays.

    Args:
        specs: a task's inputs.
        batch: number of items.
        free_axes: sizes of a tensor's free axes (-1) after the first axis, in order, by name; 224
            each where none are given.
        texts: examples for inputs that are texts, by name. A batch takes them at equal steps of
            their lengths, so a single one is of the median length; numbers where there are none.
        seed: seed of the values.

    Raises:
        InvalidInputError: a batch below 1, an unknown datatype, too few sizes, a size below 1.
    """
    if batch < 1:
        raise InvalidInputError.of("batch", batch, "1 or more")
    rng = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {}
    for spec in specs:
        dtype = dtype_of(spec.datatype)
        shape = (batch, *_sizes(spec, (free_axes or {}).get(spec.name)))
        if dtype.kind == "f":
            arrays[spec.name] = rng.random(shape).astype(dtype)
        elif spec.datatype == TEXT and texts.get(spec.name):
            count = math.prod(shape)
            places = (np.arange(count) + 0.5) / count * len(texts[spec.name])
            ascending = np.array(sorted(texts[spec.name], key=len), dtype)
            arrays[spec.name] = ascending[places.astype(np.int64)].reshape(shape)
        else:
            largest = _LARGEST.get(spec.datatype, _LARGEST_OF_OTHERS)
            values = rng.integers(0, largest, shape, endpoint=True)
            arrays[spec.name] = values.astype(np.str_ if dtype.kind == "O" else dtype).astype(dtype)
    return arrays


def warm_up_inputs(make: Callable[[int], Tensors], most: int = MOST_WARM_UP) -> list[Tensors]:
    """Returns batches to run before a session serves: 1, 2, 4 and so on, ``most`` items at last.

    An engine allocates memory as batches need it, and the first batch that needs more waits for it:
    three times as long as the batch itself takes, and longer where all processes grow at once.

    Args:
        make: returns a batch of so many items.
        most: most items that a batch may have; batches beyond ``MOST_WARM_UP`` are not warmed up.
    """
    most = min(most, MOST_WARM_UP)
    return [make(1 << power) for power in range((most - 1).bit_length())] + [make(most)]


def _sizes(spec: TensorSpec, given: Sequence[int] | None) -> list[int]:
    free = [axis for axis in spec.shape[1:] if axis < 0]
    chosen = list(given) if given is not None else [FREE_AXIS] * len(free)
    if len(chosen) != len(free) or any(size < 1 for size in chosen):
        raise InvalidInputError.of(
            f"free_axes['{spec.name}']", given, f"{len(free)} sizes of 1 or more"
        )
    remaining = iter(chosen)
    return [axis if axis >= 0 else next(remaining) for axis in spec.shape[1:]]
