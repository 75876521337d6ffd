"""Reading times, lists and policies from the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import (
    batches_of,
    moment_of,
    names_of,
    policy_of,
    seconds_of,
)
from modelless.controller.cli.screen import duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("1.5", 1.5),
        ("60s", 60.0),
        ("2m", 120.0),
        ("2 min".replace(" ", ""), 120.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("500ms", 0.5),
        ("1d", 86400.0),
        ("1d12h", 129600.0),
        ("7d", 604800.0),
        (" 5S ", 5.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of("budget", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "5x", "s", "nan", "inf", "1e3", "1 2", "8d", "999h"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"budget: got .*1m30s.* 1d, up to 7 days"):
        seconds_of("budget", text)


@pytest.mark.parametrize(
    "text",
    ["0001-01-02T12:00", "0001-01-01T00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T00:00Z",
     "9999-12-31T23:59:59Z"],
)  # fmt: skip
def test_a_date_is_of_years_that_can_be_counted_with(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"until: got .*the years 1970 to 9998"):
        moment_of("until", text, datetime.now(UTC))


def test_batches_are_sorted_and_each_stands_once() -> None:
    assert batches_of("8, 1,2,,8") == (1, 2, 8)


@pytest.mark.parametrize("text", ["", ",", "0", "-1", "1.5", "x", "1025", "²"])
def test_what_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="batches"):
        batches_of(text)


def test_names_keep_their_order() -> None:
    assert names_of("device-class", "cpu-2, cpu-1,cpu-2") == ("cpu-2", "cpu-1")


def test_policies_are_named_or_described(tmp_path: Path) -> None:
    described = {"policy": "cheapest-feasible", "quantile": "p90"}
    file = tmp_path / "policy.yaml"
    file.write_text("policy: cheapest-feasible\nquantile: p90\n")
    assert policy_of("cheapest-feasible") == "cheapest-feasible"
    assert policy_of("module:Attribute") == "module:Attribute"
    assert policy_of("{policy: cheapest-feasible, quantile: p90}") == described
    assert policy_of(str(file)) == described


@pytest.mark.parametrize("text", ["{", "{1: 2}", "nowhere.yaml"])
def test_a_policy_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="policy"):
        policy_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (8.4, "8 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3840, "1 h 4 min"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
