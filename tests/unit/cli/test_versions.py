"""``modelless promote``, ``canary``, ``canary status`` and ``rollback``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modelless.controller.api.v2_reply import render_json
from modelless.variants.registry.promotion import read_lines
from modelless.variants.registry.registry import open_registry
from modelless.variants.registry.versions import Line
from modelless.variants.vocabulary import Accuracy, Engine, Precision

from .conftest import Run
from .servers import STATUS, running
from .tiny import MODEL, PUBLISHED, TASK, add_variants, tiny_bytes

NAME = "pixels/mean/small"
TRIAL: dict[str, Any] = {
    "variant": f"{NAME}@2",
    "against": f"{NAME}@1",
    "decision": "go-on",
    "reason": "not decided yet: accuracy",
    "age_s": 12.0,
    "share": 0.05,
    "queries": {"tried": 300, "standing": 5000},
    "slow_above_ms": 12.3,
    "guards": [
        {
            "guard": "accuracy",
            "tried": {"count": 300, "bad": 40},
            "standing": {"count": 5000, "bad": 500},
            "tolerance_percent": 2.0,
            "worse_percent": 0.0,
            "fine_percent": 35.0,
        }
    ],
}


@pytest.fixture
def versions(home: Path) -> Path:
    """A home with two versions of the smallest variant."""
    add_variants(home)
    with closing(open_registry(home)) as registry:
        registry.register_variant(
            task=TASK.name, model=MODEL.name, name="small", precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU, accuracy=Accuracy(71.0, "top-1", PUBLISHED, "a page"),
            artifact=tiny_bytes(9.0),
        )  # fmt: skip
    return home


def line(home: Path) -> Line:
    with closing(open_registry(home)) as registry:
        return read_lines(registry.store).by_name[NAME]


def test_promote_and_rollback(run: Run, versions: Path) -> None:
    ran = run("promote", f"{NAME}@1", "--reason", "it is known")
    assert ran.out == f"{NAME}: version 1 is current; before it was 2\n"
    assert "has no profile on this machine" in ran.err
    assert line(versions) == Line(NAME, 1, (2,))
    ran = run("rollback", NAME, "--json")
    assert ran.document == {"variant": NAME, "current": 2, "before": None}
    ran = run("rollback", NAME)
    assert ran.code == 2
    assert "its version 2 has none" in ran.err


def test_a_canary_by_command(run: Run, versions: Path) -> None:
    ran = run(
        "canary", f"{NAME}@2", "--share", "20%", "--against", "@1", "--alpha", "1%",
        "--min-labels", "50", "--at-most", "1h", "--accuracy-tolerance", "3%",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.out == f"{NAME}@2 serves 20 % of the queries of {NAME}@1\n"
    trial = line(versions).trial
    assert trial is not None
    assert (trial.against, trial.share) == (1, 0.2)
    rules = trial.rules
    assert (rules.alpha, rules.accuracy_tolerance) == (0.01, 0.03)
    assert (rules.min_labels, rules.max_s) == (50, 3600.0)
    assert run("rollback", NAME).out == f"{NAME}: version 1 is current\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--share", "0%"), "--share: got '0%'"),
        (("--share", "0.2"), "--share: got '0.2'; allowed: per cent with its sign: 0.2%, or 20%"),
        (("--share", "100%"), "share: got 1.0"),
        (("--at-most", "soon"), "--at-most: got 'soon'"),
        (("--against", "two"), "version of"),
        (("--min-queries", "-1"), "min_queries: got -1"),
        (("--alpha", "60%"), "alpha: got 0.6; allowed: up to 0.5"),
    ],
)
def test_canaries_that_make_no_sense(
    run: Run, versions: Path, words: tuple[str, ...], says: str
) -> None:
    ran = run("canary", f"{NAME}@2", *words)
    assert ran.code == 2
    assert says in ran.err
    assert line(versions) == Line(NAME, 2, (1,))


def test_status_of_canaries(run: Run) -> None:
    with running() as server:
        server.answers["/modelless/status"] = render_json({**STATUS, "trials": [TRIAL]})
        ran = run("canary", "status", "--url", server.url)
        assert "300 queries on its share, and 5000 on the rest" in ran.out
        assert "35 %" in ran.out
        assert "not decided yet: accuracy" in ran.out
        assert run("canary", "status", "--url", server.url, "--json").document == {
            "trials": [TRIAL]
        }
        server.answers["/modelless/status"] = render_json(STATUS)
        assert run("canary", "status", "--url", server.url).out == "no canary is on\n"


def test_status_where_nothing_is_up_is_what_the_store_knows(run: Run, versions: Path) -> None:
    assert run("canary", "status").out == "no canary is on\n"
    assert run("canary", f"{NAME}@2", "--share", "20%").code == 0
    ran = run("canary", "status", "--json")
    assert ran.code == 0, ran.err
    (trial,) = ran.document["trials"]
    assert (trial["variant"], trial["against"], trial["share"]) == (f"{NAME}@2", f"{NAME}@1", 0.2)
    assert trial.keys() == TRIAL.keys()
    assert "nothing is up" in ran.err
    assert f"{NAME}@2 against {NAME}@1" in run("canary", "status").out


def test_a_second_canary_of_a_task_is_refused_and_the_first_is_named(
    run: Run, versions: Path
) -> None:
    assert run("canary", f"{NAME}@2").code == 0
    ran = run("canary", "pixels/mean/medium@1", "--json")
    assert ran.code == ran.document["exit_code"] == 2
    assert f"one trial a task at a time; {NAME}@2 is on trial" in ran.err
    assert f"modelless rollback {NAME}" in ran.err


def test_the_history_says_who_changed_what_and_why(run: Run, versions: Path) -> None:
    run("promote", f"{NAME}@1", "--reason", "it is known")
    run("canary", f"{NAME}@2")
    (promoted, begun) = run(
        "history", "--kind", "promoted", "--kind", "canary-begun", "--json"
    ).document["entries"]
    assert promoted["details"]["who"] == begun["details"]["who"] != ""
    told = " ".join(run("history", "--kind", "promoted", "--kind", "canary-begun").out.split())
    who = promoted["details"]["who"]
    assert f"it is known; version 2 to 1; by {who}" in told
    assert f"by command; canary of version 2 on; by {who}" in told
