"""Offline runs over HTTP: what a client asks for (``POST /modelless/batches``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelless.common.errors import InvalidInputError
from modelless.common.settings_files import problems
from modelless.controller.api.json_reader import read_json
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import PayloadTooLargeError

_Path = Annotated[str, Field(min_length=1, max_length=1024)]


class BatchRequest(BaseModel):
    """An offline run; see ``usecases.offline.batch``. Paths are relative to ``batch.folder``."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    input: _Path
    output: _Path
    task: Annotated[str, Field(min_length=1, max_length=512)]
    min_accuracy: Annotated[float, Field(ge=0, le=100)] | None = None
    deadline_s: Annotated[float, Field(ge=0.001, le=7 * 86_400)] | None = None
    top: Annotated[int, Field(ge=1, le=1000)] | None = None
    rows_per_file: Annotated[int, Field(ge=1, le=1_000_000)] = 5000


def parse_batch(body: bytes | memoryview, limits: Limits) -> BatchRequest:
    """Read a body: ``{"input": ..., "output": ..., "task": ...}``.

    Raises:
        InvalidInputError: names each field that is wrong.
        PayloadTooLargeError: it has too many bytes.
    """
    if len(body) > limits.small_json_bytes:
        raise PayloadTooLargeError(
            f"body: got {len(body)} bytes; allowed: up to {limits.small_json_bytes}."
        )
    try:
        return BatchRequest.model_validate(read_json(body, len(body), limits))
    except ValidationError as error:
        raise InvalidInputError(f"body: {problems(error)}") from None
