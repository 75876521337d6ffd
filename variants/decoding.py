"""Texts that a variant answers: connectionist temporal classification, decoded greedily.

Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 3.1 (best path
decoding), https://doi.org/10.1145/1143844.1143891.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.variants.vocabulary import CtcDecoding, TensorSpec

CHARACTERS: Final = "character"
"""The key of a model's metadata under which PaddleOCR and its kin keep their characters."""


def decode_texts(
    scores: NDArray[Any], decoding: CtcDecoding, labels: Sequence[str]
) -> tuple[str, ...]:
    """The text of each item: the best class of each step, repeats once, blanks left out.

    Args:
        scores: FP [items, steps, classes]; what is no number is never the best.

    Raises:
        InvalidInputError: the scores are of another shape.
    """
    if scores.ndim != 3 or scores.shape[2] != len(labels):
        allowed = f"[items, steps, {len(labels)}], a score for each character and the blank"
        raise InvalidInputError.of(f"output {decoding.output!r}: shape", scores.shape, allowed)
    is_none = np.isnan(scores)
    if is_none.any():
        scores = np.where(is_none, -np.inf, scores)
        scores[is_none.all(axis=2), decoding.blank] = 0.0
    best = scores.argmax(axis=2)
    counts = best != decoding.blank
    counts[:, 1:] &= best[:, 1:] != best[:, :-1]
    return tuple(
        "".join(labels[index] for index in row[here].tolist())
        for row, here in zip(best, counts, strict=True)
    )


def alphabet_of_metadata(metadata: Mapping[str, str], key: str, classes: int) -> tuple[str, ...]:
    """The characters that a model's metadata hold, without the blank.

    Where the model has one class more than these and a blank, the last one is the space, which
    PaddleOCR leaves out of its lists.

    Args:
        key: under which they stand, a character a line.
        classes: that the output has; -1 if that is free.

    Raises:
        InvalidInputError: there is no such entry.
    """
    if key not in metadata:
        raise InvalidInputError.of("alphabet: metadata", sorted(metadata), f"an entry {key!r}")
    found = read_lines(metadata[key])
    return (*found, " ") if len(found) + 2 == classes and " " not in found else found


def read_lines(text: str) -> tuple[str, ...]:
    """The lines as they are, spaces and all; no character but the line feed ends one."""
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    return tuple(line.removesuffix("\r") for line in lines)


def with_blank(alphabet: Sequence[str], blank: int) -> tuple[str, ...]:
    """The label of each class: the alphabet's, and no text for the blank."""
    return (*alphabet[:blank], "", *alphabet[blank:])


def is_steps(spec: TensorSpec) -> bool:
    """Whether an output may be read as a text: FP [-1, steps, classes]."""
    return spec.datatype.startswith("FP") and len(spec.shape) == 3


def find_ctc(
    outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[CtcDecoding, tuple[str, ...]] | None:
    """The decoding and the labels that a model's own metadata give; None if they give none.

    They do where they hold characters, as many as an output has classes beside the blank, which
    comes first, and the space, which may be left out.
    """
    for spec in filter(is_steps, outputs):
        if CHARACTERS in metadata:
            labels = with_blank(alphabet_of_metadata(metadata, CHARACTERS, spec.shape[2]), 0)
            if len(labels) == spec.shape[2]:
                return CtcDecoding(spec.name), labels
    return None
