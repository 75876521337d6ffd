"""The console in a real browser, on a real cluster that answers queries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modelless.controller.usecases.client import Client

from .browser import Browser, axe_script, browser
from .clients import IMAGE, Clients, wait_until
from .running import Running, cluster

PAGES = ("", "/why", "/frontier", "/policies", "/variants", "/try")
FIRST_PAINT_MS = 1000.0
TILE = "return document.querySelectorAll('.tile b')[{}].textContent"


def test_every_page_works_in_a_browser_while_queries_come(shared: Running, tmp_path: Path) -> None:
    pictures = Path(os.environ.get("CONSOLE_PICTURES", tmp_path))
    with browser() as seen, Clients(shared):
        console = f"{shared.url}/console"
        seen.look(1200)
        seen.open(console)
        wait_until(lambda: float(seen.run(TILE.format(0))) > 0.0, 15.0)  # it renews itself
        drawn = "return document.querySelectorAll('.chart canvas').length"
        wait_until(lambda: seen.run(drawn) == 3, 10.0)
        rows = "return document.querySelectorAll('.charts tbody tr').length"
        wait_until(lambda: seen.run(rows) >= 3, 10.0)
        seen.screenshot(pictures / "console-light.png")
        seen.look(1200, dark=True)
        wait_until(lambda: seen.run(drawn) == 3, 10.0)
        seen.screenshot(pictures / "console-dark.png")
        _check_what_a_stream_leaves(seen)
        seen.look(390)
        fits = "return document.documentElement.scrollWidth <= innerWidth"
        for page in PAGES:
            seen.open(console + page)
            assert seen.run(fits), page
            assert seen.first_paint_ms() < FIRST_PAINT_MS, page
            seen.screenshot(pictures / f"console-phone{page.replace('/', '-')}.png")
        _check_quotes(seen)
        _check_search(seen, console)
        _check_story(seen, console)
        _check_upload(seen, console, tmp_path / "shirt.png")
        assert seen.complaints() == []


def _check_what_a_stream_leaves(seen: Browser) -> None:
    """What the stream brings moves neither focus nor what is open, and it can be paused."""
    region = "document.querySelector('#tables .scroll')"
    seen.run(f"{region}.focus(); document.querySelector('details').open = true")
    whole = "return document.querySelectorAll('.tile')[1].textContent"
    before = seen.run(whole)
    wait_until(lambda: seen.run(whole) != before, 15.0)
    assert seen.run(f"return document.activeElement === {region}")
    assert seen.run("return document.querySelector('details').open")
    assert seen.run(FOLLOWING) == "live"
    seen.run("document.getElementById('pause').click()")
    assert seen.run(FOLLOWING) == "paused"
    seen.run("document.getElementById('pause').click()")
    wait_until(lambda: seen.run(FOLLOWING) == "live", 10.0)


FOLLOWING = "return document.getElementById('following').textContent"


def _check_quotes(seen: Browser) -> None:
    """A quote follows the sliders of the page *Try it*."""
    slide = (
        "const slider = document.getElementById('{}'); slider.value = {};"
        "slider.dispatchEvent(new Event('input', {{bubbles: true}}))"
    )
    verdict = "return document.querySelector('#quote .tile b')?.textContent"
    seen.run(slide.format("latency_ms", 500))
    wait_until(lambda: seen.run(verdict) == "can be met", 10.0)
    seen.run(slide.format("min_accuracy", 100))
    wait_until(lambda: seen.run(verdict) == "cannot be met", 10.0)
    seen.run(slide.format("min_accuracy", 0))
    wait_until(lambda: seen.run(verdict) == "can be met", 10.0)
    seen.run(slide.format("max_cost", -12))
    wait_until(lambda: seen.run(verdict) == "cannot be met", 10.0)
    assert "misses cost" in seen.run("return document.getElementById('quote').textContent")


def _check_search(seen: Browser, console: str) -> None:
    """Receipts are found without leaving the page, and each leads to its story."""
    seen.open(f"{console}/why")
    seen.run("window.stays = true; document.querySelector('form.search button').click()")
    found = "return document.querySelectorAll('#found td a[href*=\"receipt=\"]').length"
    wait_until(lambda: seen.run(found) > 0, 60.0)
    assert seen.run("return window.stays")


def _check_upload(seen: Browser, console: str, picture: Path) -> None:
    """A picture is answered by a real query."""
    Image.fromarray(IMAGE[0]).save(picture)
    seen.open(f"{console}/try?task=fashion-mnist&latency_ms=500")
    seen.choose_file("file", picture)
    seen.run("document.querySelector('#upload button').click()")
    answer = "return document.getElementById('answer').textContent"
    wait_until(lambda: "Likeliest classes" in seen.run(answer), 60.0)
    assert "fashion-mnist/" in seen.run(answer)


def _check_story(seen: Browser, console: str) -> None:
    """The page *Why* tells a recent query's story."""
    seen.open(f"{console}/why")
    link = "return document.querySelector('a[href*=\"receipt=\"]').href"
    seen.open(seen.run(link))
    assert "asked for fashion-mnist" in seen.run("return document.body.textContent")
    assert seen.run("return document.querySelectorAll('table tbody tr').length") > 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_axe_finds_nothing_serious_on_any_page(shared: Running, width: int, dark: bool) -> None:
    axe = axe_script()
    asked = ("?find=1&since=10m", "?task=fashion-mnist&latency_ms=100")
    with browser() as seen:
        seen.look(width, dark=dark)
        for page in (*PAGES, f"/why{asked[0]}", f"/try{asked[1]}"):
            seen.open(f"{shared.url}/console{page}")
            assert seen.violations(axe) == [], page


def test_a_change_is_tried_applied_and_taken_back_while_queries_come(
    live_home: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(live_home, home, ignore=shutil.ignore_patterns("run"))
    with (
        cluster(home, config="gateways: {count: 2}", marker="console") as running,
        Clients(running) as clients,
        browser() as seen,
    ):
        clients.answered_again()
        with Client(running.url) as client:
            too_many = client.infer("fashion-mnist", {"image": np.repeat(IMAGE, 9, axis=0)})
        assert too_many.status == 422
        page = f"{running.url}/console/policies"
        seen.look(1200)
        seen.open(page)
        seen.run(FILL.format("policies.selection", "cheapest-feasible"))
        seen.run(PRESS.format("do", "simulate"))
        wait_until(lambda: "Simulated" in seen.run(OUTCOME), 240.0)
        assert "attainment" in seen.run(OUTCOME)
        assert "1 receipts are left out" in seen.run(OUTCOME)
        assert in_force(running) == [0, 0]  # it was only tried
        seen.run(FILL.format("policies.selection", "best-valu"))
        seen.run(PRESS.format("do", "apply"))
        wait_until(lambda: "best-valu" in seen.run(OUTCOME), 20.0)
        assert in_force(running) == [0, 0]
        assert any("400" in each for each in seen.complaints())  # the browser notes that refusal
        seen.run(FILL.format("policies.selection", "cheapest-feasible"))
        seen.run(PRESS.format("do", "apply"))
        wait_until(lambda: "Revision 1" in seen.run(OUTCOME), 20.0)
        wait_until(lambda: in_force(running) == [1, 1], 5.0)
        clients.answered_again()
        seen.run(PRESS.format("rollback", "0"))
        wait_until(lambda: "Revision 2" in seen.run(OUTCOME), 20.0)
        wait_until(lambda: in_force(running) == [2, 2], 5.0)
        clients.answered_again()
        assert seen.complaints() == []
    assert set(clients.outcomes) == {"200"}, clients.outcomes


FILL = "document.getElementById('{}').value = '{}'"
PRESS = "document.querySelector('button[name={}][value=\"{}\"]').click()"
OUTCOME = "return document.getElementById('outcome').textContent"


def in_force(running: Running) -> list[int]:
    """The revisions that the gateways go by."""
    members = running.get("/modelless/status")["members"]
    return [member["revision"] for member in members]
