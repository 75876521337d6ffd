"""The report's page and pictures: whole, well-formed, readable by anyone, hurt by no name."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelless.common.drawing import SERIES, css_variable, render_png, render_svg, spread
from modelless.common.errors import EnvironmentUnfitError
from modelless.common.pages import STYLE, count_of, table
from modelless.profiler.report.document import Report
from modelless.profiler.report.page import file_name, render
from modelless.profiler.report.profiles import profiles_of
from tests.unit.balanced import Balanced

from .profiled import CPU, points, profiles, report, variant

EVIL = '"><script>alert($x_1^2$ & "1")</script>'
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def evil_report(make: Any) -> Report:
    """Two models on two machines, one of which bears a hostile name."""
    told = [variant(make, name, 70.0 + n, f"net-{name}") for n, name in enumerate("ab")]
    rows = [row for one in told for row in points(make, one, {1: 1.0, 2: 2.2, 4: 3.0})]
    rows += points(
        make, told[0], {1: 3.0, 2: 5.0}, fingerprint="x", device_name=EVIL, trusted=False
    )
    return report(profiles_of(rows, told, {"cpu-1": CPU}))


@pytest.fixture(scope="module")
def rendered(make: Any) -> tuple[str, Mapping[str, bytes]]:
    """The page and files of that report, drawn once."""
    return render(evil_report(make), made=f"modelless {EVIL}")


@pytest.fixture(scope="module")
def parsed(rendered: tuple[str, Mapping[str, bytes]]) -> Balanced:
    """The page, read."""
    parser = Balanced()
    parser.feed(rendered[0])
    parser.close()
    return parser


def test_the_page_is_well_formed_and_escaped(parsed: Balanced) -> None:
    assert parsed.open == []
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in parsed.seen}
    assert f"modelless {EVIL}" in parsed.text
    assert parsed.text.count(EVIL) > 5  # in tables, captions and pictures


def test_the_page_needs_nothing_else(
    rendered: tuple[str, Mapping[str, bytes]], parsed: Balanced
) -> None:
    page, files = rendered
    assert not [a for _, a in parsed.seen if {"src", "srcset"} & a.keys()]
    ids = {str(attributes["id"]) for _, attributes in parsed.seen if "id" in attributes}
    links = {str(a["href"]) for tag, a in parsed.seen if tag == "a"}
    inside = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert inside
    assert inside <= ids
    assert {link for link in links if not link.startswith("#")} == {*files, "report.json"}
    assert not re.findall(r"url\((?!#)|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_files_are_pictures_whose_names_are_plain(
    rendered: tuple[str, Mapping[str, bytes]],
) -> None:
    _, files = rendered
    assert len(files) == 8  # two of each of two devices, two frontiers, two of predictions
    assert all(content.startswith(PNG_MAGIC) for content in files.values())
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+\.png", name) for name in files)


def test_every_picture_is_told_in_words_and_in_a_table(parsed: Balanced) -> None:
    pictures = [attributes for tag, attributes in parsed.seen if tag == "svg"]
    assert len(pictures) == 8
    assert all(each["role"] == "img" and each["aria-label"] for each in pictures)
    tags = [tag for tag, _ in parsed.seen]
    assert tags.count("figcaption") == tags.count("details") == 8
    assert tags.count("table") == tags.count("caption") == 9  # and the summary of errors
    frames = [a for tag, a in parsed.seen if tag == "div" and a.get("class") == "scroll"]
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in frames)


def test_ids_are_there_once(parsed: Balanced) -> None:
    ids = [attributes["id"] for _, attributes in parsed.seen if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_what_is_not_trusted_is_marked(parsed: Balanced) -> None:
    assert "8 measured points, 2 of them not trusted" in parsed.text
    assert "3 *" in parsed.text


def test_pictures_use_the_page_s_colours(rendered: tuple[str, Mapping[str, bytes]]) -> None:
    page, _ = rendered
    assert "#0102" not in page
    for name in re.findall(r"var\((--[a-z0-9-]+)\)", page):
        assert STYLE.count(f"{name}:") == 2  # in light and in dark


def test_what_cannot_be_known_has_no_picture(make: Any) -> None:
    only = profiles(make, (variant(make, "a", 70.0), {2: 1.0}), memory_mib=0.0)
    unpriced = tuple(
        replace(each, device=replace(each.device, price_usd_per_hour=None)) for each in only
    )
    page, files = render(report(unpriced), made="modelless")
    assert sorted(files) == ["latency-imagenet-cpu-1.png", "throughput-imagenet-cpu-1.png"]
    assert "it could say nothing" in page
    assert "No price of a device is known here." in page


def test_two_pictures_never_share_a_file(make: Any) -> None:
    one = variant(make, "a", 70.0)
    rows = points(make, one, {1: 1.0}) + points(
        make, one, {1: 1.0}, device_class="CPU 1", fingerprint="x"
    )
    rows += points(make, one, {1: 1.0}, device_class="CPU/1", fingerprint="x")
    _, files = render(report(profiles_of(rows, [one], {})), made="modelless")
    assert {"latency-imagenet-CPU-1.png", "latency-imagenet-CPU-1-2.png"} <= files.keys()
    assert len(files) == 7


def test_progress_is_told_picture_by_picture(make: Any) -> None:
    told: list[tuple[int, int, str]] = []
    only = profiles(make, (variant(make, "a", 70.0), {1: 1.0}))
    render(report(only), made="modelless", progress=lambda *each: told.append(each))
    assert [done for done, _, _ in told] == [1, 2, 3, 4]
    assert {total for _, total, _ in told} == {4}


def test_file_names_are_plain_whatever_they_are_made_of() -> None:
    assert file_name("latency", "a_b", "cpu-1, A <b>") == "latency-a_b-cpu-1-A-b"
    assert file_name("..", "../../etc") == "x-etc"


# -- pieces -----------------------------------------------------------------------------------


def test_a_table_without_a_caption_is_a_plain_one() -> None:
    assert "tabindex" not in table(["a"], [["1"]])
    assert 'aria-label="&lt;b&gt;"' in table(["a"], [["1"]], "<b>")


def test_counts_are_in_words() -> None:
    assert [count_of(number, "point") for number in (0, 1, 2000)] == [
        "0 points",
        "1 point",
        "2,000 points",
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([-1.0], [0.0]),
        ([1.0, 3.0], [1.0, 3.0]),  # far enough apart
        ([4.0, 4.0], [3.5, 4.5]),  # shared out evenly
        ([0.0, 0.0, 5.0], [0.0, 1.0, 5.0]),  # not below the end
        ([9.9, 10.0], [9.0, 10.0]),  # not above it
    ],
)
def test_names_in_a_column_keep_apart(wanted: list[float], expected: list[float]) -> None:
    assert spread(wanted, 1.0, 0.0, 10.0) == pytest.approx(expected)


def test_names_that_do_not_fit_move_together() -> None:
    assert spread([1.0] * 5, 1.0, 0.0, 2.0) == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


def dot(figure: Any) -> None:
    """A dot in the middle, in the first colour of a series."""
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.scatter([0.5], [0.5], s=900, color=SERIES[0], linewidths=0)


def test_a_colour_is_the_variable_in_svg_and_its_light_value_in_png() -> None:
    from matplotlib import colors
    from PIL import Image

    svg = render_svg(dot, (1.0, 1.0), "dot", EVIL)
    parser = Balanced()
    parser.feed(svg)
    assert parser.seen[0][1]["aria-label"] == EVIL
    assert f"var({css_variable(SERIES[0])})" in svg
    pixels = np.asarray(Image.open(io.BytesIO(render_png(dot, (1.0, 1.0)))).convert("RGB"))
    assert tuple(pixels[80, 80]) == (0x00, 0x72, 0xB2)
    assert tuple(pixels[1, 1]) == (255, 255, 255)
    assert SERIES[0] not in colors.get_named_colors_mapping()  # and nothing of it is left


def test_without_matplotlib_the_way_out_is_told(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = report(profiles(make, (variant(make, "a", 70.0), {1: 1.0})))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentUnfitError, match=r"modelless\[report\]"):
        render(told, made="modelless")
