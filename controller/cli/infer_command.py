"""``modelless infer``: one photo, one answer, and what gave it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import LatencyMs, MaxCostUsd, MinAccuracy, TaskName, Url
from modelless.controller.cli.screen import Json, emit, home_of, say, show_table
from modelless.variants.vocabulary import SLO, TensorSpec

EPILOG = "Example: modelless infer cat.jpg --task imagenet --latency-ms 40 --min-accuracy 74"
_TOP = 5
_PATIENCE_S = 30.0  # beyond the deadline, before the server is given up


def infer(
    ctx: typer.Context,
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="An image file, or a .npy array.")],
    task: TaskName,
    latency_ms: LatencyMs = None,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCostUsd = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Classify a photo with the running modelless, within limits.

    The photo is turned upright and scaled down until its shorter side is 320 pixels: the variants
    resize to 260 at most, so more pixels would only make the request larger.
    """
    slo = SLO(latency_ms, min_accuracy, max_cost_usd)
    from modelless.controller.cli.photos import check_file, read_tensor
    from modelless.controller.cli.server import error_of, find_url, get_json
    from modelless.controller.demo.v2_client import Client, encode_infer

    check_file(photo)
    address = find_url(home_of(ctx), url)
    described = get_json(address, f"/v2/models/{_path_of(task)}")
    spec, output = _signature(described)
    tensor = read_tensor(photo, spec)
    query = encode_infer(task, {spec.name: tensor}, slo, classes={output: _TOP})
    with Client(address, _PATIENCE_S + (latency_ms or 0.0) / 1e3) as client:
        reply = client.infer(query)
    if not reply.is_answer:
        _say_why(reply.parameters)
        raise error_of(reply.status, reply.error)
    items = reply.classes[output]
    if as_json:
        emit(
            {
                "task": task,
                "photo": str(photo),
                "top": [
                    [{"label": label, "index": i, "score": s} for s, i, label in item]
                    for item in items
                ],
                "served_by": dict(reply.parameters),
                "round_trip_ms": reply.latency_ms,
            }
        )
        return
    is_share = all(0.0 <= score <= 1.0 for item in items for score, _, _ in item)
    for number, item in enumerate(items):
        show_table(
            ["label", "probability" if is_share else "score"],
            [
                (label or str(index), f"{score:.1%}" if is_share else f"{score:g}")
                for score, index, label in item
            ],
            title=f"item {number}" if len(items) > 1 else "",
            right=[1],
        )
    typer.echo(_served_by(reply.parameters, reply.latency_ms))
    _say_why(reply.parameters)


def _say_why(parameters: Any) -> None:
    if "receipt_id" in parameters:
        say(f"why: modelless why {parameters['receipt_id']}")


def _path_of(name: str) -> str:
    from urllib.parse import quote

    if not name.strip("/"):
        raise InvalidInputError.of("task", name, "task, task/model or task/model/variant")
    return quote(name, safe="/@")


def _signature(described: Any) -> tuple[TensorSpec, str]:
    """The one input of the task, and the output to be read as classes."""
    inputs, outputs = described["inputs"], described["outputs"]
    if len(inputs) != 1:
        raise InvalidInputError(
            f"this task has {len(inputs)} inputs; 'modelless infer' fills one: use a v2 client"
        )
    spec = TensorSpec(inputs[0]["name"], inputs[0]["datatype"], tuple(inputs[0]["shape"]))
    classes = [output["name"] for output in outputs if len(output["shape"]) == 2]
    if not classes:
        raise InvalidInputError("this task's outputs are not classes: use a v2 client")
    return spec, str(classes[0])


def _served_by(parameters: Any, round_trip_ms: float) -> str:
    words = [f"served by {parameters.get('variant')} on {parameters.get('device')}"]
    if "accuracy" in parameters:
        provenance = parameters.get("accuracy_provenance", "")
        words.append(f"accuracy {parameters['accuracy']:.1f} % {provenance}".rstrip())
    observed, predicted = (
        parameters.get(f"{kind}_latency_ms") for kind in ("observed", "predicted")
    )
    if observed is not None:
        words.append(f"{observed:.1f} ms")
        if predicted is not None:
            words[-1] += f" (predicted {predicted:.1f})"
    words.append(f"{round_trip_ms:.1f} ms seen from here")
    if parameters.get("cost_usd") is not None:
        words.append(f"{parameters['cost_usd']:.3g} USD")
    return ", ".join(words)
