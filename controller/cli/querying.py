"""``modelless select``, ``quote``, ``infer`` and ``batch``: a dry run, a question, queries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from modelless.common.errors import InfeasibleError, InvalidInputError
from modelless.controller.cli.arguments import (
    ConfigFile,
    DeviceClasses,
    LatencyMs,
    MaxCostUsd,
    MinAccuracy,
    TaskName,
    Url,
    names_of,
    policy_of,
    seconds_of,
)
from modelless.controller.cli.failures import Failed
from modelless.controller.cli.screen import (
    Json,
    accuracy_text,
    emit,
    others_print_to_stderr,
    say,
    show_progress,
    show_table,
)
from modelless.variants.vocabulary import SLO

if TYPE_CHECKING:
    from modelless.controller.usecases.selecting import Selection

_PREDICTED: Final = "~"  # before a figure that was not measured
_NICE: Final = 19
_SHOWN: Final = 3  # variants without a profile that are named


def select(
    ctx: typer.Context,
    task: TaskName,
    latency_ms: LatencyMs = None,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCostUsd = None,
    batch: Annotated[int, Option(help="Items in the query.")] = 1,
    policy: Annotated[
        str | None,
        Option(metavar="NAME|YAML", help="Selection policy; default: the settings' own."),
    ] = None,
    device_class: DeviceClasses = "cpu-1",
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show which variant would serve a query, and why.

    Every candidate is accounted for. The same dispatcher and policy as in 'modelless up' decide, on
    one idle device of each class that holds everything profiled for it. Nothing is started. Exit
    code 4 if nothing can serve it.

    Example: modelless select --task imagenet --latency-ms 40 --min-accuracy 74
    """
    names = names_of("device-class", device_class)
    from modelless.controller.usecases.selecting import select as choose

    specification = None if policy is None else policy_of(policy)
    with others_print_to_stderr():
        found = choose(
            task, latency_ms=latency_ms, min_accuracy=min_accuracy, max_cost_usd=max_cost_usd,
            batch=batch, policy=specification, device_classes=names, config=config,
            home=ctx.obj,
        )  # fmt: skip
    if not as_json:
        _show_selection(found)
    if drifted := [entry for entry in found.candidates if entry["in_service"] is not None]:
        shown = ", ".join(
            f"{entry['variant']} on {entry['device_class']} {entry['in_service']:.2f} times"
            for entry in drifted
        )
        say(
            f"note: latencies are as profiled; in service it took {shown} as long, and a running "
            "modelless chooses by that; 'modelless profile --drifted' measures again"
        )
    for name, why in found.dominated.items():
        say(f"note: {name} is not served: {why}")
    if names_without := found.without_profile:
        shown, more = ", ".join(names_without[:_SHOWN]), len(names_without) - _SHOWN
        say(
            f"note: no profile here, so not to be chosen: {shown}"
            f"{f' and {more} more' if more > 0 else ''}; run 'modelless profile {found.task}'"
        )
    if found.refusal is not None:
        raise Failed(found.refusal, found.document())
    if as_json:
        emit(found.document())
    elif found.chosen is not None and found.reason is not None:
        placement = found.chosen
        typer.echo(
            f"chosen: {placement.variant_id} on {placement.device_class} ({found.reason.value})"
        )


def quote(
    ctx: typer.Context,
    task: TaskName,
    latency_ms: LatencyMs = None,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCostUsd = None,
    items: Annotated[int, Option(help="Items in the query.")] = 1,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Ask the running modelless what a query would get now, without sending it.

    Shows how probably it would be in time, what would serve it, and what is nearest in each
    direction: the fastest, the most accurate and the cheapest that meets the two other limits. Exit
    code 4 if nothing is expected to meet the limits now.

    Examples: modelless quote --task imagenet --latency-ms 40 --min-accuracy 74; modelless quote
    --task imagenet --latency-ms 5 --json
    """
    slo = SLO(latency_ms, min_accuracy, max_cost_usd)
    from modelless.controller.usecases.client import Client, parameters_of

    with Client(url, home=ctx.obj) as client:
        asked = {"task": task, "items": items, "parameters": parameters_of(slo)}
        found = client.get("/modelless/quote", asked)
    if as_json and found["feasible"]:
        emit(found)
    elif not as_json:
        _show_quote(found)
    if not found["feasible"]:
        limits = [" and ".join(f"{k} {v:g}" for k, v in each.items()) for each in
                  found["nearest_limits"]]  # fmt: skip
        nearest = f"; nearest feasible: {', or '.join(limits)}" if limits else ""
        error = InfeasibleError(f"nothing meets the limits now ({found['reason']}){nearest}")
        raise Failed(error, found)


def _show_quote(found: Mapping[str, Any]) -> None:
    names = ("serves", "fastest", "most_accurate", "cheapest")
    show_table(
        [
            "",
            "variant",
            "device",
            "in time",
            "wait ms",
            "ms",
            "p99 ms",
            "accuracy",
            "USD a million",
        ],
        [
            (
                name.replace("_", " "),
                each["variant"],
                each["device"],
                f"{each['probability']:.1%}",
                *(f"{each[key]:.1f}" for key in ("wait_ms", "latency_ms", "p99_latency_ms")),
                f"{each['accuracy']:.1f}",
                f"{each['cost_usd'] * 1e6:.3g}",
            )
            for name in names
            if (each := found[name]) is not None
        ],
        title=f"{found['task']} within {found['latency_ms']:g} ms: in time with "
        f"{found['probability']:.1%}",
        right=range(3, 9),
        whole=1,
    )


def batch(
    ctx: typer.Context,
    input: Annotated[
        Path, Argument(metavar="INPUT", help="A .parquet, .csv or .npy file, or a folder of them.")
    ],
    output: Annotated[Path, Argument(metavar="OUTPUT", help="A folder, made, for Parquet files.")],
    task: TaskName,
    min_accuracy: MinAccuracy = None,
    deadline: Annotated[
        str | None, Option(metavar="TIME", help="The run ends after that time, such as 2h.")
    ] = None,
    top: Annotated[
        int | None, Option(metavar="K", help="Only the K likeliest classes, with their labels.")
    ] = None,
    rows_per_file: Annotated[int, Option(help="Rows of each file of the output.")] = 5000,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Answer all rows of a table, an array or a folder of pictures, at the lowest priority.

    The rows get what online queries leave, and the cheapest variant that is loaded and accurate
    enough. The same command goes on with a run that was ended. Exit code 2 if rows could not be
    read (the others are answered), 4 if nothing is accurate enough, 8 if the server was away for
    too long, 9 after the deadline.

    Examples: modelless batch photos/ labels/ --task imagenet --top 5 --min-accuracy 74; modelless
    batch images.npy out/ --task fashion-mnist --deadline 2h --json
    """
    deadline_s = None if deadline is None else seconds_of("deadline", deadline)
    from modelless.controller.usecases.offline import batch as answer_all

    os.nice(_NICE)  # whatever else runs on this machine goes first
    with show_progress() as show:
        done = answer_all(
            input, output, task=task, min_accuracy=min_accuracy, deadline_s=deadline_s, top=top,
            rows_per_file=rows_per_file, url=url, home=ctx.obj, on_progress=show,
        )  # fmt: skip
    told = {**asdict(done), "output": str(done.output)}
    if done.rows_with_error:
        unread = f"{done.rows_with_error} of {done.rows} rows could not be read"
        raise Failed(InvalidInputError(f"{unread}: the column 'error' says why"), told)
    if as_json:
        emit(told)
        return
    share = f", {done.rows_before} of them before" if done.rows_before else ""
    typer.echo(f"{done.rows} rows in {done.files} files in {done.output}{share}")
    typer.echo(f"{done.seconds:.1f} s, {done.rows_per_s:,.0f} rows/s")
    for variant, rows in sorted(done.served_by.items(), key=lambda item: -item[1]):
        typer.echo(f"  {rows:>9} by {variant}")


def infer(
    ctx: typer.Context,
    file: Annotated[
        Path,
        Argument(metavar="FILE", help="A picture, an array (.npy, .npz), or a text of the items."),
    ],
    task: TaskName,
    latency_ms: LatencyMs = None,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCostUsd = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Ask the running modelless for the classes, texts or numbers of a file, within limits.

    A picture may be of any format that Pillow reads. It is turned upright and scaled: to the sides
    that the task's input fixes, or down until its shorter side is 320 pixels. A text holds numbers
    or texts, an item a line, or is the item itself where the task's input is the bytes of a text.

    Example: modelless infer cat.jpg --task imagenet --latency-ms 40 --min-accuracy 74
    """
    slo = SLO(latency_ms, min_accuracy, max_cost_usd)
    from modelless.controller.usecases.inferring import infer_file

    found = infer_file(file, task, slo, url=url, home=ctx.obj)
    reply = found.reply
    if not reply.is_answer:
        _say_why(reply.parameters)
        reply.raise_for_status()
    items = next(iter(reply.classes.values()), ())
    if as_json:
        emit(
            {
                "task": task,
                "file": str(file),
                "texts": found.texts,
                "numbers": found.numbers,
                "top": [
                    [{"label": label, "index": i, "score": s} for s, i, label in item]
                    for item in items
                ],
                "served_by": dict(reply.parameters),
                "round_trip_ms": reply.latency_ms,
            }
        )
        return
    for answer in found.texts if found.texts is not None else found.numbers or ():
        typer.echo(answer)
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
    typer.echo(_served_by(reply.parameters, reply.latency_ms, latency_ms))
    _say_why(reply.parameters)


def _show_selection(found: Selection) -> None:
    slo = found.slo
    default = " (the default)" if slo.latency_ms is None else ""
    limits = [f"latency_ms {found.latency_ms:g}{default}"]
    for name, limit in (("min_accuracy", slo.min_accuracy), ("max_cost_usd", slo.max_cost_usd)):
        limits += [f"{name} {limit:g}"] if limit is not None else []
    is_any = any(entry["predicted"] for entry in found.candidates)
    show_table(
        [
            *("", "variant", "device", "accuracy", "p50 ms", f"{found.quantile} ms"),
            *("USD a million", "why"),
        ],
        [
            (
                ">" if entry["chosen"] else "",
                entry["variant"],
                entry["device_class"],
                accuracy_text(found.accuracies[entry["variant"]]),
                f"{_PREDICTED if entry['predicted'] else ''}{entry['p50_ms']:.2f}",
                f"{_PREDICTED if entry['predicted'] else ''}{entry['planned_ms']:.2f}",
                f"{entry['cost_usd'] * 1e6:.3g}",
                entry["why"],
            )
            for entry in found.candidates
        ],
        title="limits: " + ", ".join(limits),
        caption=f"{_PREDICTED} predicted, not measured" if is_any else "",
        right=[4, 5, 6],
        whole=1,
    )


def _say_why(parameters: Any) -> None:
    if "receipt_id" in parameters:
        say(f"why: modelless why {parameters['receipt_id']}")


def _served_by(parameters: Any, round_trip_ms: float, limit_ms: float | None) -> str:
    place = "from the cache" if parameters.get("cached") else f"on {parameters.get('device')}"
    words = [f"served by {parameters.get('variant')} {place}"]
    if "accuracy" in parameters:
        provenance = parameters.get("accuracy_provenance", "")
        words.append(f"accuracy {parameters['accuracy']:.1f} % {provenance}".rstrip())
    observed, predicted = (
        parameters.get(f"{kind}_latency_ms") for kind in ("observed", "predicted")
    )
    if observed is not None:
        known = f" (predicted {predicted:.1f})" if predicted is not None else ""
        late = f", late for {limit_ms:g}" if limit_ms is not None and observed > limit_ms else ""
        words.append(f"{observed:.1f} ms{known}{late}")
    words.append(f"{round_trip_ms:.1f} ms seen from here")
    if parameters.get("cost_usd") is not None:
        words.append(f"{parameters['cost_usd']:.3g} USD")
    return ", ".join(words)
