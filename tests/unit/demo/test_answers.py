"""What the cluster said about photos and clothes is kept and counted."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from modelless.controller.demo import summary, tables
from modelless.controller.demo.answers import (
    Photo,
    ask_about_clothes,
    ask_about_photos,
)
from modelless.controller.demo.cluster_process import free_port
from modelless.controller.demo.load_spec import LoadSpec
from modelless.controller.demo.pictures import acceptable_indices, square, thumbnail
from modelless.controller.demo.query_log import QueryLog
from modelless.controller.demo.report import Findings, document_of
from modelless.controller.demo.slos import NamedSlo
from modelless.controller.usecases.client import Client, EncodedQuery, InferReply
from modelless.variants.vocabulary import SLO
from tests.unit.demo.conftest import CLOTHES, PHOTOS

VARIANT = "imagenet/efficientnet-lite0/int8-224@1"
SAID = {
    "variant": VARIANT,
    "accuracy": 74.4,
    "accuracy_provenance": "derived",
    "predicted_latency_ms": 4.0,
    "observed_latency_ms": 5.0,
}
COFFEE = Photo("coffee", np.zeros((4, 4, 3), np.uint8), frozenset({"espresso"}))
LOOSE, NEVER = NamedSlo("loose", SLO()), NamedSlo("never", SLO(min_accuracy=99), is_feasible=False)


def client_of(replies: Sequence[InferReply]) -> Client:
    """A client whose server gives these replies, one after another."""

    class Scripted:
        def __init__(self) -> None:
            self._left = list(replies)

        def send(self, query: EncodedQuery) -> InferReply:
            assert query.body
            return self._left.pop(0)

    return cast(Client, Scripted())


def scored(*labels: tuple[float, int, str]) -> InferReply:
    return InferReply(200, SAID, classes={"probabilities": [list(labels)]}, latency_ms=6.0)


def test_photos_are_judged_at_the_published_resolutions() -> None:
    replies = [scored((0.9, 0, "espresso")), InferReply(422, error="no"), scored((0.4, 3, ""))]
    slos = [LOOSE, NEVER, LOOSE]
    answers = ask_about_photos(client_of(replies), PHOTOS, [COFFEE], slos, {VARIANT: 224})
    assert [a.is_sane for a in answers] == [True, False, False]
    assert [a.is_judged for a in answers] == [True, False, True]
    assert [a.label for a in answers] == ["espresso", "", "3"]
    (small,) = ask_about_photos(client_of(replies[:1]), PHOTOS, [COFFEE], [LOOSE], {VARIANT: 160})
    assert not small.is_judged


def test_clothes_are_counted() -> None:
    def reply(*classes: int) -> InferReply:
        scores = np.eye(10, dtype=np.float32)[list(classes)]
        return InferReply(200, SAID, tensors={"probabilities": scores})

    images, labels = np.zeros((5, 28, 28), np.uint8), np.array([1, 2, 3, 4, 5], np.uint8)
    replies = [reply(1, 2), InferReply(429, error="busy"), reply(0)]
    found = ask_about_clothes(client_of(replies), CLOTHES, images, labels, LOOSE, 2)
    assert (found.images, found.right, found.refused) == (3, 2, 2)
    assert found.measured_percent == pytest.approx(200 / 3)
    assert found.stated_percent == pytest.approx(74.4)
    assert found.variants == [{"variant": VARIANT, "short_name": "lite0 int8-224", "images": 3}]
    assert 0.0 < found.measured_low < found.measured_percent < found.measured_high < 100.0
    nothing = ask_about_clothes(client_of([]), CLOTHES, images[:0], labels[:0], LOOSE, 2)
    assert (nothing.images, nothing.measured_percent) == (0, 0.0)


def test_pictures_are_squares_and_thumbnails() -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, 10:50] = 200
    found = square(pixels, 16)
    assert found.shape == (16, 16, 3)
    assert found.flags.c_contiguous
    assert abs(found[:, 2:-2].astype(int) - 200).max() <= 3
    assert thumbnail(COFFEE).startswith("data:image/jpeg;base64,")
    assert acceptable_indices(COFFEE, PHOTOS.labels) == [0]


def shown(*what: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for one in what:
        console.print(one)
    return console.export_text()


def test_tables_show_answers_and_refusals(findings: Findings) -> None:
    text = shown(
        tables.photo_table(findings.photos.answers),
        tables.clothes_table(findings.clothes),
        tables.frontier_table(findings.profiles.by_task["imagenet"]),
    )
    for word in ("espresso", "lite0 int8-224", "derived", "refused", "422", "92.0 %", "77.6 %"):
        assert word in text
    assert tables.refusals(findings.photos.answers) == {"never": "nothing <b>can</b>"}


@pytest.mark.parametrize(
    "status", [None, {}, {"members": [{"queued": 3, "resident_bytes": 5 << 20}]}]
)
def test_the_live_table_is_drawn_from_the_first_second(
    findings: Findings, spec: LoadSpec, status: dict[str, object] | None
) -> None:
    for query_log in (QueryLog(spec.kinds), findings.burst.query_log):
        text = shown(
            tables.live_table(query_log, 10.0, spec, "imagenet", status),
            tables.live_line(query_log, 10.0, 10.0, status),
            tables.kinds_table(query_log),
        )
        assert "answered in time" in text
        assert ("5 MiB" in text) == bool(status)


def test_the_end_is_summed_up(findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = tmp_path_factory.mktemp("report") / "index.html"
    text = "\n".join(summary.summary(document_of(findings), page))
    assert "1 variants chosen for 1 photos under 2 limits, 1 of 1 labels sane" in text
    assert "9 queries, 22.2% in time" in text
    lines = "\n".join(summary.photo_summary(findings.photos.document()))
    assert "1 of 2 refused, as they had to be" in lines


def test_the_snippet_is_python() -> None:
    said = list(summary.how_to_ask(PHOTOS, "http://127.0.0.1:8080"))
    assert any(line.startswith("curl ") for line in said)
    compile(said[-1], "snippet", "exec")
    assert "127.0.0.1:8080" in said[-1]


def test_a_taken_port_is_replaced() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
