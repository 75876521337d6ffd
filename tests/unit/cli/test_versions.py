"""``modelless promote``, ``canary``, ``canary status`` and ``rollback``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modelless.common.files import held
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
    ran = run("promote", f"{NAME}@2", "--reason", "it is known")
    assert ran.out == f"{NAME}: version 2 is current; before it was 1\n"
    assert "has no profile on this machine" in ran.err
    assert line(versions) == Line(NAME, 2, (1,))
    ran = run("rollback", NAME, "--json")
    assert ran.document == {"variant": NAME, "current": 1, "before": None}
    ran = run("rollback", NAME)
    assert ran.code == 2
    assert "its version 1 has none" in ran.err


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
    assert line(versions) == Line(NAME, 1)


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
    run("promote", f"{NAME}@2", "--reason", "it is known")
    run("canary", f"{NAME}@1")
    (promoted, begun) = run(
        "history", "--kind", "promoted", "--kind", "canary-begun", "--json"
    ).document["entries"]
    assert promoted["details"]["who"] == begun["details"]["who"] != ""
    told = " ".join(run("history", "--kind", "promoted", "--kind", "canary-begun").out.split())
    who = promoted["details"]["who"]
    assert f"it is known; version 1 to 2; by {who}" in told
    assert f"by command; canary of version 1 on; by {who}" in told


def test_every_version_and_its_state_are_listed(run: Run, versions: Path) -> None:
    def states() -> dict[str, str]:
        found = run("variants", "pixels/mean/small", "--all-versions", "--json").document
        return {row["variant"]: row["state"] for row in found["variants"]}

    assert states() == {f"{NAME}@1": "current", f"{NAME}@2": "registered"}
    assert run("canary", f"{NAME}@2").code == 0
    assert states()[f"{NAME}@2"] == "on trial"
    assert run("promote", f"{NAME}@2").code == 0
    assert states() == {f"{NAME}@1": "earlier", f"{NAME}@2": "current"}
    assert run("retire", NAME).out == f"{NAME}: out of service\n"
    assert set(states().values()) == {"retired"}
    assert run("variants", "pixels", "--all-versions").out.count("retired") == 2
    assert NAME not in run("variants", "pixels").out
    assert run("retire", NAME, "--undo", "--json").document == {"undone": [NAME]}


def test_versions_are_removed_by_command(run: Run, versions: Path) -> None:
    ran = run("remove", f"{NAME}@1")
    assert (ran.code, f"modelless promote {NAME}@2" in ran.err) == (2, True)
    ran = run("remove", f"{NAME}@2", "--reason", "a mistake")
    assert (ran.code, ran.out) == (0, f"removed {NAME}@2\n")
    assert "1 files collected" in ran.err
    ran = run("remove", "pixels/mean", "--json")
    assert (ran.document["removed"], len(ran.document["variants"])) == ("pixels/mean", 3)
    assert run("variants", "pixels").code == 3
    assert run("remove", "pixels").out == "removed pixels\n"
    assert run("remove", "pixels").code == 3
    told = run("history", "--kind", "removed", "--json").document["entries"]
    assert told[0]["details"]["who"] != ""


def test_nothing_is_removed_while_another_process_makes_variants(run: Run, versions: Path) -> None:
    with held(versions / "making" / "other--net.lock", "a test"):
        ran = run("remove", f"{NAME}@2")
    assert (ran.code, "It makes variants, and may need the same files" in ran.err) == (7, True)
    assert run("remove", f"{NAME}@2").code == 0


def test_registering_again_says_what_differs(run: Run, versions: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(tiny_bytes(9.0))
    words = ("register", "net.onnx", "--task", "pixels", "--model", MODEL.name, "--name", "small")
    stated = ("--provenance", "published", "--accuracy-source", "a page")
    ran = run(*words, "--precision", "fp32", "--accuracy", 71, *stated)
    assert ran.code == 0, ran.err
    assert f"these very bytes are {NAME}@2 already: nothing has changed" in ran.err
    ran = run(*words, "--precision", "int8", "--resolution", 8, "--accuracy", 72, *stated)
    assert ran.code == 2
    for said in ("'precision': 'int8'", "'resolution_px': 8", "'accuracy.percent': 72.0", "71.0"):
        assert said in ran.err
    (tmp_path / "net.onnx").write_bytes(tiny_bytes(10.0))
    ran = run(*words, "--precision", "fp32", "--accuracy", 71, *stated)
    assert f"{NAME}@1 stays the current version" in ran.err
    assert f"modelless promote {NAME}@3" in ran.err
