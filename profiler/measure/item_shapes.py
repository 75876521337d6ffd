"""Sizes of one item, where a task leaves axes of its inputs free."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from modelless.common.errors import InvalidInputError
from modelless.variants.vocabulary import TensorSpec

ItemShape = Mapping[str, tuple[int, ...]]
"""The shape of an item by input, without the axis that counts items."""

_PART = re.compile(r"(.+?)=(\d+(?:x\d+)*)(?:, |$)")


def has_free_axes(specs: Sequence[TensorSpec]) -> bool:
    """Whether an item of these inputs may be of several sizes."""
    return any(size < 0 for spec in specs for size in spec.shape[1:])


def write_shape(shape: ItemShape) -> str:
    """``image=48x320x3``; of several inputs ``ids=16, mask=16``, by name."""
    return ", ".join(
        f"{name}={'x'.join(map(str, sizes or (1,)))}" for name, sizes in sorted(shape.items())
    )


def read_shape(written: str) -> ItemShape:
    """The shape that ``write_shape`` wrote; an input without axes has one of size 1."""
    return {name: tuple(map(int, sizes.split("x"))) for name, sizes in _PART.findall(written)}


def count_elements(written: str) -> int:
    """The numbers in an item of a shape as ``write_shape`` writes it; 0 if nothing is written."""
    return sum(map(math.prod, read_shape(written).values()))


def free_sizes(specs: Sequence[TensorSpec], shape: ItemShape) -> dict[str, tuple[int, ...]]:
    """The sizes of the free axes by input, as ``sample_inputs`` takes them."""
    free = [spec for spec in specs if has_free_axes([spec])]
    pairs = {spec.name: zip(shape[spec.name], spec.shape[1:], strict=True) for spec in free}
    return {
        name: tuple(size for size, wanted in sizes if wanted < 0) for name, sizes in pairs.items()
    }


def parse_shapes(
    specs: Sequence[TensorSpec], written: Mapping[str, Sequence[Sequence[int]]]
) -> list[ItemShape]:
    """The shapes of whole items, ascending by their elements, from the sizes of inputs.

    Sizes are those of all axes, of the free ones, or of the first ones: of [-1, 48, -1, 3], all of
    48x320x3, 320 and 48x320 say the same. The first sizes of all inputs make the first item.

    Args:
        specs: a task's inputs.
        written: sizes, item by item, by the name of an input.

    Raises:
        InvalidInputError: an unknown input, one that is missing, or sizes that do not fit.
    """
    free = [spec for spec in specs if any(size < 0 for size in spec.shape[1:])]
    names = ", ".join(spec.name for spec in free)
    if set(written) != {spec.name for spec in free}:
        raise InvalidInputError.of(
            "shape: inputs", sorted(written), f"each that leaves sizes free: {names}"
        )
    counts = {len(sizes) for sizes in written.values()}
    if len(counts) != 1:
        raise InvalidInputError.of("shape", dict(written), f"as many sizes of each of {names}")
    (count,) = counts
    shapes = [
        {
            spec.name: _sizes(spec, written[spec.name][item])
            if spec.name in written
            else spec.shape[1:]
            for spec in specs
        }
        for item in range(count)
    ]
    every = {write_shape(shape): shape for shape in shapes}
    return [every[each] for each in sorted(every, key=count_elements)]


def _sizes(spec: TensorSpec, given: Sequence[int]) -> tuple[int, ...]:
    axes = spec.shape[1:]
    free = sum(axis < 0 for axis in axes)
    if len(given) == free < len(axes):
        left = iter(given)
        found = [axis if axis >= 0 else next(left) for axis in axes]
    else:
        found = [*given, *axes[len(given) :]]
    fits = len(found) == len(axes) and all(
        size >= 1 and axis in (-1, size) for size, axis in zip(found, axes, strict=True)
    )
    if not fits:
        raise InvalidInputError.of(
            f"shape: {spec.name}",
            "x".join(map(str, given)),
            f"sizes of {list(axes)}, where -1 is 1 or more",
        )
    return tuple(found)
