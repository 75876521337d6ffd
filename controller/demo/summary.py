"""The demo's last words: its findings, the place of the report, and commands to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modelless.controller.cli.cluster import curl_line
from modelless.controller.demo.page import percent
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


def photo_summary(photos: Mapping[str, Any]) -> Iterator[str]:
    """How many variants were chosen, and how many labels are sane, of the report's ``photos``."""
    answers = photos["answers"]
    feasible = {slo["name"] for slo in photos["slos"] if slo["is_feasible"]}
    refused = [answer["slo"] for answer in answers if answer["status"] != 200]
    unforeseen = sum(name in feasible for name in refused)
    yield (
        f"{len(photos['distinct_variants'])} different variants chosen; {photos['sane']} of "
        f"{photos['judged']} labels sane at 224 px and more; {len(refused) - unforeseen} of "
        f"{len(answers)} refused, as they had to be"
    )
    if unforeseen:
        yield (
            f"[yellow]{unforeseen} more refused: the machine is busier now than when it was "
            "profiled[/]"
        )
    wrong = {
        (answer["photo"], answer["label"]): answer["variant"]
        for answer in answers
        if answer["is_judged"] and not answer["is_sane"]
    }
    for (photo, label), variant in list(wrong.items())[:_MOST_WRONG]:
        yield f"[yellow]{photo}: {label!r}, says {variant}[/]"


def summary(document: Mapping[str, Any], page: Path) -> Iterator[str]:
    """Where the report is, and three lines of what it says."""
    photos, burst = document["photos"], document["burst"]
    total, whole = burst["total"], document["stages"][-1]
    yield ""
    yield f"[bold]{page}[/] tells all of it; {page.with_name('report.json')} has the data"
    yield (
        f"photos: {len(photos['distinct_variants'])} variants chosen for {len(photos['photos'])} "
        f"photos under {len(photos['slos'])} limits, {photos['sane']} of {photos['judged']} labels "
        "sane"
    )
    yield (
        f"burst: {total['sent']:,} queries, {percent(total['share_in_time'])} in time, "
        f"{total['answered'] - total['in_time']:,} late, {total['refused']:,} refused, "
        f"{total['errors']:,} errors, {len(total['by_variant'])} variants in use"
    )
    yield (
        f"time: {whole['seconds']:.0f} s in all, {document['first_answer_s']:.1f} s from start to "
        "first answer"
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
