"""The notebook: it runs from top to bottom in a fresh process, is short, and holds no outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"

# Runs the cells one after the other, shows the value of each one's last expression, and at the end
# prints what the test looks at.
RUNNER = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(sys.stdin):
    tree = ast.parse(cell)
    last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "cell", "exec"), names)
    print(eval(compile(last, "cell", "eval"), names), file=sys.stderr)
print(json.dumps({
    "measured": len(names["profiles"].measurements),
    "chosen": names["selection"].chosen.variant_id,
    "rows": names["comparison"].rows(),
}))
"""


def cells(kind: str) -> list[dict[str, Any]]:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == kind]


def test_it_holds_no_outputs_and_is_short() -> None:
    code = cells("code")
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum(bool(line.strip()) for cell in code for line in cell["source"]) <= 16


def test_its_links_lead_somewhere() -> None:
    text = "".join(line for cell in cells("markdown") for line in cell["source"])
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []


def test_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'modelless[cpu]'")
    environment = {name: v for name, v in os.environ.items() if name != "MODELLESS_STORE_URL"}
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(["".join(cell["source"]) for cell in cells("code")]),
        env={**environment, "MODELLESS_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["measured"] >= 10
    assert found["chosen"].startswith("fashion-mnist/")
    assert {row["contender"] for row in found["rows"]} == {"modelless", "cheapest-feasible"}
    assert all(row["failed"] == 0 and row["mean_accuracy"] > 80.0 for row in found["rows"])
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
