"""A network that spells texts, from its file to its accuracy: CTC, an alphabet, any width."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelless.profiler.cost_model.size_model import SizeModel
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.variants.registry.registry import open_registry
from modelless.variants.vocabulary import CtcDecoding, Placement

from .conftest import Ran, Run

STEPS = {"ab a": "-aab- aa", "bb": "b-b", "a": "-a", "aé": "aa-"}  # the last cannot be spelt
ALPHABET = "-ab "
TASK_FILE = """
name: lines
inputs: [{name: strokes, datatype: UINT8, shape: [-1, -1]}]
outputs: [{name: letters, datatype: FP32, shape: [-1, -1, 4]}]
metric: exact-match
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A network that puts first, at each step, the class that its input names."""
    held = [
        numpy_helper.from_array(np.array(4, np.int64), "depth"),
        numpy_helper.from_array(np.array([0.0, 1.0], np.float32), "values"),
    ]
    nodes = [
        helper.make_node("Cast", ["strokes"], ["indices"], to=TensorProto.INT64),
        helper.make_node("OneHot", ["indices", "depth", "values"], ["letters"]),
    ]
    graph = helper.make_graph(
        nodes,
        "speller",
        [helper.make_tensor_value_info("strokes", TensorProto.UINT8, ["N", "W"])],
        [helper.make_tensor_value_info("letters", TensorProto.FLOAT, ["N", "W", 4])],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="character", value="a\nb")
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Twenty items of four widths, each of which spells its label, but for a letter unknown."""
    folder, rows = tmp_path / "lines", ["file,label"]
    folder.mkdir()
    for number in range(20):
        text, steps = list(STEPS.items())[number % 4]
        np.save(folder / f"{number}.npy", np.array([*map(ALPHABET.index, steps)], np.uint8))
        rows.append(f"{number}.npy,{text}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


def register(run: Run, net: Path, lines: Path, decoding: str, *words: Any) -> Ran:
    """Register the network for a task that is described so."""
    (net.parent / "task.yaml").write_text(TASK_FILE + decoding)
    words = ("--task-file", net.parent / "task.yaml", "--validation", lines, *words)
    return run("register", net, *words, "--model", "m", "--name", "fp32", "--precision", "fp32")


@pytest.mark.parametrize(
    "decoding",
    [
        "decoding: {kind: ctc, alphabet: net.onnx}",
        "decoding: {kind: ctc, alphabet: letters.txt, output: letters, blank: 0}",
        "decoding: {kind: ctc, alphabet: [a, b, ' ']}",
    ],
)
def test_texts_are_scored_as_they_read(
    run: Run, home: Path, net: Path, lines: Path, decoding: str
) -> None:
    (net.parent / "letters.txt").write_text("a\nb\n \n")
    ran = register(run, net, lines, decoding, "--json")
    assert ran.code == 0, ran.err
    assert (ran.document["accuracy"], "CTC" in ran.err) == (75.0, False)
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
    assert (task.labels, task.decoding) == (("", "a", "b", " "), CtcDecoding("letters"))
    words = ("validate", "lines", "--data", lines, "--json")
    assert run(*words, "--metric", "cer").document["variants"][0]["figure"] == "CER 11.11%"
    assert run(*words, "--metric", "wer").document["variants"][0]["figure"] == "WER 20.00%"


def test_without_a_decoding_it_is_said_that_steps_are_compared(
    run: Run, home: Path, net: Path, lines: Path
) -> None:
    (lines / "labels.csv").write_text("file,label\n0.npy,ab a\n1.npy,bb\n")
    ran = register(run, net, lines, "labels: ['', a, b, ' ']", "--json")
    assert (ran.code, ran.document["accuracy"]) == (0, 50.0)  # "aab aa" for "ab a"
    assert "if the network was trained by CTC, say so in the task file" in ran.err


def test_a_family_reads_its_alphabet_off_the_network(
    run: Run, home: Path, net: Path, lines: Path
) -> None:
    recipe = net.parent / "recipe.yaml"
    recipe.write_text("variants: {fp32: [optimise]}")
    words = ("--task", "lines", "--model", "m", "--validation", lines, "--recipe", recipe)
    ran = run("make", net, *words, "--accept-noise", "--batches", 1, "--json")
    assert ran.code == 0, ran.err
    assert "'letters' is read as a text (CTC), with the 3 characters" in ran.err
    row = ran.document["variants"][0]
    assert row["accuracy"] == 68.75  # 11 of the 16 that are not held out
    assert row["fidelity"]["text_agreement"] == 1.0
    with closing(open_registry(home)) as registry:
        (task,) = registry.tasks()
    assert (task.accuracy_metric, task.labels) == ("exact-match", ("", "a", "b", " "))


@pytest.mark.parametrize(
    ("decoding", "said"),
    [
        ("decoding: {kind: ctc}", "decoding.alphabet"),
        ("decoding: {kind: rnnt, alphabet: [a]}", "decoding.kind"),
        ("decoding: {kind: ctc, alphabet: [a, b, c, d]}", "4 together"),
        ("decoding: {kind: ctc, alphabet: [a, b]}", "may be the space"),
        ("decoding: {kind: ctc, alphabet: none.txt}", "decoding.alphabet"),
        ("decoding: {kind: ctc, alphabet: none.onnx}", "none.onnx"),
        ("decoding: {kind: ctc, alphabet: net.onnx, metadata: words}", "an entry 'words'"),
        ("decoding: {kind: ctc, alphabet: [a, b, ' '], output: strokes}", "decoding.output"),
        ("decoding: {kind: ctc, alphabet: [a, b, ' '], blank: 4}", "decoding.blank"),
        ("decoding: {kind: ctc, alphabet: [a, '', ' ']}", "no character in line 2"),
        ("decoding: {kind: ctc, alphabet: [a, b, ' ']}\nlabels: [a]", "none beside 'decoding'"),
    ],
)
def test_a_decoding_that_cannot_be(
    run: Run, home: Path, net: Path, lines: Path, decoding: str, said: str
) -> None:
    ran = register(run, net, lines, decoding)
    assert (ran.code, said in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((1, 3), np.uint8), "shape"),
        (np.zeros(0, np.uint8), "shape"),
        (np.zeros(3, np.int64), "datatype"),
        (np.array([{}]), "not a .npy file of numbers"),
        (np.uint8(3), "shape"),
        (np.array(["a", "b"]), "datatype"),
        (np.array([np.nan, 1.0], np.float32), "0 to 255"),
    ],
)
def test_an_item_that_does_not_fit_is_named(
    run: Run, home: Path, net: Path, lines: Path, array: Any, said: str
) -> None:
    np.save(lines / "3.npy", array)
    ran = register(run, net, lines, "decoding: {kind: ctc, alphabet: net.onnx}")
    assert (ran.code, "3.npy" in ran.err, said in ran.err) == (2, True, True), ran.err


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("file,text\n0.npy,a\n", "one called 'label'"),
        ("file,label\n0.npy,a\n0.npy,a\n", "each file once"),
        ("file,label\nnone.npy,a\n", "line 2: file: got 'none.npy'"),
        ("file,label\n../task.yaml,a\n", "line 2: file: got '../task.yaml'"),
        ("file,label\n", "the set is empty"),
        ("", "is empty"),
    ],
)
def test_labels_that_cannot_be(
    run: Run, home: Path, net: Path, lines: Path, labels: str, said: str
) -> None:
    (lines / "labels.csv").write_text(labels)
    ran = register(run, net, lines, "decoding: {kind: ctc, alphabet: net.onnx}")
    assert (ran.code, "labels.csv" in ran.err, said in ran.err) == (2, True, True), ran.err


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": ["a", "b"]}, "labels: got 2; allowed: 4, one an item"),
        ({"labels": [0, 1, 2, 3]}, "item 0: label: got 0; allowed: text"),
        ({}, "one called 'labels'"),
        ({"labels": [b"a"] * 4}, "label: got b'a'; allowed: text"),
    ],
)
def test_a_set_of_arrays_that_cannot_be(
    run: Run, home: Path, net: Path, tmp_path: Path, arrays: dict[str, Any], said: str
) -> None:
    np.savez(tmp_path / "items.npz", strokes=np.zeros((4, 5), np.uint8), **arrays)
    decoding = "decoding: {kind: ctc, alphabet: net.onnx}"
    ran = register(run, net, tmp_path / "items.npz", decoding)
    assert (ran.code, "items.npz" in ran.err, said in ran.err) == (2, True, True), ran.err


@pytest.mark.parametrize(
    ("given", "becomes", "said"),
    [
        ("[-1, -1]}", "[-1, 0]}", "inputs.strokes.shape: got [-1, 0]"),
        ("[-1, -1]}", "[5, -1]}", "-1 first, which counts items"),
        ("[-1, -1]}", "[-1, 8], padding: 0}", "none, but for an input that leaves sizes free"),
        ("[-1, -1]}", "[-1, -1], padding: 300}", "'edge', or a value of UINT8"),
        ("[-1, -1]}", "[-1, -1], padding: mirror}", "padding: got 'mirror'; allowed: 'edge'"),
        ("[-1, -1, 4]", "[-1, 4]", "[-1, steps, classes]"),
        ("exact-match", "top-1", "metric 'top-1': outputs of task 'lines'"),
    ],
)
def test_a_task_of_sequences_that_cannot_be(
    run: Run, home: Path, net: Path, lines: Path, given: str, becomes: str, said: str
) -> None:
    text = f"{TASK_FILE}decoding: {{kind: ctc, alphabet: [a, b, ' ']}}"
    assert given in text
    (net.parent / "task.yaml").write_text(text.replace(given, becomes))
    words = ("--task-file", net.parent / "task.yaml", "--validation", lines, "--model", "m")
    ran = run("register", net, *words, "--name", "fp32", "--precision", "fp32")
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_texts_for_a_task_without_characters_say_what_to_do(
    run: Run, home: Path, net: Path, lines: Path
) -> None:
    ran = register(run, net, lines, "")
    assert ran.code == 2
    assert "Give the task 'decoding' with an alphabet, or 'labels'." in ran.err


def test_profiles_are_of_the_sizes_that_accuracy_was_measured_on(
    run: Run, home: Path, net: Path, lines: Path
) -> None:
    assert register(run, net, lines, "decoding: {kind: ctc, alphabet: net.onnx}").code == 0
    quick = ("profile", "lines", "--batches", "1,2,4", "--accept-noise", "--json")
    ran = run(*quick)
    assert ran.code == 0, ran.err
    found = ran.document["placements"]
    shapes = [(each["item_shape"], each["is_typical"]) for each in found]
    # Five items each of widths 2, 3, 3 and 8.
    assert shapes == [("strokes=2", False), ("strokes=3", True), ("strokes=8", False)]
    assert [[point["batch"] for point in each["batches"]] for each in found] == [
        [1, 4], [1, 2, 4], [1, 4]
    ]  # fmt: skip
    assert ran.document["measured"] == 7
    with closing(open_registry(home)) as registry:
        records = Records(registry.store)
        assert {row.shape for row in records.current(read_facts())} == {"strokes=3"}
        model = SizeModel(records.every_size(read_facts()))
    assert model.sizes(Placement("lines/m/fp32@1", "cpu-1")) == (2, 3, 8)
    ran = run(*quick, "--shape", "strokes=40,10")
    assert [each["item_shape"] for each in ran.document["placements"] if each["is_typical"]] == [
        "strokes=3", "strokes=40"
    ]  # fmt: skip
    shown = run("profile", "lines", "--batches", "1,2,4", "--accept-noise", "--budget", "1s").out
    assert "strokes=3 ." in shown


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("strokes", "an input and sizes such as"),
        ("strokes=", "an input and sizes such as"),
        ("strokes=4x", "an input and sizes such as"),
        ("strokes=-1", "an input and sizes such as"),
        ("strokes=0", "-1 is 1 or more"),
        ("strokes=4x4", "sizes of [-1]"),
        ("image=48x320", "inputs with free sizes: ['strokes']"),
    ],
)
def test_a_size_that_cannot_be(
    run: Run, home: Path, net: Path, lines: Path, shape: str, said: str
) -> None:
    assert register(run, net, lines, "decoding: {kind: ctc, alphabet: net.onnx}").code == 0
    ran = run("profile", "lines", "--shape", shape, "--accept-noise")
    assert (ran.code, said in ran.err) == (2, True), ran.err
