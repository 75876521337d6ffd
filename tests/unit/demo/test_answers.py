"""What the cluster said about photos and clothes is kept and counted."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from modelless.controller.demo import run, tables
from modelless.controller.demo.asking import ask_about_clothes, ask_about_photos, square
from modelless.controller.demo.cluster_process import free_port
from modelless.controller.demo.load import LoadSpec
from modelless.controller.demo.profiles import Profiles
from modelless.controller.demo.query_log import QueryLog, Row
from modelless.controller.usecases.client import InferReply
from tests.unit.demo.conftest import (
    CLOTHES,
    COFFEE,
    LOOSE,
    NEVER,
    PHOTOS,
    SAID,
    VARIANT,
    client_of,
    scored,
)


def test_photos_are_judged_at_the_published_resolutions() -> None:
    replies = [scored((0.9, 0, "espresso")), InferReply(422, error="no"), scored((0.4, 3, ""))]
    slos = [LOOSE, NEVER, LOOSE]
    answers = ask_about_photos(client_of(replies), PHOTOS, [COFFEE], slos, {VARIANT: 224})
    assert [a["is_sane"] for a in answers] == [True, False, False]
    assert [a["is_judged"] for a in answers] == [True, False, True]
    assert [a["label"] for a in answers] == ["espresso", "", "3"]
    (small,) = ask_about_photos(client_of(replies[:1]), PHOTOS, [COFFEE], [LOOSE], {VARIANT: 160})
    assert not small["is_judged"]


def test_clothes_are_counted() -> None:
    def reply(*classes: int) -> InferReply:
        scores = np.eye(10, dtype=np.float32)[list(classes)]
        return InferReply(200, SAID, tensors={"probabilities": scores})

    images, labels = np.zeros((5, 28, 28), np.uint8), np.array([1, 2, 3, 4, 5], np.uint8)
    replies = [reply(1, 2), InferReply(429, error="busy"), reply(0)]
    found = ask_about_clothes(client_of(replies), CLOTHES, images, labels, LOOSE, 2)
    assert (found["images"], found["right"], found["refused"]) == (3, 2, 2)
    assert found["measured_percent"] == pytest.approx(200 / 3)
    assert found["stated_percent"] == pytest.approx(74.4)
    assert found["variants"] == [{"variant": VARIANT, "short_name": "lite0 int8-224", "images": 3}]
    assert 0.0 < found["measured_low"] < found["measured_percent"] < found["measured_high"] < 100.0
    nothing = ask_about_clothes(client_of([]), CLOTHES, images[:0], labels[:0], LOOSE, 2)
    assert (nothing["images"], nothing["measured_percent"]) == (0, 0.0)


def test_pictures_are_squares_and_thumbnails() -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, 10:50] = 200
    found = square(pixels, 16)
    assert found.shape == (16, 16, 3)
    assert found.flags.c_contiguous
    assert abs(found[:, 2:-2].astype(int) - 200).max() <= 3
    assert COFFEE.thumbnail().startswith("data:image/jpeg;base64,")


def shown(*what: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for one in what:
        console.print(one)
    return console.export_text()


def test_tables_show_answers_and_refusals(document: dict[str, Any]) -> None:
    answers = document["photos"]["answers"]
    found = (
        tables.answers_table(answers),
        tables.limits_table(document["photos"]),
        tables.clothes_table(document["clothes"]),
        tables.variants_table(document["variants"]),
        tables.kinds_table(document["burst"]),
    )
    for table in found:
        assert all(len(row) <= len(table.heads) for row in table.rows)
    text = "\n".join(" | ".join(row) for table in found for row in table.rows)
    for word in (
        *("coffee & cup | loose | espresso 90% | lite0 int8-224 | 74.4 % derived | 4.0 | 5.0",),
        *("refused, 422", "refused: nothing <b>can</b>", "92.0 % (85.0 to 96.0)", "77.6 %"),
        "all |  |  | 9 | 22.2% | 1 | 4 | 2",
    ):
        assert word in text
    assert tables.refusals(answers) == {"never": "nothing <b>can</b>"}


@pytest.mark.parametrize(
    "status", [None, {}, {"members": [{"queued": 3, "resident_bytes": 5 << 20}]}]
)
def test_the_live_table_is_drawn_from_the_first_second(
    spec: LoadSpec, rows: list[Row], profiles: Profiles, status: dict[str, object] | None
) -> None:
    for some in ([], rows):
        query_log = QueryLog(spec.kinds)
        query_log.add(some)
        text = shown(
            tables.live_table(query_log, 10.0, spec, "imagenet", status),
            tables.live_line(query_log, 10.0, 10.0, status),
        )
        assert "answered in time" in text
        assert ("5 MiB" in text) == bool(status)


def test_the_end_is_summed_up(
    document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = tmp_path_factory.mktemp("report") / "index.html"
    text = "\n".join(run.summary(document, page))
    assert "1 variants chosen for 1 photos under 2 limits, 1 of 1 labels sane" in text
    assert "9 queries, 22.2% in time" in text
    lines = "\n".join(run.photo_summary(document["photos"]))
    assert "1 of 2 refused, as they had to be" in lines


def test_the_snippet_is_python() -> None:
    said = list(run.how_to_ask(PHOTOS, "http://127.0.0.1:8080"))
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
