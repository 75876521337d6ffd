"""Administrative acts are noted under the user's name, and a user need not have one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelless.controller.history.audit import AUDIT, note_act, user_name


def test_an_act_is_noted_for_a_user_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a number which no file of users knows."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr("getpass.getuser", unknown)
    note_act(tmp_path, "up", user_name(), url="http://127.0.0.1:8080")
    noted = json.loads((tmp_path / AUDIT).read_text())
    assert (noted["act"], noted["user"]) == ("up", "unknown")
