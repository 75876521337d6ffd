"""The report says what was found, whatever was found."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.pages import STYLE, table
from modelless.controller.demo import page as figures
from modelless.controller.demo.load import LoadSpec
from modelless.controller.demo.page import render_page
from modelless.controller.demo.profiles import Profiles
from modelless.controller.demo.query_log import QueryLog
from modelless.controller.demo.report import SCHEMA, document_of
from modelless.controller.demo.tables import percent
from tests.unit.demo.conftest import burst_of

THUMBNAILS = {"coffee & cup": "data:image/jpeg;base64,AA=="}


def test_the_document_is_json_with_a_version(document: dict[str, Any]) -> None:
    document = json.loads(json.dumps(document, allow_nan=False))
    assert document["schema"] == SCHEMA
    assert len(document["variants"]) == 22
    assert sum(variant["on_frontier"] for variant in document["variants"]) >= 8
    photos = document["photos"]
    assert (photos["sane"], photos["judged"], photos["answered"]) == (1, 1, 1)
    assert photos["distinct_variants"] == ["imagenet/efficientnet-lite0/int8-224@1"]


def test_the_burst_adds_up(document: dict[str, Any]) -> None:
    burst = document["burst"]
    total = burst["total"]
    assert total["sent"] == sum(total["outcomes"].values()) == 9
    assert sum(one["sent"] for one in burst["bins"]) == 9
    assert sum(kind["sent"] for kind in burst["kinds"]) == 9
    assert burst["main_task"] == "imagenet"
    assert sum(one["sent"] for one in burst["main_task_bins"]) == burst["main_task_total"]["sent"]
    assert burst["client_cpu_share"] == pytest.approx(0.03)


def test_the_page_stands_alone(document: dict[str, Any]) -> None:
    page = render_page(document, THUMBNAILS)
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#|report\.json)', page)
    assert "$" not in STYLE
    assert page.count("<svg") == 3
    assert "data:image/jpeg" in page


def test_what_others_wrote_is_escaped(document: dict[str, Any]) -> None:
    page = render_page(document, THUMBNAILS)
    assert "a &lt;processor&gt;" in page
    assert "nothing &lt;b&gt;can&lt;/b&gt;" in page
    assert "coffee &amp; cup" in page
    assert "a note &amp; more" in page


def test_refusals_and_silence_are_a_page_too(
    profiles: Profiles, spec: LoadSpec, findings: dict[str, Any], photos: dict[str, Any]
) -> None:
    refused = [answer for answer in photos["answers"] if answer["status"] != 200]
    silent = {**photos, "slos": photos["slos"][1:], "answers": refused}
    burst = burst_of(spec, QueryLog(spec.kinds), profiles)
    document = document_of(profiles, **{**findings, "photos": silent, "burst": burst})
    json.dumps(document, allow_nan=False)
    page = render_page(document, THUMBNAILS)
    assert "no answer" in page
    assert page.count("<svg") == 2


def test_pictures_use_the_pages_colours(document: dict[str, Any]) -> None:
    burst = document["burst"]
    for svg in (
        figures.frontier_figure(document["variants"], "cpu-1"),
        figures.burst_figure(burst["bins"], burst["main_task_bins"]),
    ):
        assert svg.startswith("<svg viewBox=")
        assert "#0102" not in svg
        assert "var(--ink)" in svg
        assert "<metadata" not in svg
        assert "<style" not in svg
        for name in re.findall(r"var\((--[a-z0-9-]+)\)", svg):
            assert f"{name}:" in STYLE


def test_ids_of_two_pictures_do_not_meet(document: dict[str, Any]) -> None:
    one = figures.frontier_figure(document["variants"], "cpu-1")
    other = figures.burst_figure(document["burst"]["bins"], document["burst"]["main_task_bins"])
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, other)]
    assert not ids[0] & ids[1]
    for svg, known in zip((one, other), ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= known


def test_one_picture_is_always_the_same(document: dict[str, Any]) -> None:
    variants = document["variants"]
    assert figures.frontier_figure(variants, "x") == figures.frontier_figure(variants, "x")


def test_shares_add_up_to_one() -> None:
    bins = [
        {
            "by_variant": [
                {"short_name": f"v{place}", "accuracy": 60.0 + place, "answers": place + 1}
                for place in range(15)
            ],
            "answered": 120,
        },
        {"by_variant": [], "answered": 0},
    ]
    stacked = figures.shares_by_variant(bins)
    assert len(stacked) == len(figures.SHADES)
    assert stacked[0][0] == "v14"
    assert stacked[-1][0] == "others"
    assert sum(shares[0] for _, shares in stacked) == pytest.approx(1.0)
    assert sum(shares[1] for _, shares in stacked) == 0.0


def test_without_matplotlib_the_way_out_is_told(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = document["variants"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentUnfitError, match=r"modelless\[report\]"):
        figures.frontier_figure(variants, "cpu-1")


def test_percent_does_not_flatter() -> None:
    assert percent(1.0) == "100.0%"
    assert percent(0.99996) == "99.996%"
    assert percent(0.5, 0) == "50%"
    assert percent(None) == "–"


def test_short_rows_fill_the_table() -> None:
    assert 'colspan="3"' in table(["a", "b", "c", "d"], [["1", "2"]])
