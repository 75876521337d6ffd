"""A trained model as users name it, whatever it is: an ONNX file, or what is converted to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from modelless.common.errors import InvalidInputError
from modelless.common.plugins import import_object
from modelless.variants.conversion.converted import FRAMEWORKS, ONNX, Source, convert
from modelless.variants.graphs.inspection import read_onnx
from modelless.variants.making.calibration import CalibrationData

ALLOWED: Final = (
    "an .onnx file; package.module:attribute of importable code; a .pt2 file of torch.export.save; "
    "a .skops file"
)
_SUFFIXES: Final[Mapping[str, str]] = {
    ".onnx": ONNX,
    ".pt2": "pytorch",
    ".skops": "scikit-learn",
}
_PACKAGES: Final[Mapping[str, str]] = {
    "torch": "pytorch",
    "sklearn": "scikit-learn",
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
}
_PROGRAMS: Final = frozenset({".h5", ".joblib", ".keras", ".pickle", ".pkl", ".pt", ".pth"})


def framework_of(source: str, framework: str | None = None) -> str:
    """The framework of ``source``: a key of ``FRAMEWORKS``, or ``onnx``.

    Importable code is imported to find out, but no function is called: what a function makes has to
    be said.

    Args:
        framework: what the user says it is; None to find out.

    Raises:
        InvalidInputError: nothing that is known, a program in disguise (a pickle), or a function
            whose framework was not said.
        NotFoundError: nothing can be imported under that name.
    """
    kinds = (*FRAMEWORKS, ONNX)
    if framework is not None:
        if framework not in kinds:
            raise InvalidInputError.of("--framework", framework, ", ".join(kinds))
        return framework
    suffix = Path(source).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in _PROGRAMS and ":" not in source:
        raise InvalidInputError.of(
            "source",
            source,
            ALLOWED,
            f"A {suffix} file may run whatever its author wrote when it is read. Write a function "
            "that loads it, and name that as package.module:function.",
        )
    if ":" not in source:
        raise InvalidInputError.of("source", source, ALLOWED)
    found = import_object(source, "model")
    for base in type(found).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _PACKAGES:
            return _PACKAGES[package]
    if not callable(found):
        raise InvalidInputError.of("source", source, ALLOWED, f"It is {found!r:.80}, not a model.")
    raise InvalidInputError.of(
        "--framework",
        None,
        ", ".join(FRAMEWORKS),
        f"What {source} makes cannot be told before it is called: say what it is.",
    )


def read_source(
    source: str, framework: str | None, inputs: Callable[[], CalibrationData]
) -> Source:
    """The model that ``source`` names, converted and held against its origin where it is not ONNX.

    Args:
        inputs: gives real inputs, to convert with; called only where something is converted.

    Raises:
        InvalidInputError: see ``framework_of``; or it cannot be converted, or answers differently
            afterwards: names the first output that does.
        NotFoundError, EnvironmentUnfitError, IntegrityError: as ``convert`` and ``read_onnx``.
    """
    kind = framework_of(source, framework)
    if kind == ONNX:
        return Source(source, read_onnx(source))
    return convert(kind, source, inputs())
