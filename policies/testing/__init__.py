"""The conformance kit: subclass a case, supply one fixture, inherit the checks.

    import pytest
    from modelless.policies.testing import EvictionConformance

    class TestMine(EvictionConformance):
        @pytest.fixture
        def policy(self):
            return Mine()

A test class declares what its policy does not promise (``order_matters = True``, ...); each case
lists its declarations. The kit needs pytest; nothing else in ``modelless.policies`` does.
"""

from __future__ import annotations

try:
    import pytest
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "modelless.policies.testing needs pytest, which is not installed: pip install pytest"
    ) from error

_CASES = ("case", "selection", "batching", "scaling", "placement", "eviction", "forecast")
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in (*_CASES, "rules")))

from modelless.policies.testing.batching import BatchingConformance  # noqa: E402
from modelless.policies.testing.eviction import EvictionConformance  # noqa: E402
from modelless.policies.testing.forecast import ForecasterConformance  # noqa: E402
from modelless.policies.testing.placement import PlacementConformance  # noqa: E402
from modelless.policies.testing.scaling import ScalingConformance  # noqa: E402
from modelless.policies.testing.selection import SelectionConformance  # noqa: E402

__all__ = [
    "BatchingConformance",
    "EvictionConformance",
    "ForecasterConformance",
    "PlacementConformance",
    "ScalingConformance",
    "SelectionConformance",
]
