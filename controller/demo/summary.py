"""The demo's last words: its findings, the place of the report, and commands to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from modelless.controller.cli.cluster import curl_line
from modelless.controller.demo.answers import PhotoAnswer
from modelless.controller.demo.page import percent
from modelless.controller.demo.report import Findings
from modelless.variants.vocabulary import Task

_MOST_WRONG = 5

_SNIPPET = """\
import numpy as np
import tritonclient.http as http
from skimage.data import chelsea

photo = np.ascontiguousarray(chelsea())[None]
image = http.InferInput({input!r}, list(photo.shape), "UINT8")
image.set_data_from_numpy(photo)
client = http.InferenceServerClient({host!r})
limits = {{"latency_ms": 100, "min_accuracy": 74.0}}
result = client.infer({task!r}, [image], parameters=limits)
print(result.as_numpy({output!r}).argmax(), result.get_response()["parameters"])"""


def photo_summary(answers: Sequence[PhotoAnswer]) -> Iterator[str]:
    """How many variants were chosen, and how many labels are sane."""
    used = {answer.variant for answer in answers if answer.variant}
    judged = [answer for answer in answers if answer.is_judged]
    sane = sum(answer.is_sane for answer in judged)
    refused = [answer for answer in answers if not answer.reply.is_answer]
    unforeseen = sum(answer.slo.is_feasible for answer in refused)
    yield (
        f"{len(used)} different variants chosen; {sane} of {len(judged)} labels sane at 224 px and "
        f"more; {len(refused) - unforeseen} of {len(answers)} refused, as they had to be"
    )
    if unforeseen:
        yield (
            f"[yellow]{unforeseen} more refused: the machine is busier now than when it was "
            "profiled[/]"
        )
    wrong = {(a.photo, a.label): a.variant for a in judged if not a.is_sane}
    for (photo, label), variant in list(wrong.items())[:_MOST_WRONG]:
        yield f"[yellow]{photo}: {label!r}, says {variant}[/]"


def summary(findings: Findings, page: Path) -> Iterator[str]:
    """Where the report is, and three lines of what it says."""
    answers = findings.photo_answers
    used = {answer.variant for answer in answers if answer.variant}
    judged = [answer for answer in answers if answer.is_judged]
    slos = {answer.slo.name for answer in answers}
    sane = sum(answer.is_sane for answer in judged)
    yield ""
    yield f"[bold]{page}[/] tells all of it; {page.with_name('report.json')} has the data"
    yield (
        f"photos: {len(used)} variants chosen for {len(findings.photos)} photos under {len(slos)} "
        f"limits, {sane} of {len(judged)} labels sane"
    )
    if findings.burst is not None:
        total = findings.burst.query_log.tally()
        yield (
            f"burst: {total.sent:,} queries, {percent(total.share_in_time)} in time, "
            f"{total.answered - total.in_time:,} late, {total.refused:,} refused, "
            f"{total.errors:,} errors, {len(total.by_variant)} variants in use"
        )
    whole_s = dict(findings.stages).get("all of it", 0.0)
    first = findings.first_answer_s
    yield f"time: {whole_s:.0f} s in all" + (
        f", {first:.1f} s from start to first answer" if first is not None else ""
    )


def how_to_ask(task: Task, url: str) -> Iterator[str]:
    """A ``curl`` line and a ``tritonclient`` snippet that work while the cluster is up."""
    yield f"\nStill up at {url}; 'modelless down' takes it down. Ask it more:\n"
    yield curl_line(url, task)
    yield ""
    yield _SNIPPET.format(
        input=task.inputs[0].name,
        output=task.outputs[0].name,
        task=task.name,
        host=url.removeprefix("http://"),
    )
