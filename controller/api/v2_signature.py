"""Holding a request against the signature of the task it names."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.controller.api.v2_errors import invalid, nearest
from modelless.controller.api.v2_request import InferRequest
from modelless.controller.api.v2_tensors import datatype_of
from modelless.variants.errors import InvalidInputError
from modelless.variants.vocabulary import Task, TensorSpec


def match_signature(request: InferRequest, task: Task) -> int:
    """Check names, datatypes and shapes of a request's tensors against its task.

    Returns:
        How many items the query has: the size of axis 0, the same for every input.

    Raises:
        InvalidInputError: an input missing, unknown, or of another datatype or shape; inputs that
            disagree on the number of items; an output the task does not have.
    """
    items = -1
    specs = task.inputs
    tensors = request.tensors
    if len(tensors) != len(specs) or any(spec.name not in tensors for spec in specs):
        raise _wrong_names(list(tensors), specs)
    for spec in specs:
        array = tensors[spec.name]
        if datatype_of(array) != spec.datatype:
            raise invalid(f"{_field(request, spec)}.datatype", datatype_of(array), spec.datatype)
        shape = array.shape
        if len(shape) != len(spec.shape) or any(
            wanted not in (-1, size) for wanted, size in zip(spec.shape, shape, strict=True)
        ):
            allowed = f"{list(spec.shape)}, -1 being any size"
            raise invalid(f"{_field(request, spec)}.shape", list(shape), allowed)
        if not shape or 0 in shape:
            allowed = "1 item or more along every axis"
            raise invalid(f"{_field(request, spec)}.shape", list(shape), allowed)
        if items not in (-1, shape[0]):
            allowed = f"{items} items, as the inputs before it"
            raise invalid(f"{_field(request, spec)}.shape", list(shape), allowed)
        items = shape[0]
    if request.requested_outputs:
        known = [spec.name for spec in task.outputs]
        for index, wanted in enumerate(request.requested_outputs):
            if wanted.name not in known:
                hint = nearest(wanted.name, known)
                raise invalid(f"outputs[{index}].name", wanted.name, ", ".join(known), hint)
    return items


def _field(request: InferRequest, spec: TensorSpec) -> str:
    return f"inputs[{list(request.tensors).index(spec.name)}]"


def _wrong_names(given: list[str], specs: Sequence[TensorSpec]) -> InvalidInputError:
    known = [spec.name for spec in specs]
    for index, name in enumerate(given):
        if name not in known:
            hint = nearest(name, known)
            return invalid(f"inputs[{index}].name", name, ", ".join(known), hint)
    missing = [name for name in known if name not in given]
    return invalid("inputs", given, f"all of {', '.join(known)}", f"Add {', '.join(missing)}.")
