"""Holding the outputs a request asks for against the task it names.

Its inputs are held against the task by ``variants.signature``, as those of every other caller.
"""

from __future__ import annotations

from modelless.controller.api.v2_errors import invalid, nearest
from modelless.controller.api.v2_request import InferRequest
from modelless.variants.vocabulary import Task


def check_outputs(request: InferRequest, task: Task) -> None:
    """Refuse a request for an output that the task does not have, before anything is run.

    Raises:
        InvalidInputError: names the output and those there are.
    """
    if not request.requested_outputs:
        return
    known = [spec.name for spec in task.outputs]
    for index, wanted in enumerate(request.requested_outputs):
        if wanted.name not in known:
            hint = nearest(wanted.name, known)
            raise invalid(f"outputs[{index}].name", wanted.name, ", ".join(known), hint)
