"""A settings file that cannot work is refused before Ray is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError
from modelless.controller.config import parse_settings
from modelless.controller.live.cluster.cluster import Cluster
from tests.unit.cli.tiny import add_measurements, add_variants


@pytest.mark.parametrize(
    ("document", "error", "says"),
    [
        ({"policies": {"selection": "nosuch"}}, NotFoundError, "'nosuch' does not exist"),
        ({"policies": {"eviction": "belady"}}, InvalidInputError, "without knowing the future"),
        ({"policies": {"scaling": {"policy": "fixed", "x": 1}}}, InvalidInputError, "fixed.x"),
        ({"policies": {"placement": "lru"}}, InvalidInputError, "derived from EvictionPolicy"),
        ({"policies": {"forecast": {"policy": "ewma", "half_life_s": 0}}}, InvalidInputError, "0"),
        (
            {"policies": {"forecast": {"policy": "ewma", "half_life_s": "long"}}},
            InvalidInputError,
            "ewma.half_life_s: got 'long'; allowed: a valid number",
        ),
        ({"residency": {"pinned": ["pixels/none"]}}, NotFoundError, "called 'none'"),
        ({"residency": {"preload": ["pixls"]}}, NotFoundError, "Did you mean pixels?"),
    ],
)
def test_it_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    document: dict[str, Any],
    error: type[ModellessError],
    says: str,
) -> None:
    monkeypatch.setattr(Cluster, "_start", lambda cluster: pytest.fail("it began to start"))
    add_variants(tmp_path)
    add_measurements(tmp_path)
    with pytest.raises(error, match=says), Cluster(tmp_path, parse_settings(document)):
        pass
    assert not (tmp_path / "run").exists()
