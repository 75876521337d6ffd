"""Checks of every policy."""

# ruff: noqa: S101  (this is a test suite)

from __future__ import annotations

import pickle
import timeit
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final

import pytest

from modelless.policies.testing.plain import freeze, plain
from modelless.policies.testing.process import Question, answers, answers_elsewhere

_WARM_UP_CALLS: Final = 1000
_FURTHER_CALLS: Final = 1000
_MOST_GROWN_BYTES: Final = 4096
"""Less than it takes to keep one number for each further query."""


class PolicyConformance:
    """The checks that all seams share. Subclass the case of your seam instead.

    Declarations:
        order_matters: the answer may depend on the order in which options are given.
        budget_s: seconds that a call with 1,000 options may take, at best of several.
    """

    seam: ClassVar[type]
    order_matters: ClassVar[bool] = False
    budget_s: ClassVar[float] = 0.05

    @pytest.fixture
    def policy(self) -> Any:
        """Returns a new policy with the settings to check."""
        raise NotImplementedError(
            f"{type(self).__name__}: supply a fixture 'policy' that returns the policy to check"
        )

    def questions(self, policy: Any) -> list[Question]:
        """Returns the series of calls that the checks make, in this order.

        The calls are of a kind that the policy meets in service. This method must not call the
        policy itself.
        """
        raise NotImplementedError

    def large_questions(self, policy: Any) -> list[Question]:
        """Returns a call of each hook with 1,000 options; as ``questions``."""
        raise NotImplementedError

    def service(self, policy: Any) -> Iterator[Question]:
        """Yields calls without end, as ``questions``; by default none, which checks nothing.

        Time passes, and each call is about other queries, of the same kinds.
        """
        del policy
        return iter(())

    def test_is_of_the_seam(self, policy: Any) -> None:
        assert isinstance(policy, self.seam), (
            f"{type(policy).__name__} is not derived from {self.seam.__name__}"
        )

    def test_leaves_its_inputs_untouched(self, policy: Any) -> None:
        for hook, arguments in self.questions(policy):
            before = plain(arguments)
            getattr(policy, hook)(*freeze(arguments))
            assert plain(arguments) == before, f"{hook} changed what it was given"

    def test_same_seed_same_answer(self, policy: Any) -> None:
        questions = self._pickled(policy)
        assert answers(copy_of(policy), questions) == answers(copy_of(policy), questions), (
            "two copies of the policy, asked the same with the same seeds, answered differently: "
            "randomness comes only from the generator that is passed in"
        )

    def test_same_answer_in_another_process(self, policy: Any) -> None:
        questions = self._pickled(policy)
        assert answers_elsewhere(policy, questions) == answers(copy_of(policy), questions), (
            "the answer was another in another process: does it depend on the order of a set, on "
            "hash(), on id() or on a global?"
        )

    def test_pickles_with_all_it_has_learned(self, policy: Any) -> None:
        questions = self._pickled(policy)
        half = len(questions) // 2 + 1
        answers(policy, questions[:half])
        copy = copy_of(policy)
        assert answers(copy, questions[half:]) == answers(policy, questions[half:])

    def test_answers_within_its_budget(self, policy: Any) -> None:
        for hook, arguments in self.large_questions(policy):
            call = partial(getattr(policy, hook), *freeze(arguments))
            took_s = min(timeit.repeat(call, number=1, repeat=7))
            assert took_s <= self.budget_s, (
                f"{hook} with 1,000 options took {took_s * 1e3:.2f} ms; allowed: "
                f"{self.budget_s * 1e3:g} ms (declare another budget_s if that is meant)"
            )

    def test_keeps_no_more_the_longer_it_serves(self, policy: Any) -> None:
        calls = self.service(policy)
        if next(calls, None) is None:
            pytest.skip("no such calls for this seam")
        _serve(policy, calls, _WARM_UP_CALLS)
        before = len(pickle.dumps(policy))
        _serve(policy, calls, _FURTHER_CALLS)
        grown = len(pickle.dumps(policy)) - before
        assert grown <= _MOST_GROWN_BYTES, (
            f"what it keeps grew by {grown} bytes in {_FURTHER_CALLS} calls, pickled; allowed: "
            f"{_MOST_GROWN_BYTES}. Forget what belongs to queries that are gone"
        )

    def _pickled(self, policy: Any) -> list[bytes]:
        return [pickle.dumps(question) for question in self.questions(policy)]


def _serve(policy: Any, calls: Iterator[Question], count: int) -> None:
    for hook, arguments in islice(calls, count):
        getattr(policy, hook)(*arguments)


def copy_of(policy: Any) -> Any:
    """Returns the policy as another process would get it, with all it has learned."""
    return pickle.loads(pickle.dumps(policy))  # noqa: S301  (our own)
