"""The console's page, alone and at a real gateway's server."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from modelless.controller.config import Settings
from modelless.controller.live.front.console import MOST_ROWS, render_now
from modelless.controller.live.knowledge import read_knowledge
from tests.unit.cli.tiny import add_measurements, add_variants

from .front import serving

HOSTILE = "<script>alert('x')</script>\"&"


def member(name: str, **others: Any) -> dict[str, Any]:
    return {
        "id": name, "role": "gateway", "device_class": "cpu-1", "is_starting": False,
        "resizing_to": "", "loaded": ["t/m/v"], "loading": [], "failed_loads": {},
        "quarantine": "", "memory_bytes": 3 << 20, "memory_budget_bytes": 8 << 20,
        "resident_bytes": 0, "queued": 2, "arrivals_per_s": 12.5, **others,
    }  # fmt: skip


def text_of(status: dict[str, Any]) -> str:
    return render_now(status).body.decode()


def test_the_page_shows_the_status() -> None:
    text = text_of(
        {
            "members": [member("g1"), member("g2", arrivals_per_s=0.5, quarantine="slow")],
            "outcomes": {"served": 96, "served-late": 3, "refused": 1, "cancelled": 7},
            "statistics": {"queries": {"t": [99, 1, 1.98], "idle": [0, 0, 0.0]}},
            "served_by_variant": {"t/m/v": 90, "t/m/w": 9},
            "not_served": {"other": "no profile"},
        }
    )
    assert "13.0 queries a second; 4 wait; 96.00% of 100 since the start in time." in text
    for row in (
        "<td>t</td><td>99</td><td>1</td><td>20.0</td>",
        "<td>idle</td><td>0</td><td>0</td><td>-</td>",
        "<td>t/m/v</td><td>2</td><td>90</td>",
        "<td>t/m/w</td><td>0</td><td>9</td>",
        "<td>3.0</td><td>8.0</td><td>2</td><td>0.5</td><td>quarantined: slow</td>",
        "<td>other</td><td>no profile</td>",
    ):
        assert row in text


def test_hostile_names_stay_text() -> None:
    text = text_of(
        {
            "members": [
                member(HOSTILE, role=HOSTILE, device_class=HOSTILE, resizing_to=HOSTILE,
                       loaded=[HOSTILE], quarantine=HOSTILE)
            ],
            "statistics": {"queries": {HOSTILE: [1, 0, 0.1]}},
            "not_served": {HOSTILE: HOSTILE},
            "predictions": [
                {"device_class": HOSTILE, "outcomes": 1, "within_p90_percent": None,
                 "within_p99_percent": 1.0, "median_error_percent": 1.0}
            ],
        }
    )  # fmt: skip
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 10


def test_a_table_is_bounded_and_says_so() -> None:
    text = text_of({"members": [member(f"g{n}", loaded=[]) for n in range(MOST_ROWS + 5)]})
    assert text.count("<td>g") == 2 * MOST_ROWS  # its name and its role
    assert f"The first {MOST_ROWS};" in text


def test_the_gateway_serves_the_page_with_a_policy_that_allows_its_style_alone(
    tmp_path: Path,
) -> None:
    add_variants(tmp_path)
    add_measurements(tmp_path)
    knowledge = read_knowledge(tmp_path, Settings())

    async def test() -> None:
        async with serving(knowledge, tmp_path) as front:
            answer = await front.send("GET", "/console")
            refused = await front.send("POST", "/console")
            unknown = await front.send("GET", "/console/none")
        assert (answer.status, refused.status, unknown.status) == (200, 405, 404)
        style = re.search("<style>(.*)</style>", answer.document, re.DOTALL)
        assert style is not None
        digest = b64encode(sha256(style[1].encode()).digest()).decode()
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", f"style-src 'sha256-{digest}'"} <= set(policy)
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(r"\sstyle=|\son\w+=|<script", answer.document)

    asyncio.run(test())
