"""PyTorch modules and exported programs, through ``torch.onnx.export(..., dynamo=True)``.

https://docs.pytorch.org/docs/stable/onnx_export.html. A module comes as importable code. A ``.pt2``
file (``torch.export.save``) is a zip archive of JSON and raw weights, but PyTorch reads pickles and
compiled libraries in it besides, which ``without_pickles`` refuses or leaves out.
What stays trusted is the program itself: PyTorch looks up the operators that its JSON names and
evaluates its size expressions, so take ``.pt2`` files only from whom you would take code.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from onnx import ModelProto

from modelless.common.errors import IntegrityError, InvalidInputError, require
from modelless.common.files import ZIP_ERRORS
from modelless.variants.artifacts import MAX_ARTIFACT_BYTES
from modelless.variants.conversion.converted import (
    Source,
    finish,
    guarded,
    load_model,
    output_names,
)
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Outputs

# -- .pt2 archives without their pickles ----------------------------------------------------------
#
# ``torch.export.load`` unpickles sample inputs, and weights and constants that have no plain form,
# and loads libraries that AOTInductor compiled; all of these run code of the file's author. Sample
# inputs are not needed and left empty. A file with anything else of this kind is refused.

_PLAIN: Final = (
    ".data/",
    "archive_format",
    "archive_version",
    "byteorder",
    "data/constants/",
    "data/sample_inputs/",
    "data/weights/",
    "models/model.json",
    "version",
)
_CONFIGS: Final = ("data/constants/", "data/weights/")


def without_pickles(source: str) -> io.BytesIO:
    """The archive at ``source``, copied into memory.

    Raises:
        InvalidInputError: it cannot be read, or is no such archive.
        IntegrityError: it holds a pickle that is needed, or anything else that would run.
    """
    copy = io.BytesIO()
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(copy, "w") as plain:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ARTIFACT_BYTES:
                raise IntegrityError(f"{source}: allowed: up to {MAX_ARTIFACT_BYTES} bytes.")
            names = [entry.filename.partition("/")[2] for entry in archive.infolist()]
            if "models/model.json" not in names:
                raise InvalidInputError.of(
                    "conversion: source", source, "a .pt2 file of PyTorch 2.8 or later"
                )
            for entry, name in zip(archive.infolist(), names, strict=True):
                if not name.startswith(_PLAIN):
                    raise _refusal(source, name, "it is no part of a plain exported program")
                content = archive.read(entry)
                if name.startswith(_CONFIGS):
                    _check_payload(source, name, content)
                if name.startswith("data/sample_inputs/"):
                    content = b""
                plain.writestr(entry.filename, content)
    except ZIP_ERRORS as error:
        raise InvalidInputError.of(
            "conversion: source", source, "a .pt2 file", f"({error})"
        ) from error
    copy.seek(0)
    return copy


def _check_payload(source: str, name: str, content: bytes) -> None:
    if name.endswith(".pt"):
        raise _refusal(source, name, "the format of older versions is a pickle")
    if not name.endswith("_config.json"):
        return
    try:
        entries: dict[str, dict[str, Any]] = json.loads(content)["config"]
        pickled = [
            tensor
            for tensor, entry in entries.items()
            if entry["use_pickle"] is not False
            or not str(entry["path_name"]).startswith(("weight_", "tensor_"))
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(source, name, f"it is damaged ({error!r})") from error
    if pickled:
        raise _refusal(source, name, f"{', '.join(pickled[:5])} would be unpickled")


def _refusal(source: str, name: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{source}: {name}: {why}; allowed: a program whose weights and constants are plain "
        "tensors, without compiled libraries. Name the module as package.module:factory instead."
    )


_HINT: Final = "install PyTorch, https://pytorch.org, and pip install onnxscript"


def convert_pytorch(source: str, inputs: CalibrationData) -> Source:
    """See ``converted.convert``. The source may be a ``.pt2`` file; its free sizes are its own.

    Tensors are handed over in the order of ``inputs``. The outputs are called ``output``, or
    ``output_0``, ``output_1``, ... if there are several.
    """
    torch = import_torch()
    names = list(inputs.feeds[0])
    if source.endswith(".pt2"):
        program = _load_program(torch, source)
        module, arguments, sizes = program.module(), None, None
    else:
        module = load_model(source, torch.nn.Module).eval()
        arguments, sizes = _example(torch, inputs, names), _free_sizes(torch, inputs, names)
        program = module

    def run(feed: Feed) -> Outputs:
        with torch.no_grad():
            found = module(*(torch.from_numpy(np.array(feed[name])) for name in names))
        arrays = [tensor.numpy() for tensor in _flat(torch, found)]
        return dict(zip(output_names(len(arrays)), arrays, strict=True))

    count = len(guarded(run, source)(inputs.feeds[0]))
    model = _export(torch, program, arguments, names, output_names(count), sizes, source)
    return finish(model, run, source, inputs, "pytorch", {"torch", "onnxscript"})


def import_torch() -> Any:
    """The module ``torch``; EnvironmentUnfitError if it, or what it exports with, is missing."""
    torch = require("torch", "conversion", _HINT)
    require("onnxscript", "conversion", _HINT)
    return torch


def export_module(module: Any, inputs: CalibrationData, outputs: Sequence[str]) -> ModelProto:
    """A module, in evaluation mode, as a graph whose inputs are called as those are.

    Args:
        module: an ``nn.Module`` that takes the inputs in their order.
        inputs: axis 0, and what differs in size between calls, stays free.

    Raises:
        InvalidInputError: PyTorch cannot export it.
    """
    torch = import_torch()
    names = list(inputs.feeds[0])
    arguments, sizes = _example(torch, inputs, names), _free_sizes(torch, inputs, names)
    return _export(torch, module, arguments, names, outputs, sizes, "the module")


def _export(
    torch: Any,
    program: Any,
    arguments: tuple[Any, ...] | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    sizes: tuple[Any, ...] | None,
    what: str,
) -> ModelProto:
    try:
        with _quiet():
            exported = torch.onnx.export(
                program,
                arguments,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=sizes,
            )
    except Exception as error:  # the exporter's kinds have no common base
        raise InvalidInputError(
            f"conversion: PyTorch cannot export {what}: {type(error).__name__}: {error}"
        ) from error
    model: ModelProto = exported.model_proto
    return model


def _load_program(torch: Any, source: str) -> Any:
    archive = without_pickles(source)
    try:
        return torch.export.load(archive)
    except Exception as error:  # a damaged program raises whatever is met first
        raise InvalidInputError.of(
            "conversion: source", source, "a file that torch.export.save wrote", f"({error})"
        ) from error


def _example(torch: Any, inputs: CalibrationData, names: Sequence[str]) -> tuple[Any, ...]:
    """The first call's tensors, of two items at least: a size of 1 would be taken for fixed."""
    feed = inputs.feeds[0]
    arrays = (feed[name] for name in names)
    return tuple(
        torch.from_numpy(np.concatenate([array, array]) if len(array) == 1 else np.array(array))
        for array in arrays
    )


def _free_sizes(torch: Any, inputs: CalibrationData, names: Sequence[str]) -> tuple[Any, ...]:
    """Axis 0, and the axes along which calls differ."""
    found = []
    for name in names:
        shapes = {feed[name].shape[1:] for feed in inputs.feeds}
        differing = [
            axis for axis, sizes in enumerate(zip(*shapes, strict=True), 1) if len(set(sizes)) > 1
        ]
        found.append(dict.fromkeys((0, *differing), torch.export.Dim.DYNAMIC))
    return tuple(found)


def _flat(torch: Any, found: Any) -> list[Any]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = tuple(found.values())
    if isinstance(found, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in found):
        return list(found)
    raise InvalidInputError.of(
        "conversion: what the module returns", type(found).__name__, "a tensor, or several"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch says of packages that are not installed, and of its own future."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(before)
