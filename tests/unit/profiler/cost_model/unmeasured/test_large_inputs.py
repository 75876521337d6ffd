"""Sizes beyond the usual: names of digits, priors of one's own, many points."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.unmeasured.device_predictor import DevicePredictor
from modelless.profiler.cost_model.unmeasured.experiment_design import BayesianDesign
from modelless.profiler.cost_model.unmeasured.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
)
from modelless.profiler.cost_model.unmeasured.prior import (
    Prior,
    digest_of,
    parse_prior,
    shipped_prior,
)
from modelless.profiler.measure.table import PlacementFacts, TableRow
from modelless.variants.vocabulary import Placement

from . import worlds
from .worlds import encoded

NONE = np.array([], dtype=np.intp)


def row(device: str, number: int, gmacs: float) -> TableRow:
    return worlds.row(device=device, model=f"net{number}", gmacs=gmacs)


def prior_with(variance: float, noise_variance: float) -> Prior:
    package = files("modelless.profiler.cost_model.unmeasured")
    data = package.joinpath("data", "prior.json").read_bytes()
    document: dict[str, Any] = json.loads(data)
    del document["sha256"]
    for by_term in document["variances"].values():
        by_term.update(dict.fromkeys(by_term, variance))
    document["noise_variance"] = noise_variance
    document["sha256"] = digest_of(document)
    return parse_prior(json.dumps(document).encode(), "own.json")


def test_a_name_of_hundreds_of_digits_is_a_name() -> None:
    wanted = [replace(row("d", 0, 0.1), model="net" + "9" * 400)]
    found = DevicePredictor(shipped_prior(), [row("e", 0, 0.1)], wanted).predict(
        NONE, np.array([]), np.arange(1)
    )
    assert np.isfinite(found.high_ms).all()


def test_a_prior_at_its_bounds_can_be_reckoned_with() -> None:
    training = [row("e", number, 0.1 + number) for number in range(30)] * 2
    wanted = [row("d", number, 0.1 + number) for number in range(30)] * 2
    predictor = DevicePredictor(prior_with(100.0, 1e-6), training, wanted)
    shots = np.arange(40)
    found = predictor.predict(shots, np.full(40, 2.0), np.arange(40, 60))
    assert np.isfinite(found.median_ms).all()


@pytest.mark.parametrize("variance", [-1.0, 101.0, float("inf"), float("nan")])
def test_a_prior_beyond_its_bounds_is_refused(variance: float) -> None:
    with pytest.raises(InvalidInputError, match=r"variances\.all\.constant.*0 to 100"):
        prior_with(variance, 0.01)


def test_noise_is_told_from_many_points_too() -> None:
    rng = np.random.default_rng(0)
    points = encoded([row("d", number, 0.1 + 0.05 * number) for number in range(400)])
    process = GaussianProcess(shipped_prior().kernel, points.select([]), np.empty(0))
    values = rng.normal(0.0, 0.01, len(points))
    adapted = ConditionedProcess(process, process.posterior_at(points), values)
    assert adapted.noise_variance < 0.1 * process.kernel.noise_variance


def test_a_choice_among_many_placements_stays_cheap(make: Any) -> None:
    device = make.device()
    subjects = {
        Placement(variant.id, device.name): PlacementFacts(variant, device, "processor", "engine")
        for variant in (make.variant(f"v{number}") for number in range(500))
    }
    strategy = BayesianDesign(shipped_prior(), subjects, (1, 2, 4, 8))
    left = dict.fromkeys(subjects, (1, 2, 4, 8))
    tracemalloc.start()
    chosen = strategy.choose(left, ())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chosen is not None
    assert chosen.placement in subjects
    assert peak_bytes < 50 << 20  # 2,000 points at once would take 200 MB
