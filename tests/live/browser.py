"""A real browser, Debian's Chromium, by the WebDriver protocol: no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .running import free_port


class Browser:
    """A browser with one window.

    Args:
        url: of the driver's session.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def command(self, name: str, document: object = None) -> Any:
        """The value of one command; GET without a document."""
        return _call(f"{self._url}/{name}", document)

    def run(self, script: str) -> Any:
        """What a function's body returns in the page."""
        return self.command("execute/sync", {"script": script, "args": []})

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self.command("url", {"url": url})

    def choose_file(self, element: str, file: Path) -> None:
        """Choose a file in the page's input of that id."""
        found = self.command("element", {"using": "css selector", "value": f"#{element}"})
        (place,) = found.values()
        self.command(f"element/{place}/value", {"text": str(file)})

    def look(self, width: int, *, dark: bool = False) -> None:
        """Set the width of the page, pixels, and the reader's colours."""
        self._devtools("Emulation.setDeviceMetricsOverride", width=width, height=1000,
                       deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", features=scheme)

    def first_paint_ms(self) -> float:
        """When the page first showed something, milliseconds after it was asked for."""
        times = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"
        end_s = time.monotonic() + 10.0
        while not (found := self.run(f"return {times}")):  # it is loaded before it is painted
            assert time.monotonic() < end_s, "the page shows nothing"
            time.sleep(0.05)
        return float(found[0])

    def violations(self, axe: str) -> list[Any]:
        """What axe-core finds in the page that is serious or critical, with where it is.

        Args:
            axe: its script.
        """
        self.run(axe)
        check = (
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then(found => done(found.violations"
            ".filter(each => ['serious', 'critical'].includes(each.impact))"
            ".map(each => [each.id, each.nodes.map(node => node.html)])), e => done([`${e}`]))"
        )
        found: list[Any] = self.command("execute/async", {"script": check, "args": []})
        return found

    def screenshot(self, file: Path) -> None:
        """Write what can be seen as PNG."""
        file.write_bytes(base64.b64decode(self.command("screenshot")))

    def complaints(self) -> list[str]:
        """Errors in the browser's console since the last call."""
        found = self.command("se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] in ("SEVERE", "WARNING")]

    def _devtools(self, name: str, **parameters: Any) -> None:
        self.command("goog/cdp/execute", {"cmd": name, "params": parameters})


def axe_script() -> str:
    """The script of axe-core, from the package that ``AXE_CORE`` names; skips without one."""
    path = os.environ.get("AXE_CORE")
    if path is None:
        pytest.skip("AXE_CORE names no axe.min.js: npm pack axe-core@4.14.1, and unpack it")
    return Path(path).read_text(encoding="utf-8")


def _call(url: str, document: object = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a screen; skips the test where there is none."""
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    port = free_port()
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    options = {
        "binary": shutil.which("chromium"),
        "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    }
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        url = f"http://127.0.0.1:{port}/session"
        session = _begin(url, {"capabilities": {"alwaysMatch": wanted}})
        try:
            yield Browser(f"{url}/{session['sessionId']}")
        finally:
            request = urllib.request.Request(f"{url}/{session['sessionId']}", method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()
    finally:
        driver.terminate()
        driver.wait(30)


def _begin(url: str, wanted: object) -> Any:
    end_s = time.monotonic() + 30.0
    while True:
        try:
            return _call(url, wanted)
        except ConnectionError:
            _pause(end_s)
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                raise
            _pause(end_s)


def _pause(end_s: float) -> None:
    assert time.monotonic() < end_s, "the browser's driver does not start"
    time.sleep(0.1)
