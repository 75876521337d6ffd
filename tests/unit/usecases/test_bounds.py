"""Bounds of ``modelless tune`` are figures and numbers."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.usecases.simulation.tuning import Bound, bounds_of


@pytest.mark.parametrize(
    ("text", "most"),
    [("cost<=2.5", 2.5), ("cost <= 1e-5", 1e-5), ("cost<=.5", 0.5), ("cost<=-2.", -2.0)],
)
def test_numbers_are_read(text: str, most: float) -> None:
    assert bounds_of([text]) == (Bound("cost", 1, most),)


@pytest.mark.parametrize("number", ["0.9.9", ".", "-", "1e", "1e999", "inf", "nan", ""])
def test_what_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(InvalidInputError, match=r"subject-to: got .*FIGURE>=NUMBER"):
        bounds_of([f"attainment>={number}"])
