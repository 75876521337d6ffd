"""What ``evaluate_cost_model`` says of shots that it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.usecases.measuring.cost_model import evaluate_cost_model
from modelless.controller.usecases.progress import Note, Step
from modelless.profiler.measure.table import write_table
from tests.unit.profiler.cost_model.unmeasured.worlds import row


def test_shots_that_leave_no_item_to_judge_are_left_out_and_told(tmp_path: Path) -> None:
    table, told = tmp_path / "table.csv", list[Note | Step]()
    one = row(device="a", model="net1", gmacs=1.0)
    rows = [replace(each, batch=batch) for each in (one, replace(one, model="net2"))
            for batch in (1, 2, 4)]  # fmt: skip
    write_table(table, rows)
    scores, _ = evaluate_cost_model([table], shots=(3, 4), seeds=1, on_progress=told.append)
    assert {each.shots for each in scores} == {3}
    said = [event.message for event in told if isinstance(event, Note)]
    left_out = "note: a has 6 rows: left out: 4 shots, as 3 at most leave an item to judge"
    assert left_out in said
    with pytest.raises(InvalidInputError, match="3 at most here"):
        evaluate_cost_model([table], shots=(4,), seeds=1)
