"""Validation sets: labelled items on which accuracy is measured."""

from pathlib import Path

from modelless.common.errors import InvalidInputError
from modelless.variants.validation.expected import Expects
from modelless.variants.validation.validation_set import Batch, Item, ValidationSet
from modelless.variants.vocabulary import Task


def open_validation_set(path: Path, task: Task, expects: Expects) -> ValidationSet:
    """The validation set at ``path``: a folder of pictures or of a dataset, ``.npz`` or ``.csv``.

    Args:
        path: what the user named.
        task: whose items they are.
        expects: what the metric needs.

    Raises:
        InvalidInputError: none of these, or something in it is wrong; names file or row.
        EnvironmentUnfitError: a package that reads it is not installed.
    """
    # The module that reads a kind is imported only where it is needed.
    if path.is_dir():
        from modelless.variants.validation.hugging_face import SPLITS, STATE, HuggingFaceSet
        from modelless.variants.validation.picture_folder import PictureFolder

        if (path / STATE).is_file() or (path / SPLITS).is_file():
            return HuggingFaceSet(path, task, expects)
        return PictureFolder(path, task, expects)
    if path.is_file():
        from modelless.variants.validation.arrays import read_csv, read_npz

        if path.suffix == ".npz":
            return read_npz(path, task, expects)
        if path.suffix == ".csv":
            return read_csv(path, task, expects)
    raise InvalidInputError.of(
        "validation set",
        str(path),
        "a folder with a folder of pictures for each label, or with labels.csv; a dataset saved to "
        "disk; an .npz file; a .csv file",
    )


__all__ = ["Batch", "Item", "ValidationSet", "open_validation_set"]
