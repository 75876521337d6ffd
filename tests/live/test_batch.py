"""A batch run that is killed goes on beside online queries, and has each row once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import modelless
from modelless.common.errors import InvalidInputError

from .clients import Clients, wait_until
from .running import Running

ROWS = 4000


def test_a_run_that_was_killed_goes_on(shared: Running, tmp_path: Path) -> None:
    items = np.random.default_rng(0).integers(0, 256, (ROWS, 28, 28), np.uint8)
    np.save(tmp_path / "items.npy", items)
    output = tmp_path / "out"
    asked = {"task": "fashion-mnist", "min_accuracy": 90.0, "rows_per_file": 100}
    code = (
        f"import modelless; modelless.batch({str(tmp_path / 'items.npy')!r}, {str(output)!r}, "
        f"url={shared.url!r}, most_in_flight=1, **{asked!r})"
    )
    with Clients(shared, 1) as clients:
        with subprocess.Popen([sys.executable, "-P", "-c", code]) as run:
            wait_until(lambda: len(list(output.glob("part-*"))) >= 2, 30.0)
            run.kill()
        there = {path: path.stat().st_mtime_ns for path in output.glob("part-*")}
        assert len(there) < ROWS // 100, "it was not killed half way"
        done = modelless.batch(tmp_path / "items.npy", output, url=shared.url, **asked)
    assert set(clients.outcomes) == {"200"}
    assert done.rows_before == 100 * len(there)
    assert all(path.stat().st_mtime_ns == written for path, written in there.items())
    found = pa.concat_tables(parquet.read_table(path) for path in sorted(output.glob("part-*")))
    assert found["row"].to_pylist() == list(range(ROWS))
    with modelless.Client(shared.url) as client:
        for row in (0, 99, 100, ROWS - 1):  # as the same variant answers the row alone
            name = found["variant"][row].as_py()
            reply = client.infer(name, {"image": items[row : row + 1]}).raise_for_status()
            told = np.array(found["probabilities"][row].as_py())
            np.testing.assert_allclose(told, reply.tensors["probabilities"][0], atol=1e-3)


def test_a_run_that_was_begun_over_http_goes_on_after_it_was_cancelled(shared: Running) -> None:
    folder = shared.home / "rows"
    folder.mkdir(exist_ok=True)
    items = np.random.default_rng(1).integers(0, 256, (ROWS, 28, 28), np.uint8)
    np.save(folder / "items.npy", items)
    asked = {"input": "items.npy", "output": "out", "task": "fashion-mnist", "rows_per_file": 100}
    with modelless.Client(shared.url) as client:
        begun = client.get("/modelless/batches", asked)
        path = f"/modelless/batches/{begun['id']}"
        wait_until(lambda: client.get(path)["rows_done"] >= 100, 60.0)
        cancelled = client.get(f"{path}/cancel", {})
        assert (cancelled["state"], cancelled["rows"]) == ("cancelled", ROWS)
        client.get("/modelless/batches", asked)
        wait_until(lambda: client.get(path)["state"] != "running", 120.0)
        done = client.get(path)
        assert (done["state"], done["rows_done"], done["error"]) == ("done", ROWS, None)
        with pytest.raises(InvalidInputError, match="input: got"):
            client.get("/modelless/batches", asked | {"input": "../store.db"})
    found = pa.concat_tables(parquet.read_table(path) for path in sorted(folder.glob("out/part-*")))
    assert found["row"].to_pylist() == list(range(ROWS))
