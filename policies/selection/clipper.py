"""Clipper: serves one fixed variant, in batches that grow until they take too long.

Crankshaw et al., NSDI 2017; adaptive batching is its sec. 4.3. In Clipper the client chooses the
model; Proteus (Ahmad et al., ASPLOS 2024) compared it with model-less systems in the two forms
here. Clipper's model selection by bandits (sec. 5) learns from clients' feedback on the answers,
which model-less serving does not get: it is left out, and so is its cache of answers.

Departures. The variant is the most accurate or the quickest that is ready for a query's limits. A
selection policy does not know throughput in batches, so the variant that is quickest for one query
counts as the one of highest throughput, which is true where all variants gain equally from batches.
The scaling policy ``one-variant`` plans which variant that can be in the memory there is.
Delayed batching (sec. 4.3.2) is left out: a batch is never held back for more queries.
"""

from __future__ import annotations

from modelless.common.errors import InvalidInputError
from modelless.policies.batching.additive_increase import AdditiveIncrease
from modelless.policies.seams import BatchingPolicy
from modelless.policies.selection.static import Static

_VARIANTS = {"high-accuracy": "most-accurate", "high-throughput": "fastest"}


class Clipper(Static):
    """One variant for each scope and minimum accuracy, batched by additive increase.

    Args:
        mode: ``high-accuracy`` takes the most accurate variant, ``high-throughput`` the quickest.
        batching: how bound queries share batches.
    """

    def __init__(self, mode: str = "high-accuracy", batching: BatchingPolicy | None = None) -> None:
        if mode not in _VARIANTS:
            raise InvalidInputError.of("mode", mode, " or ".join(_VARIANTS))
        super().__init__(_VARIANTS[mode], batching or AdditiveIncrease())
        self.mode = mode
