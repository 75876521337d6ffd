"""Mistakes in a world are told with their place, before or while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.run import simulate
from modelless.controller.sim.worlds.world import load_world, parse_world

from .worlds import EDGE, document, with_parts, world

LADDER = {"kind": "ladder", "count": 2}
POINT = {"device": "cpu-1", "p50_ms": 5}
HEADING = (
    "source,task,model,family,device,device_kind,engine,precision,resolution_px,batch,concurrency,"
    "params_m,gmacs,mactivations_m,layers,latency_ms,latency_p99_ms,throughput_per_s,memory_mib,"
    "accuracy,accuracy_metric\n"
)


def row(model: str = "m", device: str = "cpu-1", batch: int = 1, accuracy: str = "70") -> str:
    """A line of a table of profiles."""
    return f"x,t,{model},f,{device},cpu,e,fp32,224,{batch},,5,,,,{10 * batch},,,,{accuracy},top1\n"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"speed": 3}, r"speed: got 3; there is no such key"),
    "unknown field, deep": (
        with_parts(devices={"colour": "red"}),
        r"devices\.0\.colour: got 'red'; there is no such key",
    ),
    "no devices": ({"devices": []}, r"devices: got \[\]"),
    "zero devices": ({"devices": [{"name": "a", "count": 0}]}, "every count is 0"),
    "two devices of a name": ({"devices": [{"name": "a"}, {"name": "a"}]}, "'a' is there 2 times"),
    "negative price": (
        with_parts(devices={"price_usd_per_hour": -1}),
        r"devices\.0\.price_usd_per_hour: got -1",
    ),
    "fewer workers than scaling may leave": (
        with_parts(devices={"min_workers": 9, "max_workers": 9}),
        r"devices\.0: allowed: min_workers <= count <= max_workers",
    ),
    "bounds of workers": (
        with_parts(devices={"max_workers": 2}),
        r"devices\.0: allowed: min_workers <= count <= max_workers",
    ),
    "a task whose name cannot be one": (
        {"tasks": [{"name": "my task", "variants": LADDER}]},
        r"tasks\.0\.name: got 'my task'; allowed: 1 to 64",
    ),
    "a fault after all is over": (
        {"faults": [{"kind": "worker-dies", "worker": "gpu/0", "at_s": 10}]},
        r"^world: faults\.0\.at_s: got 10; allowed: less than duration_s \(10\)$",
    ),
    "loads of nobody that fail": (
        {"faults": [{"kind": "load-fails", "variant": "x/*", "at_s": 1, "until_s": 2}]},
        r"faults\.0\.variant: got 'x/\*'; allowed: of the variants, such as vision/rung-00",
    ),
    "a stream that begins too late": (
        with_parts(queries={"start_s": 11}),
        r"queries\.0\.start_s: got 11; allowed: what begins before duration_s \(10\)",
    ),
    "a crowd that comes too late": (
        with_parts(
            queries={
                "arrivals": {"kind": "flash-crowd", "base_per_s": 1, "peak_per_s": 2, "at_s": 600},
                "time_scale": 60,
            }
        ),
        r"queries\.0\.arrivals\.at_s: got 600",
    ),
    "a share where per cent are meant": (
        with_parts(queries={"slos": [{"min_accuracy": 0.75}]}),
        r"queries\.0\.slos\.0\.min_accuracy: got 0\.75; allowed: per cent, as in 75",
    ),
    "accuracies that are shares": (
        {"tasks": [{"name": "vision", "variants": {**LADDER, "accuracy": [0.6, 0.8]}}]},
        r"tasks\.0\.variants: accuracy: got 0\.8; allowed: per cent",
    ),
    "more workers than anybody has": (
        {"devices": [{"name": "a", "count": 60_000}, {"name": "b", "max_workers": 10**12}]},
        r"devices: got 1,000,000,060,000 workers in all .*; allowed: at most 100,000",
    ),
    "more tasks than anybody has": (
        {"tasks": [{"name": f"t{n}", "copies": 10_000, "variants": LADDER} for n in range(11)]},
        r"tasks: got 110,000 tasks in all \(copies\); allowed: at most 100,000",
    ),
    "more variants than fit into memory": (
        {
            "tasks": [{"name": "vision", "copies": 10_000, "variants": {**LADDER, "count": 2000}}],
            "queries": [{"tasks": ["*"], "arrivals": {"kind": "poisson", "rate_per_s": 1}}],
        },
        "got '200,000,000 measured points'; allowed: at most 1,000,000",
    ),
    "a queue larger than memory": (
        {"limits": {"max_queued": 10**12}},
        r"limits\.max_queued: got 1000000000000; allowed: 1 to 1000000",
    ),
    "an absurd rate": (
        {**with_parts(queries={"rate_scale": 1e5}), "load": 1e6},
        r"queries\.0\.arrivals: rate, with rate_scale and load: got '150 x 1e\+11 a second'",
    ),
    "a name of two lines": ({"name": "a\nb"}, "name: got .*; allowed: 1 to 100 printable"),
    "two ways between the same sites": (
        {"network": {"delays": [{"between": ["core", "b"], "one_way_ms": 1}] * 2}},
        r"network\.delays: b and core are there 2 times; allowed: once",
    ),
    "no tasks": ({"tasks": []}, r"tasks: got \[\]"),
    "unknown kind of variants": (
        {"tasks": [{"name": "vision", "variants": {"kind": "magic"}}]},
        r"tasks\.0\.variants",
    ),
    "unknown task": (with_parts(queries={"tasks": ["hearing"]}), r"queries\.0\.tasks: got 'hear"),
    "negative rate": (
        with_parts(queries={"arrivals": {"kind": "poisson", "rate_per_s": -5}}),
        r"queries\.0\.arrivals\.poisson\.rate_per_s: got -5",
    ),
    "rate that is no number": (
        with_parts(queries={"arrivals": {"kind": "poisson", "rate_per_s": float("nan")}}),
        r"queries\.0\.arrivals\.poisson\.rate_per_s: got nan",
    ),
    "for ever": ({"duration_s": None}, r"duration_s: missing; queries\.0\.arrivals \(poisson\)"),
    "too many items": (
        with_parts(queries={"slos": [{"items": 9}]}),
        r"queries\.0\.slos\.0\.items: got 9; allowed: 1 to 8",
    ),
    "accuracy beyond all": (
        with_parts(queries={"slos": [{"min_accuracy": 101}]}),
        r"queries\.0\.slos\.0\.min_accuracy: got 101",
    ),
    "a site without a way": (
        with_parts(queries={"site": "moon"}),
        r"network\.delays: none between 'core' \(the gateway\) and 'moon'",
    ),
    "a fault of nobody": (
        {"faults": [{"kind": "worker-dies", "worker": "tpu/0", "at_s": 1}]},
        r"faults\.0\.worker: got 'tpu/0'",
    ),
    "a fault that ends before it begins": (
        {"faults": [{"kind": "worker-dies", "worker": "gpu/0", "at_s": 5, "back_s": 2}]},
        r"faults\.0: ends at 2 s",
    ),
    "the gateway cut off": (
        {**EDGE, "faults": [{"kind": "site-cut", "site": "edge", "at_s": 1, "until_s": 2}]},
        r"faults\.0\.site: got 'edge'; allowed: core, home",
    ),
    "a policy that is none": ({"policies": {"selection": 3}}, r"policies\.selection"),
    "unknown device in a ladder": (
        {"tasks": [{"name": "vision", "variants": {**LADDER, "speeds": {"tpu": 1}}}]},
        r"tasks\.0\.variants: speeds: got 'tpu'; allowed: cpu-1, gpu",
    ),
    "a device without a profile": (
        {"tasks": [{"name": "vision", "variants": {**LADDER, "speeds": {"cpu-1": 1}}}]},
        r"devices\.1: no variant of any task has a profile for 'gpu'",
    ),
    "a task that fits nowhere": (
        {"tasks": [{"name": "vision", "variants": {**LADDER, "memory_mib": [5000, 9000]}}]},
        r"tasks\.0: no variant of 'vision' fits into the memory",
    ),
    "a true ratio for a device without a point": (
        {
            "tasks": [
                {
                    "name": "vision",
                    "variants": {
                        "kind": "written",
                        "variants": [
                            {
                                "model": "m",
                                "accuracy": 70,
                                "points": [POINT],
                                "true_ratios": {"gpu": 1.2},
                            }
                        ],
                    },
                }
            ]
        },
        r"variants\.0\.true_ratios: got 'gpu'; allowed: device classes of its points",
    ),
    "a variant written twice": (
        {
            "tasks": [
                {
                    "name": "vision",
                    "variants": {
                        "kind": "written",
                        "variants": [{"model": "m", "accuracy": 7, "points": [POINT]}] * 2,
                    },
                }
            ]
        },
        r"tasks\.0\.variants: variants: got 'vision/m/v@1'",
    ),
    "a point measured twice": (
        {
            "tasks": [
                {
                    "name": "vision",
                    "variants": {
                        "kind": "written",
                        "variants": [{"model": "m", "accuracy": 7, "points": [POINT, POINT]}],
                    },
                }
            ]
        },
        r"variants\.0\.points\.1: got 'batch 1 on cpu-1 again'; allowed: each batch once",
    ),
    "quantiles out of order": (
        {
            "tasks": [
                {
                    "name": "vision",
                    "variants": {
                        "kind": "written",
                        "variants": [
                            {"model": "m", "accuracy": 7, "points": [{**POINT, "p90_ms": 4}]}
                        ],
                    },
                }
            ]
        },
        r"tasks\.0\.variants: variants\.0\.points\.0: .*ascending",
    ),
    "a model whose name cannot be one": (
        {
            "tasks": [
                {
                    "name": "vision",
                    "variants": {
                        "kind": "written",
                        "variants": [{"model": "M M", "accuracy": 7, "points": [POINT]}],
                    },
                }
            ]
        },
        r"tasks\.0\.variants: .*'M M'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_names_the_place(name: str, tmp_path: Path) -> None:
    changes, message = WRONG[name]
    parts = changes if "devices" in changes and "tasks" in changes else document(**changes)
    with pytest.raises(InvalidInputError, match=message):
        simulate(parse_world({**document(), **parts}, tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: [", "not YAML"),
        ("[]", "world"),
        ("", "world"),
        ("\xff", "name|world"),
    ],
)
def test_files_that_are_no_world(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=message):
        load_world(path)
    with pytest.raises(InvalidInputError, match=r"missing\.yaml"):
        load_world(tmp_path / "missing.yaml")


TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such device": (row(device="tpu"), {}, r"no row fits.*'tpu'"),
    "no such model": (row(), {"models": ["resnet*"]}, "no row fits; 0 rows"),
    "no accuracy": (row(accuracy=""), {}, r"accuracy of 'm': got None.*Set 'accuracy'"),
    "an accuracy that is no percentage": (row(accuracy="-3"), {}, r"accuracy of 'm': got -3"),
    "only large batches": (row(batch=64), {}, r"batches of vision/m/fp32-224-e@1.*launch_ms"),
    "not a table": ("what,ever\n1,2\n", {}, "columns"),
    "a broken number": (row().replace(",10,", ",ten,"), {}, r"line 2: latency_ms: got 'ten'"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit(name: str, tmp_path: Path) -> None:
    text, settings, message = TABLES[name]
    (tmp_path / "p.csv").write_text(
        text if text.startswith("what") else HEADING + text, encoding="utf-8"
    )
    tasks = [{"name": "vision", "variants": {"kind": "table", "path": "p.csv", **settings}}]
    file = world(tmp_path, devices=[{"name": "cpu-1", "count": 1}], tasks=tasks)
    with pytest.raises(InvalidInputError, match=rf"tasks\.0\.variants: .*{message}"):
        simulate(file)


def test_a_table_serves(tmp_path: Path) -> None:
    rows = [row(f"Model {n}/x", accuracy=str(60 + n), batch=b) for n in range(9) for b in (1, 64)]
    (tmp_path / "p.csv").write_text(HEADING + "".join(rows), encoding="utf-8")
    variants = {"kind": "table", "path": "p.csv", "most": 3, "launch_ms": 2}
    file = world(
        tmp_path,
        duration_s=2,
        devices=[{"name": "cheap", "count": 4, "profiled_as": "cpu-1"}],
        tasks=[{"name": "vision", "variants": variants}],
    )
    figures = simulate(file).figures()
    assert figures["good"] > 100
    assert 60.0 <= figures["mean_accuracy"] <= 68.0


TRACES: dict[str, tuple[str, str, str]] = {
    "empty": ("trace", "arrival_s\n", "no rows"),
    "nothing at all": ("trace", "", "columns"),
    "unsorted": ("trace", "arrival_s\n1\n0.5\n", r"line 3: arrival_s: got '0.5'.*Sort"),
    "negative": ("trace", "arrival_s\n-1\n", r"line 2: arrival_s: got -1"),
    "no number": ("trace", "arrival_s\nsoon\n", r"line 2: arrival_s: got 'soon'"),
    "infinite": ("trace", "arrival_s\ninf\n", r"line 2: arrival_s: got inf"),
    "a task of nobody": (
        "trace",
        "arrival_s,task\n0,hearing\n",
        r"task at arrival_s 0: got 'hearing'",
    ),
    "a task's items": ("trace", "arrival_s,items\n0.5,9\n", r"items at arrival_s 0\.5: got 9"),
    "a column twice": ("trace", "arrival_s,arrival_s\n0,1\n", "each column once"),
    "fields missing": ("trace", "arrival_s,task\n0\n", r"line 2: .*2 fields"),
    "rates without rows": ("rates", "start_s,stream,rate_per_s\n", "no rows"),
    "a negative rate": ("rates", "start_s,stream,rate_per_s\n0,a,-1\n", r"line 2: rate_per_s"),
    "rates unsorted": (
        "rates",
        "start_s,stream,rate_per_s\n5,a,1\n0,a,1\n",
        r"line 3: start_s: got '0'",
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_traces_that_do_not_fit(name: str, tmp_path: Path) -> None:
    kind, text, message = TRACES[name]
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    arrivals = {"kind": kind, "path": "t.csv"}
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": arrivals}])
    with pytest.raises(InvalidInputError, match=rf"queries\.0\.arrivals: .*{message}"):
        simulate(file)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    arrivals = {"kind": "trace", "path": "gone.csv"}
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": arrivals}])
    with pytest.raises(InvalidInputError, match=r"queries\.0\.arrivals: .*gone\.csv"):
        simulate(file)


def test_of_several_mistakes_each_is_told_and_nothing_else(tmp_path: Path) -> None:
    changes = with_parts(devices={"memory": 3}, queries={"start_s": -1})
    with pytest.raises(InvalidInputError) as refused:
        parse_world(changes, tmp_path, source="world w.yaml")
    assert str(refused.value) == (
        "world w.yaml: devices.0.memory: got 3; there is no such key. Did you mean 'memory_mib'?; "
        "queries.0.start_s: got -1; allowed: greater than or equal to 0"
    )


def test_a_p99_alone_is_enough(tmp_path: Path) -> None:
    point = {**POINT, "p99_ms": 5.2}  # below the median times the default p90's ratio
    written = {"model": "m", "accuracy": 70, "points": [point]}
    variants = {"kind": "written", "variants": [written]}
    file = world(
        tmp_path,
        duration_s=1,
        devices=[{"name": "cpu-1"}],
        tasks=[{"name": "vision", "variants": variants}],
    )
    assert simulate(file).figures()["answered"] > 0


@pytest.mark.parametrize(
    "arrivals",
    [
        {"kind": "flash-crowd", "base_per_s": 0, "peak_per_s": 50, "at_s": 0, "fall_s": 0.01},
        {"kind": "bursts", "low_per_s": 0, "high_per_s": 1e-9, "mean_low_s": 1, "mean_high_s": 1},
        {"kind": "diurnal", "mean_per_s": 1e-9, "period_s": 1},
        {"kind": "poisson", "rate_per_s": 1e-308},
    ],
)
def test_arrivals_that_cease_end_with_the_world(arrivals: dict[str, Any], tmp_path: Path) -> None:
    crowd = {**arrivals, "rise_s": 0.1, "hold_s": 0.5} if "base_per_s" in arrivals else arrivals
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": crowd}])
    figures = simulate(file).figures()
    assert figures["span_s"] == 10.0
    assert figures["queries"] < 60


def test_blank_lines_of_a_trace_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,task\n0,vision\n\n1,vision\n\n", encoding="utf-8")
    arrivals = {"kind": "trace", "path": "t.csv"}
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": arrivals}])
    assert simulate(file).figures()["queries"] == 2


def test_what_happened_before_the_mistake_is_kept(tmp_path: Path) -> None:
    times = "".join(f"{n / 100}\n" for n in range(200))
    (tmp_path / "t.csv").write_text(f"arrival_s\n{times}0.1\n", encoding="utf-8")
    arrivals = {"kind": "trace", "path": "t.csv"}
    file = world(tmp_path, queries=[{"tasks": ["vision"], "arrivals": arrivals}])
    log = tmp_path / "log.csv"
    with pytest.raises(InvalidInputError, match="line 202"):
        simulate(file, log=log)
    assert len(log.read_text(encoding="utf-8").splitlines()) > 180


def test_a_setting_of_a_policy_that_is_of_the_wrong_type(tmp_path: Path) -> None:
    forecast = {"policy": "ewma", "half_life_s": "long"}
    file = world(tmp_path, policies={"forecast": forecast})
    with pytest.raises(InvalidInputError, match=r"ewma\.half_life_s: got 'long'"):
        simulate(file)


def test_a_world_that_is_right_is_right() -> None:
    assert world().world.task_names == ("vision",)
    assert world(**EDGE).world.delay_s("core") == 0.012


def test_of_very_many_problems_the_number_of_the_others_is_told() -> None:
    faults = [{"kind": "worker-dies", "worker": "nobody", "at_s": 1} for _ in range(23)]
    with pytest.raises(InvalidInputError, match=r"faults\.9\.worker: .*; and 13 more$") as refused:
        world(faults=faults)
    assert "faults.10" not in str(refused.value)


def test_a_world_says_which_folder_is_missing_and_which_world_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "measured.yaml"
    path.parent.mkdir()
    text = yaml.safe_dump(document(needs={"folder": "../data", "otherwise": "../made-up.yaml"}))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_world(path)
    assert f"needs.folder: got '{tmp_path / 'data'}'" in str(caught.value)
    assert f"run {tmp_path / 'made-up.yaml'} instead" in str(caught.value)
    (tmp_path / "data").mkdir()
    assert load_world(path).world.needs is not None
