"""Parsing one inference request: bytes in, tensors and SLO out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.controller.api.json_reader import as_whole, read_json
from modelless.controller.api.request_limits import DEFAULT_LIMITS, Limits
from modelless.controller.api.v2_errors import Words, invalid, member, nearest
from modelless.controller.api.v2_headers import (
    SLO_NAME_PARAMETER,
    SLO_PARAMETERS,
    TENANT_PARAMETER,
)
from modelless.controller.api.v2_tensors import (
    BYTES,
    DATATYPES,
    check_text_bytes,
    from_binary,
    from_json,
    item_bytes,
    widened_bytes,
)
from modelless.variants.vocabulary import SLO, WHEN_LATE, Task, check_name

PROTOCOL_PARAMETERS = (
    "binary_data_output",
    "content_type",
    "headers",
    "sequence_end",
    "sequence_id",
    "sequence_start",
    "timeout",
)
"""Parameters that v2 clients send by themselves; only ``binary_data_output`` has an effect."""

EXPLAIN_PARAMETER = "explain"
"""The parameter of a request whose reply is to say why it is as it is."""

CACHE_PARAMETER = "cache_control"
"""The parameter of a request that is not to be answered from the cache."""

CACHE_CONTROLS = ("no-cache", "no-store")
"""Its values, words of HTTP's ``Cache-Control`` (RFC 9111): run the query, and with ``no-store`` do
not keep the answer either."""

_OWN = frozenset((*SLO_PARAMETERS, TENANT_PARAMETER, SLO_NAME_PARAMETER))
_TOLERATED = frozenset((*PROTOCOL_PARAMETERS, EXPLAIN_PARAMETER, CACHE_PARAMETER))
_KNOWN = (
    *(*SLO_PARAMETERS, TENANT_PARAMETER, SLO_NAME_PARAMETER, EXPLAIN_PARAMETER, CACHE_PARAMETER),
    *PROTOCOL_PARAMETERS,
)
_ROOT = frozenset({"id", "parameters", "inputs", "outputs", "model_name", "model_version"})
_INPUT = frozenset({"name", "shape", "datatype", "parameters", "data"})
_INPUT_PARAMETERS = frozenset({"binary_data_size", "content_type"})
_OUTPUT = frozenset({"name", "parameters"})
_OUTPUT_PARAMETERS = frozenset({"binary_data", "classification", "content_type"})
_NO_PARAMETERS: Mapping[str, Any] = {}

ReadTensor = Callable[[str, Mapping[str, Any], str, list[int], int], NDArray[Any]]
"""Reads an input: takes the field's name for errors, its entry in the document, its datatype, its
shape and its number of elements, all of them checked."""


class RequestedOutput(NamedTuple):
    """One output the client asks for.

    Attributes:
        binary: as bytes after the JSON instead of inside it.
        class_count: the this many likeliest classes instead of the tensor; 0 for the tensor.
    """

    name: str
    binary: bool = False
    class_count: int = 0


class InferRequest(NamedTuple):
    """A parsed request.

    Attributes:
        id: what the reply must repeat; None if the client gave none.
        tensors: inputs by name; arrays are views of the request's body wherever they can be.
        requested_outputs: empty for all outputs, each binary or not as ``binary_default`` says.
        tenant: who asks, by the client's own word; None if not said.
        parameters: the protocol's own parameters, as sent; none changes what modelless does.
        explain: whether the reply is to say why.
        cache_control: one of ``CACHE_CONTROLS``; None if not said.
    """

    id: str | None
    slo: SLO
    tensors: dict[str, NDArray[Any]]
    requested_outputs: tuple[RequestedOutput, ...]
    binary_default: bool
    tenant: str | None
    parameters: Mapping[str, Any]
    explain: bool = False
    cache_control: str | None = None


def parse_infer(
    body: bytes | memoryview,
    json_length: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    header_parameters: Mapping[str, Any] = _NO_PARAMETERS,
    slos: Mapping[str, Mapping[str, Any]] = _NO_PARAMETERS,
    take: Callable[[int], None] = lambda _: None,
) -> InferRequest:
    """Parse the body of ``POST /v2/models/{name}/infer``.

    Args:
        body: all of it, decompressed; a memoryview must be flat, of single bytes. Binary tensors
            stay views of it, so it must not change afterwards.
        json_length: the ``Inference-Header-Content-Length`` header; None if it was not sent.
        limits: what is refused as too large.
        header_parameters: parameters that came as headers (``read_headers``).
        slos: limits by name, which a request may name; under "" those of a request that does not.
        take: sets memory aside for a tensor that is larger than its bytes; may raise.

    Raises:
        InvalidInputError: anything malformed, contradictory or unknown; it names the field.
        PayloadTooLargeError: body or JSON part beyond the limits.
    """
    body_bytes = len(body)
    if json_length is None:
        json_end = body_bytes
    elif 0 < json_length <= body_bytes:
        json_end = json_length
    else:
        allowed = f"1 to {body_bytes}, the bytes of the body"
        hint = "The body is cut off or the header is wrong."
        raise invalid("inference-header-content-length", json_length, allowed, hint)
    limits.check_body_bytes(body_bytes)
    document = read_json(body, json_end, limits)
    if type(document) is not dict:
        raise invalid("body", document, "a JSON object")
    if not document.keys() <= _ROOT:
        raise _unknown("", document, _ROOT)
    source = _BodyTensors(body, json_end, json_length is None, take)
    request = read_document(document, source.read, limits, header_parameters, slos)
    source.check_end()
    return request


def read_document(
    document: Mapping[str, Any],
    read_tensor: ReadTensor,
    limits: Limits,
    header_parameters: Mapping[str, Any],
    slos: Mapping[str, Mapping[str, Any]],
    *,
    binary_default: bool = False,
) -> InferRequest:
    """Check what a request says, and read its tensors.

    Args:
        document: the request's id, parameters, inputs and outputs, as in the protocol's JSON.
        read_tensor: reads the elements of one input.
        limits, header_parameters, slos: see ``parse_infer``.
        binary_default: whether outputs are binary if the request does not say.

    Raises:
        InvalidInputError: see ``parse_infer``.
    """
    request_id = document.get("id")
    if request_id is not None:
        if type(request_id) is not str:
            raise invalid("id", request_id, "a string")
        if len(request_id) > limits.max_id_chars:
            raise invalid("id", request_id, f"up to {limits.max_id_chars} characters")

    given = document.get("parameters")
    slo, tenant, others = read_parameters(given, header_parameters, slos)
    binary_default = others.get("binary_data_output", binary_default)
    if type(binary_default) is not bool:
        raise invalid("parameters.binary_data_output", binary_default, "true or false")
    explain = others.pop(EXPLAIN_PARAMETER, False)
    if type(explain) is not bool:
        raise invalid("parameters.explain", explain, "true or false")
    cache_control = others.pop(CACHE_PARAMETER, None)
    if cache_control is not None and cache_control not in CACHE_CONTROLS:
        raise invalid("parameters.cache_control", cache_control, " or ".join(CACHE_CONTROLS))

    return InferRequest(
        request_id,
        slo,
        _read_inputs(document.get("inputs"), read_tensor, limits),
        _read_outputs(document.get("outputs"), binary_default, limits),
        binary_default,
        tenant,
        others,
        explain,
        cache_control,
    )


def check_outputs(request: InferRequest, task: Task) -> None:
    """Refuse a request for an output that the task does not have, before anything runs.

    Raises:
        InvalidInputError: names the output and those there are.
    """
    known = [spec.name for spec in task.outputs]
    for index, wanted in enumerate(request.requested_outputs):
        if wanted.name not in known:
            hint = nearest(wanted.name, known)
            raise invalid(f"outputs[{index}].name", wanted.name, ", ".join(known), hint)


def _read_object(field: str, value: object, known: frozenset[str]) -> dict[str, Any]:
    if type(value) is not dict:
        raise invalid(field, value, "a JSON object")
    if not value.keys() <= known:
        raise _unknown(field, value, known)
    return value


def read_parameters(
    given: object, from_headers: Mapping[str, Any], slos: Mapping[str, Mapping[str, Any]]
) -> tuple[SLO, str | None, dict[str, Any]]:
    """Return the limits, the tenant and the other parameters of a request; see ``parse_infer``."""
    own: dict[str, Any] = {}
    others: dict[str, Any] = {}
    if given is None:
        given = {}
    elif type(given) is not dict:
        raise invalid("parameters", given, "a JSON object")
    for key, value in given.items():
        if value is None:
            continue
        if key in _OWN:
            own[key] = value
        elif key in _TOLERATED or key.startswith("triton_"):
            others[key] = value
        else:
            raise _unknown("parameters", (key,), _KNOWN)
    for key, value in from_headers.items():
        if own.setdefault(key, value) != value:
            header = f"x-modelless-{key.replace('_', '-')}"
            both = Words(f"{own[key]!r:.40} and, in the header {header}, {value!r:.40}")
            raise invalid(f"parameters.{key}", both, "one value", "Leave one of them out.")
    name = own.pop(SLO_NAME_PARAMETER, "")
    if name != "" and (type(name) is not str or name not in slos):
        allowed = ", ".join(filter(None, slos)) or "none, as the settings have no slos"
        raise invalid("parameters.slo", name, allowed, nearest(str(name), slos))
    tenant = own.pop(TENANT_PARAMETER, None)
    if tenant is not None:
        check_name("parameters.tenant", tenant)
    for key, value in own.items():
        if key == "when_late":  # its words are checked with the SLO
            if type(value) is not str:
                raise invalid("parameters.when_late", value, " or ".join(WHEN_LATE))
        elif type(value) is not float and type(value) is not int:
            raise invalid(f"parameters.{key}", value, "a number", "Leave it out for no limit.")
        elif key == "priority":
            own[key] = as_whole(value)
    return _check_slo(**{**slos.get(name, _NO_PARAMETERS), **own}), tenant, others


_check_slo = lru_cache(maxsize=256, typed=True)(SLO)  # most queries name the same limits


def _read_inputs(
    inputs: object, read_tensor: ReadTensor, limits: Limits
) -> dict[str, NDArray[Any]]:
    if type(inputs) is not list or not 0 < len(inputs) <= limits.max_tensors:
        raise invalid("inputs", inputs, f"a list of 1 to {limits.max_tensors} tensors")
    tensors: dict[str, NDArray[Any]] = {}
    strings = text_bytes = 0
    for index, entry in enumerate(inputs):
        field = f"inputs[{index}]"
        entry = _read_object(field, entry, _INPUT)
        name = _read_name(field, entry, tensors)
        datatype = entry.get("datatype")
        if type(datatype) is not str or datatype not in DATATYPES:
            raise invalid(f"{field}.datatype", datatype, ", ".join(DATATYPES))
        shape: Any = entry.get("shape")
        count = _count_elements(field, shape, limits)
        strings += count if datatype == BYTES else 0
        if strings > limits.max_strings:
            raise invalid(f"{field}.shape", shape, f"up to {limits.max_strings} strings a request")
        array = tensors[name] = read_tensor(field, entry, datatype, shape, count)
        if datatype == BYTES:
            text_bytes += sum(map(len, array.flat))
            check_text_bytes(field, text_bytes)
    return tensors


class _BodyTensors:
    """The tensors of an HTTP body, in order: in its JSON, or as bytes that follow the JSON.

    Args:
        body: all of it.
        offset: where the JSON ends.
        all_json: whether nothing may follow.
        take: see ``parse_infer``.
    """

    def __init__(
        self, body: bytes | memoryview, offset: int, all_json: bool, take: Callable[[int], None]
    ) -> None:
        self._take = take
        self._body = body
        self._offset = offset
        self._all_json = all_json

    def read(
        self, field: str, entry: Mapping[str, Any], datatype: str, shape: list[int], count: int
    ) -> NDArray[Any]:
        """Return the next tensor."""
        size = _read_binary_size(field, entry.get("parameters"))
        data = entry.get("data")
        if size is None:
            if data is None:
                raise invalid(field, Words("no data"), "data, or parameters.binary_data_size")
            return from_json(f"{field}.data", data, datatype, shape, count)
        field += ".parameters.binary_data_size"
        if data is not None:
            raise invalid(field, size, "data or a binary size, not both")
        if self._all_json:
            hint = "Send the header Inference-Header-Content-Length with the length of the JSON."
            raise invalid(field, size, "binary data only after the JSON", hint)
        check_size(field, size, datatype, shape, count)
        left = len(self._body) - self._offset
        if size > left:
            allowed = f"up to {left}, the bytes left in the body"
            raise invalid(field, size, allowed, "The body is cut off or a size is wrong.")
        self._offset += size
        self._take(widened_bytes(datatype, count))
        return from_binary(field, self._body, self._offset - size, size, datatype, shape)

    def check_end(self) -> None:
        """Refuse a body that has more bytes than its tensors."""
        if self._offset != len(self._body):
            hint = "A binary_data_size or Inference-Header-Content-Length is wrong."
            left = Words(f"{len(self._body) - self._offset} bytes after the last tensor")
            raise invalid("body", left, "none", hint)


def check_size(field: str, size: int, datatype: str, shape: list[int], count: int) -> None:
    """Refuse a number of bytes that is not what a tensor of a fixed-size datatype takes."""
    each = item_bytes(datatype)
    if each is not None and size != count * each:
        raise invalid(field, size, f"{count * each}, as {datatype} {shape} takes")


def _read_name(field: str, entry: Mapping[str, Any], earlier: Collection[str]) -> str:
    name = entry.get("name")
    if type(name) is not str or not 0 < len(name) <= 256:
        raise invalid(f"{field}.name", name, "a string of 1 to 256 characters")
    if name in earlier:
        raise invalid(f"{field}.name", name, "each name once")
    return name


def _count_elements(field: str, shape: object, limits: Limits) -> int:
    if type(shape) is not list or len(shape) > limits.max_dims:
        raise invalid(f"{field}.shape", shape, f"a list of up to {limits.max_dims} whole numbers")
    count = extent = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise invalid(f"{field}.shape", shape, "whole numbers from 0")
        count *= size
        extent *= size or 1
    if extent > limits.max_body_bytes:
        raise invalid(f"{field}.shape", shape, f"up to {limits.max_body_bytes} elements")
    return count


def _read_binary_size(field: str, parameters: object) -> int | None:
    if parameters is None:
        return None
    field += ".parameters"
    size = _read_object(field, parameters, _INPUT_PARAMETERS).get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(f"{field}.binary_data_size", size, "a whole number of bytes")
    return size


def _read_outputs(
    outputs: object, binary_default: bool, limits: Limits
) -> tuple[RequestedOutput, ...]:
    if outputs is None:
        return ()
    if type(outputs) is not list or len(outputs) > limits.max_tensors:
        raise invalid("outputs", outputs, f"a list of up to {limits.max_tensors} outputs")
    requested: dict[str, RequestedOutput] = {}
    for index, entry in enumerate(outputs):
        field = f"outputs[{index}]"
        entry = _read_object(field, entry, _OUTPUT)
        name = _read_name(field, entry, requested)
        parameters = entry.get("parameters")
        if parameters is None:
            requested[name] = RequestedOutput(name, binary_default)
            continue
        field += ".parameters"
        parameters = _read_object(field, parameters, _OUTPUT_PARAMETERS)
        binary = parameters.get("binary_data", binary_default)
        if type(binary) is not bool:
            raise invalid(f"{field}.binary_data", binary, "true or false")
        class_count = parameters.get("classification", 0)
        if type(class_count) is not int or not 0 <= class_count < 1 << 31:
            raise invalid(f"{field}.classification", class_count, "a whole number of classes")
        requested[name] = RequestedOutput(name, binary, class_count)
    return tuple(requested.values())


def _unknown(parent: str, keys: Collection[str], known: Collection[str]) -> InvalidInputError:
    key = next(key for key in keys if key not in known)
    words = sorted(known)
    if key.startswith("shared_memory"):
        return invalid(member(parent, key), key, "tensors inside the request and the reply")
    return invalid(member(parent, key), key, f"only {', '.join(words)}", nearest(key, words))
