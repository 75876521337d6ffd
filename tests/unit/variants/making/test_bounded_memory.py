"""Calibration data in pieces: the same values as at once, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelless.variants.graphs.canonical import read_model
from modelless.variants.making import bounded_memory
from modelless.variants.making.activation_ranges import activations, measure_ranges
from modelless.variants.making.bounded_memory import Answers, Pieces
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.fidelity import compare, run_all
from modelless.variants.making.maker import receive_messages
from modelless.variants.making.session import Session

from .networks import FASHION, pictures

ITEM_BYTES = 10 * 4  # ten probabilities


class Counting:
    """A session that notes what it is asked for."""

    def __init__(self) -> None:
        self._session = Session(FASHION)
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        self.is_batched = True
        self.asked: list[tuple[int, list[str]]] = []

    def run(self, feed: Any, outputs: Any = None) -> dict[str, Any]:
        items = len(next(iter(feed.values())))
        self.asked.append((items, list(self.outputs if outputs is None else outputs)))
        return self._session.run(feed, outputs)


def values(data: CalibrationData, names: list[str]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: [] for name in names}
    for name, array in activations(read_model(FASHION), names, data):
        found[name].append(array)
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def test_a_call_is_cut_into_as_many_items_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_memory, "MOST_BYTES", 3 * ITEM_BYTES)
    session: Any = Counting()
    (feed,) = pictures().feeds[:1]
    cut = list(Pieces(session).cut(feed))
    sizes = [len(next(iter(piece.values()))) for piece in cut]
    assert max(sizes) == 3
    assert sum(sizes) == len(next(iter(feed.values())))
    assert session.asked == [(1, list(session.outputs))]  # one item, to see how large it is


def test_values_of_one_item_that_do_not_fit_take_several_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["conv1", "relu2"]
    at_once = values(pictures(), names)
    monkeypatch.setattr(bounded_memory, "MOST_BYTES", 1)
    in_pieces = values(pictures(), names)
    for name in names:
        np.testing.assert_allclose(in_pieces[name], at_once[name], rtol=1e-5, atol=1e-5)


def test_ranges_are_the_same_in_pieces_and_progress_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = read_model(FASHION), pictures()
    for method in ("min-max", "percentile", "entropy"):
        whole = measure_ranges(model, ["conv1", "relu2"], data, method, 99.9)
        told: list[str] = []
        with monkeypatch.context() as patch, receive_messages(told.append):
            patch.setattr(bounded_memory, "MOST_BYTES", 1)
            cut = measure_ranges(model, ["conv1", "relu2"], data, method, 99.9)
        for name, found in whole.items():
            assert (cut[name].low, cut[name].high) == pytest.approx(
                (found.low, found.high), rel=0.01
            )
        items = sum(len(next(iter(feed.values()))) for feed in data.feeds)
        assert len(told) == items * (1 if method == "min-max" else 2)
        assert "call 1/" in told[0]


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_answers_may_be_asked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(bounded_memory, "MOST_KEPT_BYTES", kept_bytes)
    session: Any = Counting()
    answers = Answers(session, pictures())
    wanted = run_all(Session(FASHION), answers.calls)
    for _ in range(2):
        found = compare(answers, map(Session(FASHION).run, answers.calls.feeds))
        assert (found.sqnr_db, found.items) == (200.0, compare(wanted, wanted).items)
    runs = len(session.asked) - 1
    assert runs == len(answers.calls.feeds) * (1 if kept_bytes else 2)


def test_a_graph_of_a_fixed_batch_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_memory, "MOST_BYTES", 1)
    session: Any = Counting()
    session.is_batched = False
    (feed,) = pictures().feeds[:1]
    assert list(Pieces(session).cut(feed)) == [feed]
