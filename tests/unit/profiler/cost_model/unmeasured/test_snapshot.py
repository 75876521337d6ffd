"""The shipped snapshot: fitted effects of items, which help where nothing else is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.profiling.make_snapshot import fit_groups

from modelless.profiler.cost_model.unmeasured import machine_predictor
from modelless.profiler.cost_model.unmeasured.machine_predictor import MachinePredictor
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.cost_model.unmeasured.snapshot import (
    ANY_KIND,
    rows_of_groups,
    shipped_snapshot,
)

from .test_machine_predictor import ONE, errors, measured, placements_of
from .worlds import multiples

FACTORS = {"there": 1.0, "elsewhere": 4.0}


def test_the_shipped_snapshot_is_of_typical_devices() -> None:
    rows = shipped_snapshot()
    assert len(rows) > 1000
    assert {row.device_kind for row in rows} == {ANY_KIND}
    assert all(row.device.startswith("typical ") for row in rows)
    assert len({(row.device, row.item) for row in rows}) == len(rows)
    assert all(0.0 < row.latency_ms < 1e5 for row in rows)


def test_an_item_of_one_device_stays_out() -> None:
    rows = multiples(FACTORS, models=6)
    (group,) = fit_groups([row for row in rows if (row.device, row.model) != ("there", "net3")])
    assert [item[1] for item in group["items"]] == ["net0", "net1", "net2", "net4", "net5"]
    assert list(fit_groups(rows[:6])) == []


def test_effects_are_those_of_the_items() -> None:
    rows = multiples(FACTORS, models=6)
    found = rows_of_groups(fit_groups(rows))
    apart = np.log(
        [one.latency_ms / row.latency_ms for one, row in zip(found, rows[:6], strict=True)]
    )
    np.testing.assert_allclose(apart, apart[0], atol=0.01)


def test_it_tells_of_models_where_no_table_does(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = multiples(FACTORS, models=16, batch=1)
    subjects = placements_of(make, rows[:16], ONE)
    known = measured(make, list(subjects)[:4], rows[:4], 2.5)
    medians = []
    for snapshot in ([], rows_of_groups(fit_groups(rows))):
        monkeypatch.setattr(
            machine_predictor, "shipped_snapshot", lambda snapshot=snapshot: snapshot
        )
        model = MachinePredictor(shipped_prior(), subjects, (1,))
        found = model.fit(known).predict(model.rows((one, 1) for one in list(subjects)[4:]))
        medians.append(float(np.median(errors(found, rows[4:16], 2.5))))
    assert medians[1] < 0.03
    assert medians[0] > 3.0 * medians[1]
    assert [one.name for one in model.learned_from("cpu-1")] == ["typical cpu device"]
