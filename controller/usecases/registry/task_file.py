"""A task described in a YAML file: what ``modelless register --task-file`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelless.common.errors import InvalidInputError, NotFoundError, did_you_mean
from modelless.common.settings_files import problems
from modelless.common.yaml_files import read_yaml
from modelless.variants.decoding import (
    CHARACTERS,
    alphabet_of_metadata,
    is_steps,
    read_lines,
    with_blank,
)
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.metrics import METRICS, find_metric
from modelless.variants.metrics.outputs import is_scores
from modelless.variants.signature import DTYPES
from modelless.variants.validation.expected import Expects
from modelless.variants.vocabulary import CtcDecoding, Task, TensorSpec

_MOST_LABELS = 100_000


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TensorPart(_Part):
    """One tensor of the signature; the first size counts items and is -1.

    Attributes:
        padding: of an input with free sizes whose answers padding does not change; see
            ``TensorSpec``.
    """

    name: Annotated[str, Field(min_length=1, max_length=256)]
    datatype: str
    shape: Annotated[list[int], Field(min_length=1, max_length=8)]
    padding: Literal["edge"] | float | None = None


class DecodingPart(_Part):
    """How an output is read as a text.

    Attributes:
        kind: the only one there is.
        output: its name; may be left out where only one can be read so.
        alphabet: the characters; or a file beside this one: a text with a character a line, or an
            ONNX file whose metadata hold them.
        metadata: the entry of the ONNX file's metadata.
        blank: the class that stands for no character. The alphabet leaves it out.
    """

    kind: Literal["ctc"]
    output: str | None = None
    alphabet: Annotated[list[str] | str, Field(min_length=1)]
    metadata: str = CHARACTERS
    blank: int = 0


class TaskFile(_Part):
    """The whole file.

    Attributes:
        labels: class names by index, or the name of a text file beside this one, a label a line.
    """

    name: str
    inputs: Annotated[list[TensorPart], Field(min_length=1, max_length=64)]
    outputs: Annotated[list[TensorPart], Field(min_length=1, max_length=64)]
    metric: Annotated[str, Field(min_length=1, max_length=64)]
    description: str = ""
    labels: list[str] | str = Field(default_factory=list)
    decoding: DecodingPart | None = None


def read_task(path: Path) -> Task:
    """The task that the file describes.

    Raises:
        InvalidInputError: unreadable, not YAML, an unknown or missing key, or a value that is not
            allowed; names the file and the key.
    """
    try:
        document = TaskFile.model_validate(read_yaml("task file", path))
    except ValidationError as error:
        raise InvalidInputError(f"task file {path}: {problems(error, TaskFile)}") from None
    try:
        outputs = _specs("outputs", document.outputs)
        labels, decoding = _labels(document.labels, path.parent), None
        if document.decoding is not None:
            if labels:
                raise InvalidInputError.of("labels", document.labels, "none beside 'decoding'")
            labels, decoding = _decoding(document.decoding, outputs, path.parent)
        task = Task(
            name=document.name,
            inputs=_specs("inputs", document.inputs),
            outputs=outputs,
            accuracy_metric=document.metric,
            description=document.description,
            labels=labels,
            decoding=decoding,
        )
        _check_metric(task)
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(f"task file {path}: {error}") from None
    return task


def _check_metric(task: Task) -> None:
    """Refuse what could not be put right once the task is registered.

    A metric of a name that is like no other is the user's own: accuracies are stated by it.
    """
    try:
        metric = find_metric(task.accuracy_metric, task)
    except NotFoundError:
        if did_you_mean(task.accuracy_metric, METRICS):
            raise
        return
    scores = next(filter(is_scores, task.outputs), None)
    if not task.labels or metric.expects is not Expects.CLASS or scores is None:
        return
    if scores.shape[1] not in (-1, len(task.labels)):
        allowed = f"{scores.shape[1]}, the classes of output {scores.name!r}"
        raise InvalidInputError.of("labels", f"{len(task.labels)} labels", allowed)


def _specs(field: str, parts: list[TensorPart]) -> tuple[TensorSpec, ...]:
    names = [part.name for part in parts]
    if len(set(names)) != len(names):
        raise InvalidInputError.of(field, names, "each name once")
    for part in parts:
        name = f"{field}.{part.name}"
        if part.datatype not in DTYPES:
            raise InvalidInputError.of(f"{name}.datatype", part.datatype, ", ".join(DTYPES))
        if part.shape[0] != -1 or any(size < 1 and size != -1 for size in part.shape):
            allowed = "-1 first, which counts items; then sizes from 1, or -1 for any"
            raise InvalidInputError.of(f"{name}.shape", part.shape, allowed)
        if part.padding is not None and (field == "outputs" or -1 not in part.shape[1:]):
            allowed = "none, but for an input that leaves sizes free"
            raise InvalidInputError.of(f"{name}.padding", part.padding, allowed)
        if isinstance(part.padding, float) and not _fits(part.padding, part.datatype):
            allowed = f"'edge', or a value of {part.datatype}"
            raise InvalidInputError.of(f"{name}.padding", part.padding, allowed)
    return tuple(
        TensorSpec(part.name, part.datatype, tuple(part.shape), part.padding) for part in parts
    )


def _fits(value: float, datatype: str) -> bool:
    """Returns whether a datatype has the value; a datatype of floats has it if it is in range.

    Texts are no values.
    """
    dtype = DTYPES[datatype]
    if dtype.kind == "O":
        return False
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype).max)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return value.is_integer() and least <= value <= most


def _labels(labels: list[str] | str, folder: Path) -> tuple[str, ...]:
    if isinstance(labels, str):
        lines = _read_lines("labels", folder / labels)
        while lines and lines[-1] == "":
            lines = lines[:-1]
        if "" in lines:
            raise InvalidInputError.of(
                "labels", f"no label in line {lines.index('') + 1}", "one in each"
            )
        labels = [line.strip() or line for line in lines]
    if len(labels) > _MOST_LABELS:
        raise InvalidInputError.of("labels", f"{len(labels)} labels", f"up to {_MOST_LABELS}")
    return tuple(labels)


def _decoding(
    part: DecodingPart, outputs: tuple[TensorSpec, ...], folder: Path
) -> tuple[tuple[str, ...], CtcDecoding]:
    readable = [spec for spec in outputs if is_steps(spec) and part.output in (None, spec.name)]
    if len(readable) != 1:
        shown = "; ".join(map(str, outputs))
        allowed = f"the name of one that is FP32 [-1, steps, classes]; there are: {shown}"
        raise InvalidInputError.of("decoding.output", part.output, allowed)
    (spec,) = readable
    alphabet: tuple[str, ...]
    if isinstance(part.alphabet, list):
        alphabet = tuple(part.alphabet)
    elif part.alphabet.endswith(".onnx"):
        metadata = inspect_onnx(folder / part.alphabet).metadata
        alphabet = alphabet_of_metadata(metadata, part.metadata, spec.shape[2])
    else:
        alphabet = _read_lines("decoding.alphabet", folder / part.alphabet)
    if "" in alphabet:
        raise InvalidInputError.of(
            "decoding.alphabet", f"no character in line {alphabet.index('') + 1}", "one in each"
        )
    if not 0 <= part.blank <= len(alphabet) < _MOST_LABELS:
        allowed = f"0 to {len(alphabet)}, the length of the alphabet (at most {_MOST_LABELS - 1})"
        raise InvalidInputError.of("decoding.blank", part.blank, allowed)
    return with_blank(alphabet, part.blank), CtcDecoding(spec.name, part.blank)


def _read_lines(field: str, path: Path) -> tuple[str, ...]:
    try:
        return read_lines(path.read_bytes().decode("utf-8"))
    except OSError as error:
        allowed = f"a readable file ({error.strerror})"
        raise InvalidInputError.of(field, str(path), allowed) from None
    except UnicodeDecodeError:
        raise InvalidInputError.of(field, str(path), "a text file in UTF-8") from None
