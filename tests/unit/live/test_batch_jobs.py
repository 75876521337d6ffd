"""Offline runs over HTTP: where they may read and write, whose they are, and how they end."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError, OverloadedError
from modelless.controller.api.batches import parse_batch
from modelless.controller.api.keys import KeyRing, make_key
from modelless.controller.api.request_limits import Limits
from modelless.controller.cli.arguments import seconds_of
from modelless.controller.config import BatchSettings, Settings
from modelless.controller.live.control import batch_jobs
from modelless.controller.live.control.batch_jobs import BatchJobs
from modelless.controller.live.knowledge import Knowledge, read_knowledge

from .front import serving

RUN = """
import json, os, pathlib, sys
*_, input, output = sys.argv
out = pathlib.Path(output)
out.mkdir(parents=True, exist_ok=True)
(out / "_run.json").write_text(json.dumps({"rows": 7, "rows_per_file": 4}))
(out / "part-00000.parquet").touch()
said = pathlib.Path(input).read_text()
if said == "wait":
    sys.stdin = open(0); __import__("signal").pause()
if said == "fail":
    print(json.dumps({"error": "input: no such column", "exit_code": 2})); sys.exit(2)
(out / "part-00001.parquet").touch()
told = {"argv": sys.argv[1:-2], "key": os.environ.get("MODELLESS_KEY")}
(out / "told.json").write_text(json.dumps(told))
print(json.dumps({"served_by": {"a/b/c@1": 7}}))
"""


def asked(**more: Any) -> dict[str, Any]:
    body = {"input": "in", "output": "out", "task": "pixels", **more}
    return parse_batch(json.dumps(body).encode(), Limits()).model_dump()


def test_a_run_has_the_deadlines_of_the_command() -> None:
    for deadline_s in (0.0, 0.00001, 604_801, -1):
        with pytest.raises(InvalidInputError, match="deadline_s"):
            asked(deadline_s=deadline_s)
    for deadline_s in (0.001, 0.25, 604_800):
        text = f"{asked(deadline_s=deadline_s)['deadline_s']}s"
        assert seconds_of("deadline", text) == deadline_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rows"
    (made / "shop").mkdir(parents=True)
    (made / "in").write_text("go")
    (made / "shop" / "in").write_text("go")
    return made


@pytest.fixture
def jobs(tmp_path: Path, folder: Path) -> Iterator[BatchJobs]:
    settings = BatchSettings(folder=str(folder), max_running=2)
    made = BatchJobs(tmp_path / "home", settings, (sys.executable, "-c", RUN))
    yield made
    made.close()
    ended(made)


def ended(jobs: BatchJobs) -> None:
    for job in jobs._jobs.values():
        job.process.wait(30.0)


def test_a_run_is_the_command_with_the_key_and_the_limits(jobs: BatchJobs, folder: Path) -> None:
    told = jobs.begin(asked(min_accuracy=90.0, deadline_s=7200.0, top=3), "shop", "a secret")
    assert told["rows_done"] in (0, 4, 7)
    ended(jobs)
    done = jobs.state(told["id"], "shop")
    assert (done["state"], done["rows"], done["rows_done"]) == ("done", 7, 7)
    assert (done["error"], done["served_by"]) == (None, {"a/b/c@1": 7})
    ran = json.loads((folder / "shop" / "out" / "told.json").read_text())
    assert ran["key"] == "a secret"
    options = ["--task=pixels", "--min-accuracy=90.0", "--deadline=7200.0s", "--top=3"]
    assert ran["argv"][1:] == ["batch", *options, "--rows-per-file=5000", "--json", "--"]
    (log,) = (jobs._home / "run" / "batches").iterdir()
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


def test_one_that_fails_says_why_and_the_same_request_goes_on(
    jobs: BatchJobs, folder: Path
) -> None:
    (folder / "in").write_text("fail")
    first = jobs.begin(asked(), "", "")
    ended(jobs)
    failed = jobs.state(first["id"], "")
    assert (failed["state"], failed["rows_done"]) == ("failed", 4)
    assert failed["error"] == "input: no such column"
    (folder / "in").write_text("go")
    assert jobs.begin(asked(), "", "")["id"] == first["id"]
    ended(jobs)
    assert jobs.state(first["id"], "")["state"] == "done"


def test_few_run_at_a_time_one_to_an_output_and_they_can_be_cancelled(
    jobs: BatchJobs, folder: Path
) -> None:
    (folder / "in").write_text("wait")
    first = jobs.begin(asked(), "", "")
    assert jobs.begin(asked(), "", "")["id"] == first["id"]
    with pytest.raises(InvalidInputError, match="another run writes there"):
        jobs.begin(asked(top=1), "", "")
    jobs.begin(asked(output="other"), "", "")
    with pytest.raises(OverloadedError, match="2 offline runs"):
        jobs.begin(asked(output="third"), "", "")
    assert jobs.cancel(first["id"], "")["state"] == "cancelled"
    jobs.begin(asked(output="third"), "", "")


@pytest.mark.parametrize("outputs", [("a", "b", "c", "d"), ("a", "a", "a", "a")])
def test_what_begins_at_the_same_time_is_counted(
    jobs: BatchJobs, folder: Path, monkeypatch: pytest.MonkeyPatch, outputs: tuple[str, ...]
) -> None:
    (folder / "in").write_text("wait")
    all_there = threading.Barrier(len(outputs))
    began: list[Path] = []

    def make_folder(path: Path) -> None:
        with suppress(threading.BrokenBarrierError):  # they come one after the other
            all_there.wait(0.2)
        began.append(path)
        path.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(batch_jobs, "make_private_folder", make_folder)

    def begin(output: str) -> str:
        try:
            return str(jobs.begin(asked(output=output), "", "")["state"])
        except OverloadedError:
            return "refused"

    with ThreadPoolExecutor(len(outputs)) as threads:
        told = sorted(threads.map(begin, outputs))
    if len(set(outputs)) == 1:
        assert told == ["running"] * 4
    else:
        assert told == ["refused", "refused", "running", "running"]
    assert len(began) == len(jobs._jobs) == min(2, len(set(outputs)))


@pytest.mark.parametrize("name", ["../in", "/etc/passwd", "shop/../../x", ".", "link/x", "a\0b"])
@pytest.mark.parametrize("field", ["input", "output"])
def test_no_path_leads_out_of_the_folder(
    jobs: BatchJobs, folder: Path, field: str, name: str
) -> None:
    (folder / "link").symlink_to("/etc")
    with pytest.raises(InvalidInputError, match=f"{field}: got"):
        jobs.begin(asked(**{field: name}), "", "")
    assert not jobs._jobs


def test_a_tenant_neither_sees_nor_reads_what_is_anothers(jobs: BatchJobs) -> None:
    told = jobs.begin(asked(), "shop", "")
    for act in (jobs.state, jobs.cancel):
        with pytest.raises(NotFoundError):
            act(told["id"], "bank")
    with pytest.raises(InvalidInputError, match="input: got"):
        jobs.begin(asked(input="../shop/in"), "bank", "")


def test_by_default_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"batch\.folder"):
        BatchJobs(tmp_path, BatchSettings()).begin(asked(), "", "")


async def _ask(knowledge: Knowledge, folder: Path) -> None:
    key, secret = make_key("shop", ("infer",), 0, 0.0, None)
    headers = {"authorization": f"Bearer {secret}"}
    body = json.dumps({"input": "in", "output": "out", "task": "pixels"}).encode()
    async with serving(knowledge, folder) as front:
        assert (await front.send("POST", "/modelless/batches", body)).status == 200
        assert front.batches[-1] == ("begin", asked(), "", "")
        front.ring = KeyRing([key])
        assert (await front.send("POST", "/modelless/batches", body)).status == 401
        assert (await front.send("POST", "/modelless/batches", body, headers)).status == 200
        assert front.batches[-1] == ("begin", asked(), "shop", secret)
        private = body.replace(b"pixels", b"none")
        assert (await front.send("POST", "/modelless/batches", private, headers)).status == 404
        await front.send("GET", "/modelless/batches/5e0c", b"", headers)
        await front.send("POST", "/modelless/batches/5e0c/cancel", b"", headers)
        assert front.batches[2:] == [("state", "5e0c", "shop"), ("cancel", "5e0c", "shop")]
        wrong = await front.send("POST", "/modelless/batches", b'{"input": 1}', headers)
        assert wrong.status == 400
        assert "output" in wrong.document["error"]
        for path in ("/modelless/batches/a/b", "/modelless/batches/a/cancel/b", "/modelless/x/y"):
            assert (await front.send("GET", path, b"", headers)).status == 404


def test_requests_reach_the_control_loop_with_tenant_and_key(
    knowledge: Knowledge, tmp_path: Path
) -> None:
    asyncio.run(_ask(knowledge, tmp_path))


@pytest.fixture
def knowledge(home: Path) -> Knowledge:
    return read_knowledge(home, Settings())
