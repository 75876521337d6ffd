"""The tables that come from the code are as the code is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The script ``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_up_to_date(generate: ModuleType) -> None:
    assert sorted(generate.stale()) == [], "run 'make docs'"


def test_every_setting_and_policy_says_what_it_means(generate: ModuleType) -> None:
    tables = generate.settings_tables() + generate.policy_tables() + generate.command_table()
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if row.endswith("|  |") or ": |" in row or ":<br>" in row] == []


def test_a_page_without_its_block_is_refused(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match="no block"):
        generate.rewritten("# A page", "settings", "...")


def test_every_exit_code_of_an_error_is_in_the_table(generate: ModuleType) -> None:
    rows = generate.exit_code_table().splitlines()[2:]
    assert [int(row.split("|")[1]) for row in rows] == [*range(2, 10), 11]
    assert "No key" in rows[-1]
