"""Inspects an ONNX file before anything runs it, and refuses one that must not run.

An ONNX file is a program by someone else. Refused are operators that only a library loaded into the
process could run, data outside the file's folder, and formats newer than what was reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from modelless.common.errors import IntegrityError, InvalidInputError
from modelless.variants.artifacts import MAX_ARTIFACT_BYTES
from modelless.variants.graphs import traversal as onnx_graphs
from modelless.variants.graphs.multiply_adds import count_multiply_adds
from modelless.variants.graphs.parameters import count_parameters
from modelless.variants.signature import DATATYPES
from modelless.variants.vocabulary import Task, TensorSpec

# '' and 'ai.onnx' are two names of the standard operators; 'ai.onnx.ml' are its classical models.
# 'com.microsoft' operators are compiled into ONNX Runtime itself, so they load no library, and its
# own quantiser and optimiser write them (QLinearAdd, QGemm, FusedMatMul, ...). Any other domain
# needs a library of custom operators: native code with all rights of the process.
_STANDARD: Final = frozenset({"", "ai.onnx"})
_DOMAINS: Final = _STANDARD | {"ai.onnx.ml", "com.microsoft"}
# Built in, yet each loads something from outside: a compiled blob by path, a Python callable.
_REACHES_OUT: Final = frozenset({"EPContext", "PythonOp", "PythonOpGrad"})

_DATATYPES: Final[Mapping[int, str]] = {
    onnx.helper.np_dtype_to_tensor_dtype(dtype): name for dtype, name in DATATYPES.items()
}


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """The facts that an ONNX file states of itself.

    Attributes:
        inputs, outputs: the graph's signature; a free size is -1.
        parameter_count: elements of its weights, quantisation scales and shape constants left out.
        multiply_adds: of convolutions and matrix products, an item; None if a shape is unknown.
        metadata: what its author noted beside the graph, e.g. the characters that it reads.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameter_count: int
    multiply_adds: int | None
    metadata: Mapping[str, str]


def inspect_onnx(source: Path | str | bytes, *, max_bytes: int = MAX_ARTIFACT_BYTES) -> OnnxFacts:
    """Look at an ONNX file without running it.

    Args:
        source: a path, whose weights may lie in other files of its folder; or a file's bytes,
            which must hold everything.
        max_bytes: bound of the file and all that lies beside it.

    Raises:
        IntegrityError: not ONNX, damaged, too large, of an unknown version, with a custom operator
            or with data outside its folder.
        InvalidInputError: the path cannot be read.
    """
    model, where, _ = _load(source, max_bytes)
    with damage_refused(where):
        _check_operators(model, where)
        _check_structure(model, where)
        for tensor in onnx_graphs.tensors(model):
            onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)  # raises if there is no such
        return OnnxFacts(
            inputs=_signature(_real_inputs(model), where),
            outputs=_signature(list(model.graph.output), where),
            parameter_count=count_parameters(model),
            multiply_adds=count_multiply_adds(model),
            metadata={entry.key: entry.value for entry in model.metadata_props},
        )


@contextmanager
def damage_refused(where: str) -> Iterator[None]:
    """Turn what reading a damaged file raises, past ONNX's own checker, into IntegrityError.

    The checker lets pass names that are no text and types of tensors that do not exist.
    """
    try:
        yield
    except (UnicodeDecodeError, LookupError, ValueError) as error:
        raise IntegrityError(
            f"{where}: it is damaged ({type(error).__name__}: {error}). Export it again."
        ) from error


def refuse_external_bytes(data: bytes, where: str) -> None:
    """Raise IntegrityError if an ONNX file is damaged or says that weights lie elsewhere."""
    refuse_external_data(parse_onnx(data, where), where)


def read_signature(
    data: bytes, where: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of an ONNX file that an engine may be given.

    For engines that would not refuse by themselves what must not run: some look for weights beside
    the file, or drop a custom operator whose result nobody uses.

    Raises:
        IntegrityError: damaged, of an unknown version, with a custom operator or with data
            elsewhere.
    """
    model = parse_onnx(data, where)
    refuse_external_data(model, where)
    _check_operators(model, where)
    return _signature(_real_inputs(model), where), _signature(list(model.graph.output), where)


def read_onnx(path: Path | str) -> bytes:
    """The bytes of an ONNX file, weights from beside it put in: one artifact that needs no other.

    Raises:
        IntegrityError, InvalidInputError: as ``inspect_onnx``.
    """
    path = Path(path)
    model, where, has_external_data = _load(path, MAX_ARTIFACT_BYTES)
    if not has_external_data:
        return _read_file(path, MAX_ARTIFACT_BYTES)
    try:
        return bytes(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise IntegrityError(f"{where}: with its weights it is larger than 2 GiB.") from error


def check_signature(facts: OnnxFacts, task: Task) -> None:
    """Raise InvalidInputError unless the graph takes and gives what ``task`` promises its clients.

    Names, datatypes and numbers of axes must be equal; a size that the task leaves free must be
    free in the graph, one that it fixes may be free or the same.
    """
    for kind, found, wanted in (
        ("input", facts.inputs, task.inputs),
        ("output", facts.outputs, task.outputs),
    ):
        by_name = {spec.name: spec for spec in found}
        names = [spec.name for spec in wanted]
        if set(by_name) != set(names):
            raise InvalidInputError.of(
                f"names of the model's {kind}s", sorted(by_name), ", ".join(sorted(names))
            )
        for spec in wanted:
            graph = by_name[spec.name]
            if graph.datatype != spec.datatype:
                raise InvalidInputError.of(
                    f"datatype of the model's {kind} {spec.name!r}", graph.datatype, spec.datatype
                )
            if len(graph.shape) != len(spec.shape) or not all(
                size in (-1, asked) for size, asked in zip(graph.shape, spec.shape, strict=True)
            ):
                raise InvalidInputError.of(
                    f"shape of the model's {kind} {spec.name!r}",
                    list(graph.shape),
                    f"{list(spec.shape)}, where -1 must be free",
                )


def _load(source: Path | str | bytes, max_bytes: int) -> tuple[ModelProto, str, bool]:
    """The model with all of its weights, its name for errors, and whether weights lay beside it."""
    if isinstance(source, bytes):
        where = "ONNX file"
        if len(source) > max_bytes:
            raise _too_large(where, len(source), max_bytes)
        model = parse_onnx(source, where)
        refuse_external_data(model, where)
        return model, where, False
    path = Path(source)
    where = f"ONNX file {path}"
    data = _read_file(path, max_bytes)
    model = parse_onnx(data, where)
    try:
        return model, where, embed_external_data(model, path.parent, max_bytes - len(data)) > 0
    except IntegrityError as error:
        raise IntegrityError(f"{where}: {error}") from error


def _read_file(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise InvalidInputError.of("ONNX file", str(path), "the path of a regular file")
        size_bytes = path.stat().st_size
        if size_bytes > max_bytes:
            raise _too_large(f"ONNX file {path}", size_bytes, max_bytes)
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"ONNX file {path}: it cannot be read ({error.strerror})."
        ) from error


def _too_large(where: str, found_bytes: int, max_bytes: int) -> IntegrityError:
    return IntegrityError(f"{where}: it has {found_bytes} bytes; allowed: up to {max_bytes}.")


def parse_onnx(data: bytes, where: str = "ONNX file") -> ModelProto:
    """The model that a file's bytes hold; IntegrityError, which names ``where``, if they hold none.

    Nothing else is checked: see ``inspect_onnx``.
    """
    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError, TypeError, RuntimeError) as error:
        raise IntegrityError(
            f"{where}: it is not an ONNX model, or it is truncated ({error}). Export it again."
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        raise IntegrityError(
            f"{where}: it is not an ONNX model: it holds no graph. Export it again."
        )
    return model


def _check_operators(model: ModelProto, where: str) -> None:
    """Raise IntegrityError for a version or an operator that is unknown or not allowed."""
    if model.ir_version > onnx.IR_VERSION:
        raise IntegrityError(
            f"{where}: its IR version is {model.ir_version}; allowed: up to {onnx.IR_VERSION}. "
            "Export it for an older version, or upgrade onnx."
        )
    local = {(function.domain, function.name) for function in model.functions}
    for node in onnx_graphs.nodes(model):
        # A function of the file is nodes that are checked like any other. It may not take the name
        # of what reaches out: execution providers know such operators by that name alone.
        is_known = node.domain in _DOMAINS or (node.domain, node.op_type) in local
        if not is_known or node.op_type in _REACHES_OUT:
            raise IntegrityError(
                f"{where}: node {node.name!r} uses the custom operator {_operator(node)}; allowed: "
                "operators of ai.onnx, ai.onnx.ml and com.microsoft that run without a library of "
                "custom operators, which modelless never loads. Export it without that operator."
            )
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = max((opsets[domain] for domain in _STANDARD if domain in opsets), default=0)
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise IntegrityError(
            f"{where}: its opset is {opset}; allowed: 1 to {newest}. Export it with "
            f"opset_version={newest} or less, or upgrade onnx."
        )


def _check_structure(model: ModelProto, where: str) -> None:
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker raises its own kinds, and RuntimeError from C++
        reason = str(error).strip().splitlines()
        raise IntegrityError(
            f"{where}: it is not a valid ONNX model: {reason[0] if reason else error!r}. "
            "Export it again."
        ) from error


def _operator(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in _STANDARD else f"{node.op_type} ({node.domain})"


def _real_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The graph's inputs without the weights that old files list among them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _signature(values: list[ValueInfoProto], where: str) -> tuple[TensorSpec, ...]:
    specs = []
    for value in values:
        tensor = value.type.tensor_type
        datatype = _DATATYPES.get(tensor.elem_type) if value.type.HasField("tensor_type") else None
        if datatype is None or not tensor.HasField("shape"):
            raise IntegrityError(
                f"{where}: {value.name!r} of its signature is not a tensor of a known shape and "
                f"datatype; allowed: {', '.join(_DATATYPES.values())}."
            )
        shape = tuple(
            size.dim_value if size.HasField("dim_value") else -1 for size in tensor.shape.dim
        )
        specs.append(TensorSpec(value.name, datatype, shape))
    return tuple(specs)


_EMBED: Final = (
    "Put the weights into the file itself: onnx.save(onnx.load('model.onnx'), 'whole.onnx')."
)


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """The tensors whose values lie outside the file."""
    return [
        tensor
        for tensor in onnx_graphs.tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
    ]


def refuse_external_data(model: ModelProto, where: str) -> None:
    """Raise IntegrityError if any tensor lies outside the bytes that ``model`` was read from."""
    found = external_tensors(model)
    if found:
        raise IntegrityError(
            f"{where}: {len(found)} tensors lie in other files, the first, {found[0].name!r}, in "
            f"{_location(found[0])!r}; allowed: a file that holds all of its weights. {_EMBED}"
        )


def embed_external_data(model: ModelProto, folder: Path, max_bytes: int) -> int:
    """Bring external tensors into ``model``, from files inside ``folder`` only.

    Returns:
        The number of tensors brought in.

    Raises:
        IntegrityError: onnx refuses a location (absolute, climbs out, through a link, no regular
            file) or a part of the file that is not there; or it all is too large.
    """
    left_bytes = max_bytes
    found = external_tensors(model)
    for tensor in found:
        location = _location(tensor)
        what = f"tensor {tensor.name!r}, external data {location!r}"
        try:
            place = ExternalDataInfo(tensor)
            rest = (folder / location).lstat().st_size - (place.offset or 0)
            left_bytes -= max(0, rest if place.length is None else place.length)
            if left_bytes < 0:
                raise IntegrityError(f"{what}: the model and its files are larger than is allowed.")
            load_external_data_for_tensor(tensor, str(folder))
        except (onnx.checker.ValidationError, OSError, ValueError) as error:
            raise IntegrityError(
                f"{what}: {str(error).strip()}; allowed: a part of a regular file inside the "
                f"model's folder that has no other name, reached without a link. {_EMBED}"
            ) from error
    return len(found)


def _location(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
