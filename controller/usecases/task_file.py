"""A task described in a YAML file: what ``modelless register --task-file`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelless.common.errors import InvalidInputError
from modelless.common.settings_files import problems
from modelless.common.yaml_files import read_yaml
from modelless.variants.signature import DTYPES
from modelless.variants.vocabulary import Task, TensorSpec

_MOST_LABELS = 100_000


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TensorPart(_Part):
    """One tensor of the signature; the first size counts items and is -1."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    datatype: str
    shape: Annotated[list[int], Field(min_length=1, max_length=8)]


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
        return Task(
            name=document.name,
            inputs=_specs("inputs", document.inputs),
            outputs=_specs("outputs", document.outputs),
            accuracy_metric=document.metric,
            description=document.description,
            labels=_labels(document.labels, path.parent),
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"task file {path}: {error}") from None


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
    return tuple(TensorSpec(part.name, part.datatype, tuple(part.shape)) for part in parts)


def _labels(labels: list[str] | str, folder: Path) -> tuple[str, ...]:
    if isinstance(labels, str):
        path = folder / labels
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            allowed = f"a readable file ({error.strerror})"
            raise InvalidInputError.of("labels", str(path), allowed) from None
        except UnicodeDecodeError:
            raise InvalidInputError.of("labels", str(path), "a text file in UTF-8") from None
        labels = list(filter(None, map(str.strip, lines)))
    if len(labels) > _MOST_LABELS:
        raise InvalidInputError.of("labels", f"{len(labels)} labels", f"up to {_MOST_LABELS}")
    return tuple(labels)
