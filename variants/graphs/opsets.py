"""Versions of the standard operators."""

from __future__ import annotations

from onnx import ModelProto, version_converter

from modelless.common.errors import InvalidInputError


def at_least_opset(model: ModelProto, wanted: int) -> ModelProto:
    """``model``, or its form for opset ``wanted`` if it was written for an older one.

    Raises:
        InvalidInputError: onnx's converter does not know how.
    """
    found = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if found >= wanted:
        return model
    try:
        return version_converter.convert_version(model, wanted)
    except Exception as error:  # the converter raises RuntimeError and kinds of its own
        raise InvalidInputError.of(
            "model: opset", found, f"{wanted} or more", f"It cannot be converted: {error}"
        ) from error
