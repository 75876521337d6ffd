"""Converts a trained model to ONNX and compares the result with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto

from modelless.common.errors import FOREIGN_ERRORS, InvalidInputError, ModellessError
from modelless.common.plugins import Plugins, import_object
from modelless.variants.graphs.canonical import write_model
from modelless.variants.graphs.inspection import read_onnx
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Outputs
from modelless.variants.making.lineage import tool_versions
from modelless.variants.making.verification import verify_conversion

_HOME: Final = "modelless.variants.conversion"

FRAMEWORKS: Final = Plugins(
    "framework",
    {
        "pytorch": f"{_HOME}.pytorch:convert_pytorch",
        "scikit-learn": f"{_HOME}.scikit_learn:convert_scikit_learn",
        "tensorflow": f"{_HOME}.tensorflow:convert_tensorflow",
    },
)
"""The converter of each framework."""


ONNX: Final = "onnx"


@dataclass(frozen=True, slots=True)
class Source:
    """A trained model in ONNX, which answers as what it was converted from does.

    Attributes:
        onnx_bytes: the model, weights and all; in canonical form if it was converted.
        framework: a key of ``FRAMEWORKS``, or ``onnx`` where nothing had to be converted.
        tools: versions of the packages that converted it.
    """

    name: str
    onnx_bytes: bytes
    framework: str = ONNX
    tools: Mapping[str, str] = field(default_factory=dict)


def convert(framework: str, source: str, inputs: CalibrationData) -> Source:
    """Convert a trained model and hold the result against it.

    Args:
        source: ``package.module:attribute``, a model or what makes one when called without
            arguments; or a file of a format that the framework's converter names.
        inputs: real inputs, by the names that the ONNX model's inputs shall have, in the order in
            which the model takes them. Axis 0, and what differs in size between calls, stays free.

    Raises:
        NotFoundError: no such framework, or nothing to import under that name.
        EnvironmentUnfitError: the framework or its converter is not installed.
        InvalidInputError: the source is no such model, cannot be converted, or the result differs.
        IntegrityError: the result is no valid model.
    """
    FRAMEWORKS.check(framework)
    if not inputs.feeds:
        raise InvalidInputError.of("conversion: inputs", "none", "one call of real inputs at least")
    converter: Callable[..., Source] = FRAMEWORKS.find(framework)
    return converter(source, inputs)


def finish(
    model: ModelProto,
    source_run: Callable[[Feed], Outputs],
    source: str,
    inputs: CalibrationData,
    framework: str,
    tools: set[str],
) -> Source:
    """The last steps that all converters share: write canonically, verify, note the tools."""
    onnx_bytes = write_model(model)
    verify_conversion(guarded(source_run, source), onnx_bytes, inputs)
    return Source(source, onnx_bytes, framework, tool_versions({"onnx", *tools}))


def guarded(source_run: Callable[[Feed], Outputs], source: str) -> Callable[[Feed], Outputs]:
    """``source_run``, which raises InvalidInputError whatever the user's own model raises."""

    def run(feed: Feed) -> Outputs:
        try:
            return source_run(feed)
        except ModellessError:
            raise
        except FOREIGN_ERRORS as error:  # such as another shape than it was trained on
            raise InvalidInputError(
                f"conversion: {source} fails on the inputs: {type(error).__name__}: {error}"
            ) from error

    return run


def output_names(count: int) -> list[str]:
    """Names for outputs that have none of their own: ``output``, or ``output_0``, ..."""
    return ["output"] if count == 1 else [f"output_{index}" for index in range(count)]


def load_model(source: str, kind: type) -> Any:
    """The model of importable code that ``source`` names, or that a factory there makes.

    Raises:
        NotFoundError: it cannot be imported.
        InvalidInputError: it is no path of importable code, or no model of ``kind``.
    """
    allowed = (
        f"package.module:attribute, {kind.__qualname__} or a function without arguments that makes "
        "one"
    )
    if ":" not in source:
        raise InvalidInputError.of(
            "conversion: source", source, allowed, "Pickles are never read: they are programs."
        )
    found = import_object(source, "model")
    if callable(found) and not isinstance(found, kind):
        try:
            found = found()
        except FOREIGN_ERRORS as error:  # whatever the user's own code raises is told
            raise InvalidInputError.of(
                "conversion: source", source, allowed, f"It raised {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, kind):
        raise InvalidInputError.of("conversion: source", source, allowed, f"It is {found!r:.80}.")
    return found


ALLOWED: Final = (
    "an .onnx file; package.module:attribute of importable code; a .pt2 file of torch.export.save; "
    "a .skops file"
)
_SUFFIXES: Final[Mapping[str, str]] = {".onnx": ONNX, ".pt2": "pytorch", ".skops": "scikit-learn"}
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
