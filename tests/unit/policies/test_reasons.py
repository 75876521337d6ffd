"""Reasons of a policy's own: short, of few letters, and like those of the closed list."""

from __future__ import annotations

import pickle

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import CustomReason, Reason


def test_a_reason_of_ones_own_is_a_text_like_the_others() -> None:
    reason = CustomReason("saves-the-gpu-2")
    assert reason == reason.value == "saves-the-gpu-2"
    assert type(reason.value) is str
    copy = pickle.loads(pickle.dumps(reason))  # noqa: S301  (our own)
    assert copy == reason
    assert type(copy) is CustomReason


@pytest.mark.parametrize(
    "text", ["", "Saves", "saves the gpu", "-saves", "7-lives", "a" * 41, "saves\n", 7, None]
)
def test_a_long_or_odd_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidInputError, match=r"reason: got .*1 to 40 small letters"):
        CustomReason(text)  # type: ignore[arg-type]


def test_the_closed_list_keeps_its_meanings() -> None:
    with pytest.raises(InvalidInputError, match="none of Reason"):
        CustomReason(Reason.QUEUE_FULL.value)
