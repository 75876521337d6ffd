"""The plan's shares for the gateways' selection policies: what makes sense of them, when new."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from modelless.controller.core.effects import Advise
from modelless.policies.views import ClusterView
from modelless.variants.vocabulary import Placement


class Adviser:
    """One control loop's advice."""

    def __init__(self) -> None:
        self._told: tuple[tuple[str, tuple[tuple[Placement, float], ...]], ...] = ()

    def advice(
        self,
        view: ClusterView,
        given: Mapping[str, Mapping[Placement, float]],
        complain: Callable[[str], None],
    ) -> list[Advise]:
        """The shares, if they are others than before; those that make no sense are left out.

        Args:
            view: what there is.
            given: ``Targets.shares``.
            complain: is told what makes no sense.
        """
        known = {variant.variant_id for variant in view.variants}
        advice = []
        for scope, shares in given.items():
            sound = []
            for placement, share in shares.items():
                if (
                    isinstance(placement, Placement)
                    and placement.variant_id in known
                    and isinstance(share, (int, float))
                    and 0.0 <= share < math.inf
                ):
                    sound.append((placement, float(share)))
                else:
                    complain(f"shared {share!r:.80} to {placement!r:.80}")
            advice.append((scope, tuple(sound)))
        advised = tuple(advice)
        if advised == self._told:
            return []
        self._told = advised
        return [Advise(advised)]
