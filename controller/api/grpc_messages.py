"""Reads the requests of ``GRPCInferenceService``, and writes its replies.

Message and field numbers are those of Triton's ``grpc_service.proto``, of which the Open Inference
Protocol's is a part: https://github.com/triton-inference-server/common (protobuf/)
and https://github.com/kserve/open-inference-protocol (specification/protocol/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import DeadlineExceededError
from modelless.controller.api import protobuf as pb
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_errors import Words, invalid, member
from modelless.controller.api.v2_reply import select_outputs
from modelless.controller.api.v2_request import (
    InferRequest,
    check_size,
    read_document,
)
from modelless.controller.api.v2_tensors import (
    BYTES,
    NUMBERS,
    check_text_bytes,
    datatype_of,
    from_binary,
    to_binary,
    widened_bytes,
)

LONGEST_S: Final = 3600.0
"""A call's deadline that is further away, seconds, is ignored."""

_MOST_FIELDS: Final = 1024
"""The most fields that a message may have, without the elements of a tensor."""

_MOST_JOINED_BYTES: Final = 1 << 20
"""Of values that come in several fields: copying them holds the interpreter."""

_CONTENTS: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "INT8": 2,
    "INT16": 2,
    "INT32": 2,
    "INT64": 3,
    "UINT8": 4,
    "UINT16": 4,
    "UINT32": 4,
    "UINT64": 5,
    "FP32": 6,
    "FP64": 7,
    BYTES: 8,
}
"""The field of InferTensorContents for each datatype; the other datatypes can only be raw."""

_CONTENTS_NAMES: Final = (
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
    "fp32_contents",
    "fp64_contents",
    "bytes_contents",
)


class InferMessage:
    """A ModelInferRequest whose parts are found but not yet read.

    Args:
        message: its bytes, plain; tensors stay views of it.

    Attributes:
        model_name, request_id: as sent; empty if not.
        model_version: as sent; None if not.
        structure_bytes: bytes that are not raw tensors; reading takes time for each of these.

    Raises:
        InvalidInputError: the message is malformed.
    """

    def __init__(self, message: memoryview) -> None:
        self.model_name = self.request_id = ""
        self.model_version: str | None = None
        self.structure_bytes = len(message)
        self._parameters: list[memoryview] = []
        self._inputs: list[memoryview] = []
        self._outputs: list[memoryview] = []
        self._raw: list[memoryview] = []
        for field in pb.read_fields("message", message, _MOST_FIELDS):
            if field.number == 1:
                self.model_name = pb.read_text("model_name", field)
            elif field.number == 2:
                self.model_version = pb.read_text("model_version", field) or None
            elif field.number == 3:
                self.request_id = pb.read_text("id", field)
            elif field.number == 4:
                self._parameters.append(pb.read_part("parameters", field))
            elif field.number == 5:
                self._inputs.append(pb.read_part("inputs", field))
            elif field.number == 6:
                self._outputs.append(pb.read_part("outputs", field))
            elif field.number == 7:
                self._raw.append(pb.read_part("raw_input_contents", field))
                self.structure_bytes -= len(field.value)

    def parse(
        self,
        limits: Limits,
        header_parameters: Mapping[str, Any],
        slos: Mapping[str, Mapping[str, Any]],
        time_left_s: float | None,
        take: Callable[[int], None] = lambda _: None,
    ) -> InferRequest:
        """Read the request.

        Args:
            limits, header_parameters, slos: as of ``parse_infer``.
            time_left_s: seconds until the call's own deadline; None if it has none.
            take: sets memory aside for a tensor that is larger than its bytes; may raise.

        Raises:
            InvalidInputError: anything malformed, contradictory or unknown; it names the field.
            PayloadTooLargeError: typed contents become a tensor of more bytes than a body may have.
            DeadlineExceededError: the call's deadline has passed.
        """
        if time_left_s is not None and time_left_s <= 0.0:
            raise DeadlineExceededError("the call's deadline passed before its message was there")
        contents: list[memoryview] = []
        inputs = []
        for index, part in enumerate(self._inputs):
            entry, typed = _read_tensor(f"inputs[{index}]", part, 5, limits)
            inputs.append(entry)
            contents.append(typed)
        outputs = [
            _read_tensor(f"outputs[{index}]", part, 0, limits)[0]
            for index, part in enumerate(self._outputs)
        ]
        document: dict[str, Any] = {
            "parameters": _read_parameters("parameters", self._parameters),
            "inputs": inputs,
            "outputs": outputs,
        }
        if self.request_id:
            document["id"] = self.request_id
        source = _MessageTensors(contents, self._raw, limits, take)
        request = read_document(
            document, source.read, limits, header_parameters, slos, binary_default=True
        )
        if time_left_s is None or time_left_s > LONGEST_S:
            return request
        latency_ms = min(time_left_s * 1e3, request.slo.latency_ms or np.inf)
        return request._replace(slo=replace(request.slo, latency_ms=float(latency_ms)))


class _MessageTensors:
    """The inputs of a message: all raw, or each in its own typed contents."""

    def __init__(
        self,
        contents: Sequence[memoryview],
        raw: Sequence[memoryview],
        limits: Limits,
        take: Callable[[int], None],
    ) -> None:
        self._take = take
        self._contents = contents
        self._raw = raw
        self._limits = limits
        self._next = 0
        if raw and len(raw) != len(contents):
            allowed = f"one for each of {len(contents)} inputs, or none"
            raise invalid("raw_input_contents", Words(f"{len(raw)} tensors"), allowed)

    def read(
        self, field: str, entry: Mapping[str, Any], datatype: str, shape: list[int], count: int
    ) -> NDArray[Any]:
        """Return the next tensor."""
        del entry
        index, self._next = self._next, self._next + 1
        typed = self._contents[index]
        if not self._raw:
            field += ".contents"
            return _read_contents(field, typed, datatype, shape, count, self._limits, self._take)
        field = f"raw_input_contents[{index}]"
        if typed:
            raise invalid(field, Words("both raw and typed contents"), "one of them")
        raw = self._raw[index]
        check_size(field, len(raw), datatype, shape, count)
        self._take(widened_bytes(datatype, count))
        return from_binary(field, raw, 0, len(raw), datatype, shape)


def _read_tensor(
    path: str, message: memoryview, contents_field: int, limits: Limits
) -> tuple[dict[str, Any], memoryview]:
    """Return an input or requested output in its form in JSON, and its typed contents."""
    entry: dict[str, Any] = {}
    parameters: list[memoryview] = []
    contents: list[memoryview] = []
    shape: list[int] = []
    for field in pb.read_fields(path, message, _MOST_FIELDS):
        if field.number == 1:
            entry["name"] = pb.read_text(f"{path}.name", field)
        elif contents_field and field.number == 2:
            entry["datatype"] = pb.read_text(f"{path}.datatype", field)
        elif contents_field and field.number == 3:
            shape += _read_shape(f"{path}.shape", field, limits)
        elif field.number == (4 if contents_field else 2):
            parameters.append(pb.read_part(f"{path}.parameters", field))
        elif contents_field and field.number == contents_field:
            contents.append(pb.read_part(f"{path}.contents", field))
    if contents_field:
        entry["shape"] = shape
    if parameters:
        entry["parameters"] = _read_parameters(f"{path}.parameters", parameters)
    return entry, _joined(f"{path}.contents", contents)


def _read_shape(path: str, field: pb.WireField, limits: Limits) -> list[int]:
    if field.wire_type == pb.VARINT:
        return [pb.read_signed(path, field)]
    sizes = pb.read_few(path, pb.read_part(path, field), limits.max_dims + 1)
    if len(sizes) > limits.max_dims:
        raise invalid(path, Words("more axes"), f"up to {limits.max_dims}")
    return sizes


def _read_parameters(path: str, entries: Iterable[memoryview]) -> dict[str, Any]:
    """Return the parameters of a map, each of which is a message of key and value."""
    found: dict[str, Any] = {}
    for entry in entries:
        key, value = "", memoryview(b"")
        for field in pb.read_fields(path, entry, 16):
            if field.number == 1:
                key = pb.read_text(path, field)
            elif field.number == 2:
                value = pb.read_part(path, field)
        found[key] = _read_parameter(member(path, key), value)
    return found


def _read_parameter(path: str, message: memoryview) -> bool | int | float | str:
    for field in pb.read_fields(path, message, 1):  # one of them is set
        if field.number == 1:
            return pb.read_number(path, field) != 0
        if field.number == 2:
            return pb.read_signed(path, field)
        if field.number == 3:
            return pb.read_text(path, field)
        if field.number == 4:
            return pb.read_double(path, field)
        if field.number == 5:
            return pb.read_number(path, field)
    raise invalid(path, Words("no value"), "a bool, an int64, a uint64, a double or a string")


def _read_contents(
    path: str,
    message: memoryview,
    datatype: str,
    shape: list[int],
    count: int,
    limits: Limits,
    take: Callable[[int], None],
) -> NDArray[Any]:
    """Return the tensor in an InferTensorContents."""
    number = _CONTENTS.get(datatype)
    if number is None:
        raise invalid(path, datatype, "raw_input_contents for this datatype")
    path += f".{_CONTENTS_NAMES[number - 1]}"
    is_fixed = datatype in ("FP32", "FP64")
    wire_type = pb.LENGTH if datatype == BYTES else pb.VARINT
    if is_fixed:
        wire_type = pb.FIXED32 if datatype == "FP32" else pb.FIXED64
    pieces: list[memoryview] = []
    for field in pb.read_fields(path, message, limits.max_strings + 8):
        if field.number != number:
            if 0 < field.number <= len(_CONTENTS_NAMES) and len(field.value):
                got = Words(_CONTENTS_NAMES[field.number - 1])
                raise invalid(path, got, f"this field alone, as for {datatype}")
            continue
        if field.wire_type not in (pb.LENGTH, wire_type):
            raise invalid(path, Words("another type"), f"values of {datatype}")
        pieces.append(field.value)
    if datatype == BYTES:
        if len(pieces) != count:
            raise invalid(path, Words(f"{len(pieces)} elements"), f"{count}, as the shape says")
        check_text_bytes(path, sum(map(len, pieces)))
        strings = np.empty(count, np.object_)
        strings[:] = [bytes(piece) for piece in pieces]
        return strings.reshape(shape)
    data = _joined(path, pieces)
    if is_fixed:
        check_size(path, len(data), datatype, shape, count)
        return from_binary(path, data, 0, len(data), datatype, shape)
    dtype = NUMBERS[datatype]
    limits.check_body_bytes(count * dtype.itemsize)  # of one byte each in the message, maybe
    take(count * dtype.itemsize)
    return pb.read_integers(path, data, dtype, count).reshape(shape)


def _joined(path: str, parts: list[memoryview]) -> memoryview:
    """Return the parts of one field as one part, which means the same in protobuf."""
    if len(parts) > 1 and sum(map(len, parts)) > _MOST_JOINED_BYTES:
        raise invalid(path, Words("many values in pieces"), "one packed field for so many values")
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


# -- replies ------------------------------------------------------------------------------------


def write_infer(
    request: InferRequest,
    outputs: Mapping[str, NDArray[Any]],
    *,
    model_name: str,
    model_version: str,
    parameters: Mapping[str, Any],
    labels: Sequence[str] = (),
) -> bytes:
    """Return a ModelInferResponse; arguments and errors as of ``render_infer``.

    Outputs are raw, unless the request's parameter ``binary_data_output`` is false.
    """
    parts = [pb.write_text(1, model_name), pb.write_text(2, model_version)]
    if request.id is not None:
        parts.append(pb.write_text(3, request.id))
    parts += _write_parameters(4, parameters)
    raw: list[Any] = []
    for index, (wanted, array) in enumerate(select_outputs(request, outputs, labels)):
        if wanted.binary != request.binary_default:
            field = f"outputs[{index}].parameters.binary_data"
            raise invalid(field, wanted.binary, "in gRPC, all outputs raw or none")
        datatype = datatype_of(array) or ""
        tensor = pb.write_text(1, wanted.name) + pb.write_text(2, datatype)
        shape = b"".join(map(pb.write_varint, array.shape))
        tensor += pb.write_part(3, shape)
        if wanted.binary:
            content = to_binary(array)
            size = len(content) if isinstance(content, bytes) else content.nbytes
            raw += (pb.write_length(6, size), content)
        else:
            tensor += pb.write_part(5, _write_contents(f"outputs[{index}]", array, datatype))
        parts.append(pb.write_part(5, tensor))
    return b"".join([*parts, *raw])


def _write_contents(path: str, array: NDArray[Any], datatype: str) -> bytes:
    number = _CONTENTS.get(datatype)
    if number is None:
        raise invalid(path, datatype, "raw contents for this datatype", "Leave the parameter out.")
    if datatype == BYTES:
        strings = (each if isinstance(each, bytes) else str(each).encode() for each in array.flat)
        return b"".join(pb.write_part(number, each) for each in strings)
    if array.dtype.kind == "f":
        return pb.write_part(number, bytes(to_binary(array)))
    return pb.write_part(number, b"".join(map(pb.write_varint, array.ravel().tolist())))


def _write_parameters(field: int, parameters: Mapping[str, Any]) -> list[bytes]:
    written = []
    for key, value in parameters.items():
        if isinstance(value, bool):
            content = pb.write_number(1, value)
        elif isinstance(value, int):
            content = pb.write_number(2, value)
        elif isinstance(value, str):
            content = pb.write_text(3, value)
        elif isinstance(value, Mapping):
            content = pb.write_text(3, json.dumps(value, separators=(",", ":")))
        else:
            content = pb.write_double(4, float(value))
        written.append(pb.write_part(field, _write_key(key) + pb.write_part(2, content)))
    return written


@lru_cache(64)
def _write_key(key: str) -> bytes:
    """Return the key of a parameter, which is one of few."""
    return pb.write_text(1, key)


def write_flag(value: bool) -> bytes:
    """Return a ServerLiveResponse, ServerReadyResponse or ModelReadyResponse."""
    return pb.write_number(1, value)


def write_server_metadata(document: Mapping[str, Any]) -> bytes:
    """Return a ServerMetadataResponse of the same document in JSON."""
    extensions = b"".join(pb.write_text(3, each) for each in document["extensions"])
    return pb.write_text(1, document["name"]) + pb.write_text(2, document["version"]) + extensions


def write_model_metadata(document: Mapping[str, Any]) -> bytes:
    """Return a ModelMetadataResponse of the same document in JSON."""
    parts = [pb.write_text(1, document["name"])]
    parts += [pb.write_text(2, version) for version in document["versions"]]
    parts.append(pb.write_text(3, document["platform"]))
    for field, tensors in ((4, document["inputs"]), (5, document["outputs"])):
        for tensor in tensors:
            content = pb.write_text(1, tensor["name"]) + pb.write_text(2, tensor["datatype"])
            content += pb.write_part(3, b"".join(map(pb.write_varint, tensor["shape"])))
            parts.append(pb.write_part(field, content))
    return b"".join(parts)


def write_model_config(document: Mapping[str, Any]) -> bytes:
    """Return a ModelConfigResponse of the same document in JSON."""
    config = pb.write_text(1, document["name"]) + pb.write_text(2, document["platform"])
    config += pb.write_number(4, document["max_batch_size"])
    for field, dims, tensors in ((5, 4, document["input"]), (6, 3, document["output"])):
        for tensor in tensors:
            data_type = _DATA_TYPES.index(tensor["data_type"].removeprefix("TYPE_"))
            content = pb.write_text(1, tensor["name"]) + pb.write_number(2, data_type)
            content += pb.write_part(dims, b"".join(map(pb.write_varint, tensor["dims"])))
            config += pb.write_part(field, content)
    return pb.write_part(1, config + pb.write_text(17, document["backend"]))


_DATA_TYPES: Final = ("INVALID", *NUMBERS, "STRING")
"""Triton's numbers of datatypes."""


def write_statistics(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a ModelStatisticsResponse of the same rows in JSON."""
    numbers = {"success": 1, "fail": 2, "compute_infer": 5}
    written = []
    for row in rows:
        stats = b"".join(
            pb.write_part(
                numbers[name], pb.write_number(1, each["count"]) + pb.write_number(2, each["ns"])
            )
            for name, each in row["inference_stats"].items()
        )
        content = pb.write_text(1, row["name"]) + pb.write_text(2, row["version"])
        content += pb.write_number(4, row["inference_count"])
        content += pb.write_number(5, row["execution_count"]) + pb.write_part(6, stats)
        written.append(pb.write_part(1, content))
    return b"".join(written)


def write_repository_index(rows: Iterable[Mapping[str, str]]) -> bytes:
    """Return a RepositoryIndexResponse of the same rows in JSON."""
    names = ("name", "version", "state", "reason")
    return b"".join(
        pb.write_part(
            1, b"".join(pb.write_text(n, row.get(name, "")) for n, name in enumerate(names, 1))
        )
        for row in rows
    )


def write_stream_part(message: bytes) -> bytes:
    """Return a ModelStreamInferResponse with a ModelInferResponse; it is the query's only one."""
    message += b"".join(_write_parameters(4, {"triton_final_response": True}))
    return pb.write_part(2, message)


def write_stream_error(text: str, request_id: str) -> bytes:
    """Return a ModelStreamInferResponse with an error, and the id of the query that it is of."""
    return pb.write_text(1, text) + pb.write_part(2, pb.write_text(3, request_id))


def read_name(message: memoryview) -> tuple[str, str | None]:
    """Return the name and version of a ModelReadyRequest or one like it; None for no version.

    Raises:
        InvalidInputError: the message is malformed.
    """
    name = version = ""
    for field in pb.read_fields("message", message, 16):
        if field.number == 1:
            name = pb.read_text("name", field)
        elif field.number == 2:
            version = pb.read_text("version", field)
    return name, version or None
