"""How many queries a canary takes until it is rolled back or promoted.

Draws right and wrong answers of two versions, asks the sequential test after every hundred queries,
and prints the median number of queries until it decides, of all and of the canary's own:

    python benchmarks/simulation/canary_power.py
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from modelless.controller.control.canary_verdict import Stream, weigh
from modelless.variants.registry.versions import TrialRules

GUARDS = 3
CASES = (  # wrong answers of the canary and of the current version; tolerance
    (0.12, 0.10, 0.01),
    (0.15, 0.10, 0.02),
    (0.20, 0.10, 0.02),
    (0.30, 0.10, 0.02),
    (0.90, 0.10, 0.02),
    (0.10, 0.10, 0.02),
    (0.10, 0.10, 0.05),
    (0.00, 0.00, 0.01),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=40, help="drawn for each line")
    parser.add_argument("--at-most", type=int, default=400_000, help="queries of a stream")
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    print("wrong: canary  current  tolerance  share  decided             queries  of the canary")
    for tried, standing, tolerance in CASES:
        for share in (0.05, 0.2, 0.5):
            found = [
                decide(rng, tried, standing, tolerance, share, given.at_most)
                for _ in range(given.streams)
            ]
            outcomes = {word: sum(each[0] == word for each in found) for word, _, _ in found}
            queries, mine = np.median([each[1:] for each in found], axis=0)
            print(
                f"{tried:13.1%} {standing:8.1%} {tolerance:10.1%} {share:6.0%}  "
                f"{outcomes!s:18} {queries:9.0f} {mine:10.0f}"
            )


def decide(
    rng: np.random.Generator,
    tried_rate: float,
    standing_rate: float,
    tolerance: float,
    share: float,
    at_most: int,
) -> tuple[str, int, int]:
    """What it comes to, after how many queries, and how many of these were the canary's."""
    alpha = TrialRules().alpha
    tried, standing = Stream(0, 0), Stream(0, 0)
    for asked in range(100, at_most + 1, 100):
        mine = int(rng.binomial(100, share))
        tried = Stream(tried.total + mine, tried.bad + int(rng.binomial(mine, tried_rate)))
        standing = Stream(
            standing.total + 100 - mine,
            standing.bad + int(rng.binomial(100 - mine, standing_rate)),
        )
        found = weigh(tried, standing, tolerance)
        if found.log_worse >= math.log(GUARDS / alpha):
            return "back", asked, tried.total
        if found.log_fine >= math.log(1.0 / alpha):
            return "promoted", asked, tried.total
    return "open", at_most, tried.total


if __name__ == "__main__":
    main()
