"""scikit-learn estimators and pipelines, through skl2onnx.

https://onnx.ai/sklearn-onnx. A model comes as importable code or as a ``.skops`` file, whose types
skops audits before it builds anything (https://skops.readthedocs.io/en/stable/persistence.html):
only such as it knows to be harmless are let in. joblib and pickle files are programs, and are not
read. Of trees, which skops cannot vouch for, importable code is the way.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import GraphProto
from onnx.helper import make_attribute

from modelless.common.errors import IntegrityError, InvalidInputError, require
from modelless.variants.artifacts import MAX_ARTIFACT_BYTES
from modelless.variants.conversion.converted import Source, finish, load_model
from modelless.variants.making.calibration import CalibrationData, Feed
from modelless.variants.making.fidelity import Outputs

_HINT: Final = "pip install 'modelless[sklearn]'"
_OPSET: Final = 17
_LOCALE: Final = "C.UTF-8"
"""By which letters become lower case. Without a name ONNX Runtime asks for one that servers and
containers seldom have."""


def convert_scikit_learn(source: str, inputs: CalibrationData) -> Source:
    """See ``converted.convert``. One input [items, features], or [items] of texts.

    A classifier's outputs are ``label`` and ``probabilities``, a regressor's is ``variable``. The
    source computes in float64, its ONNX form in float32; a tree that splits between the two
    answers otherwise there, and verification then refuses it.
    """
    skl2onnx = require("skl2onnx", "conversion", _HINT)
    from sklearn.base import BaseEstimator, is_classifier

    model = _read_skops(source) if source.endswith(".skops") else load_model(source, BaseEstimator)
    first = inputs.feeds[0]
    if len(first) != 1 or any(
        array.ndim != 2 and (array.ndim, array.dtype.kind) != (1, "U") for array in first.values()
    ):
        shapes = {name: array.shape for name, array in first.items()}
        allowed = "one array [items, features], or [items] of texts"
        raise InvalidInputError.of("conversion: inputs", shapes, allowed)
    ((name, example),) = first.items()
    kind = _type_of(example.dtype, example.shape[1:])
    classifies = is_classifier(model) and hasattr(model, "predict_proba")
    try:
        made = skl2onnx.to_onnx(
            model,
            initial_types=[(name, kind)],
            options={"zipmap": False} if classifies else None,
            target_opset=_OPSET,
        )
    except Exception as error:  # its own kinds, for operators, shapes and options, have no base
        raise InvalidInputError(f"conversion: skl2onnx refuses {source}: {error}") from error
    _use_gather(made.graph)
    for node in made.graph.node:
        if node.op_type == "StringNormalizer":
            node.attribute.append(make_attribute("locale", _LOCALE))
    outputs = [value.name for value in made.graph.output]

    def run(feed: Feed) -> Outputs:
        given = feed[name]
        if classifies:
            return dict(
                zip(outputs, (model.predict(given), model.predict_proba(given)), strict=True)
            )
        found = np.asarray(model.predict(given))
        # skl2onnx gives regressors' single outputs an axis of their own.
        return {outputs[0]: found.reshape(len(given), -1) if found.ndim == 1 else found}

    return finish(made, run, source, inputs, "scikit-learn", {"sklearn", "skl2onnx"})


def _use_gather(graph: GraphProto) -> None:
    """Look classes up by the standard's own operator, which more engines have.

    skl2onnx picks a label among the constant classes by ``ArrayFeatureExtractor`` of
    ``ai.onnx.ml``, and gives the result a shape of its own afterwards.
    """
    lists = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
    reshaped = {node.input[0] for node in graph.node if node.op_type == "Reshape"}
    for node in graph.node:
        if (
            node.op_type == "ArrayFeatureExtractor"
            and node.input[0] in lists
            and node.output[0] in reshaped
        ):
            node.op_type, node.domain = "Gather", ""


def _type_of(dtype: np.dtype[Any], sizes: tuple[int, ...]) -> Any:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    kinds = {"f4": FloatTensorType, "i8": Int64TensorType}
    kind = StringTensorType if dtype.kind == "U" else kinds.get(dtype.str[1:])
    if kind is None:
        allowed = "float32, int64 or text"
        raise InvalidInputError.of("conversion: inputs' type", str(dtype), allowed)
    return kind([None, *sizes])


def _read_skops(source: str) -> Any:
    skops_io = require("skops.io", "conversion", _HINT)
    path = Path(source)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_ARTIFACT_BYTES:
                raise IntegrityError(f"{source}: allowed: up to {MAX_ARTIFACT_BYTES} bytes.")
        untrusted = skops_io.get_untrusted_types(file=path)
        if untrusted:
            raise InvalidInputError.of(
                f"conversion: types in {source}",
                ", ".join(untrusted),
                "types that skops knows to be harmless",
                "Name the model as package.module:attribute of code that makes it instead.",
            )
        return skops_io.load(path, trusted=[])
    except (IntegrityError, InvalidInputError):
        raise
    except Exception as error:  # a damaged archive raises whatever is met first
        raise InvalidInputError.of(
            "conversion: source", source, "a file that skops.io.dump wrote", f"({error})"
        ) from error
