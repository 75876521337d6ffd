"""The console in a real browser, on a real cluster that answers queries."""

from __future__ import annotations

import os
from pathlib import Path

from .browser import Browser, browser
from .clients import Clients, wait_until
from .running import Running

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
        seen.look(390)
        fits = "return document.documentElement.scrollWidth <= innerWidth"
        for page in ("", "/why", "/variants", "/try"):
            seen.open(console + page)
            assert seen.run(fits), page
            seen.screenshot(pictures / f"console-phone{page.replace('/', '-')}.png")
        _check_quotes(seen)
        _check_story(seen, console)
        assert seen.complaints() == []


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


def _check_story(seen: Browser, console: str) -> None:
    """The page *Why* tells a recent query's story."""
    seen.open(f"{console}/why")
    link = "return document.querySelector('a[href*=\"receipt=\"]').href"
    seen.open(seen.run(link))
    assert "asked for fashion-mnist" in seen.run("return document.body.textContent")
    assert seen.run("return document.querySelectorAll('table tbody tr').length") > 1
