"""A Hugging Face dataset that was saved to disk: ``Dataset.save_to_disk`` wrote the folder.

Nothing is downloaded: https://huggingface.co/docs/datasets says how a dataset is fetched and saved.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from modelless.common.errors import InvalidInputError, require
from modelless.variants.artifacts import file_sha256
from modelless.variants.signature import TEXT, as_texts, dtype_of
from modelless.variants.validation.expected import Expects, LabelReader
from modelless.variants.validation.pictures import PictureInput
from modelless.variants.validation.validation_set import (
    Item,
    ValidationSet,
    check_count,
)
from modelless.variants.vocabulary import Task

STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
_LABEL: Final = "label"


class HuggingFaceSet(ValidationSet):
    """The rows of a saved dataset, with a column ``label`` and a column an input.

    A picture's column is called ``image``, or as the task's input is. What the column ``label``
    calls its classes counts, not how it numbers them.

    Raises:
        EnvironmentUnfitError: the package ``datasets`` is not installed.
        InvalidInputError: a folder of several splits, no such dataset, or a column is missing.
    """

    def __init__(self, folder: Path, task: Task, expects: Expects) -> None:
        if expects is Expects.BOXES:
            raise InvalidInputError(f"{folder}: boxes are read from .npz or labels.csv only.")
        self._folder = folder
        self.name = folder.resolve().name
        self._task = task
        self._reader = LabelReader(task, expects)
        self._rows = _load(folder)
        check_count(str(folder), len(self._rows))
        features = self._rows.features
        self._picture = None
        self._columns = {spec.name: spec.name for spec in task.inputs}
        only = task.inputs[0].name
        if len(task.inputs) == 1 and only not in features and "image" in features:
            self._columns[only] = "image"
        wanted = [*self._columns.values(), *([] if expects is Expects.NOTHING else [_LABEL])]
        missing = [name for name in wanted if name not in features]
        if missing:
            raise InvalidInputError.of(
                f"{folder}: columns", list(features), f"also {', '.join(missing)}"
            )
        if type(features[self._columns[only]]).__name__ == "Image":
            self._picture = PictureInput.of(task)
        self._names = getattr(features.get(_LABEL), "names", None)

    @cached_property
    def sha256(self) -> str:
        """Of the folder's Arrow files, which hold the rows."""
        digest = hashlib.sha256()
        for path in sorted(self._folder.glob("*.arrow")):
            digest.update(bytes.fromhex(file_sha256(path)))
        return digest.hexdigest()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def item(self, index: int) -> Item:
        """See ``ValidationSet.item``."""
        where = f"{self._folder}, row {index}"
        row = self._row(index, where)
        label = row.get(_LABEL)
        if self._names is not None and isinstance(label, int) and 0 <= label < len(self._names):
            label = self._names[label]
        if isinstance(label, list):
            label = np.asarray(label)
        if self._picture is not None:
            column = self._columns[self._picture.name]
            if row[column] is None:
                raise InvalidInputError.of(f"{where}: {column}", None, "a picture")
            inputs: dict[str, Any] = {self._picture.name: self._picture.array(row[column], where)}
        else:
            inputs = {
                spec.name: _array(row[self._columns[spec.name]], spec.datatype, where)
                for spec in self._task.inputs
            }
        return Item(inputs, self._reader.read(label, where))

    def _row(self, index: int, where: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._rows[index]
        except (OSError, ValueError, SyntaxError) as error:  # a picture that is broken
            raise InvalidInputError(f"{where}: cannot be read ({error}).") from None
        return found


def _load(folder: Path) -> Any:
    if (folder / SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
        raise InvalidInputError.of(
            "--data", str(folder), "one split", f"Name one: {', '.join(splits)} (folders in it)."
        )
    what = f"{folder} is a Hugging Face dataset, which"
    datasets = require("datasets", what, "pip install 'modelless[validation]'")
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(
            f"{folder}: not a dataset that was saved to disk: {error}."
        ) from None


def _array(value: Any, datatype: str, where: str) -> Any:
    if datatype == TEXT:
        return as_texts(where, np.asarray(value, np.object_))
    try:
        return np.asarray(value, dtype=dtype_of(datatype))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{where}: not an array of {datatype}: {error}.") from None
