"""Plug-ins: names that are built in, that an installed package offers, or that are paths."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError, NotFoundError
from modelless.common.plugins import Plugins
from modelless.controller.sim.compare.sources import arrival_modules
from modelless.controller.sim.worlds.arrivals import ArrivalsSettings
from modelless.policies.discovery import build_policy
from modelless.policies.seams import EvictionPolicy
from modelless.variants.making.maker import build_maker
from modelless.variants.metrics import METRICS, find_metric
from modelless.variants.runtimes.engines import ENGINES, engine_status, find_runtime, parse_engine
from modelless.variants.vocabulary import Engine, Task, TensorSpec
from modelless.variants.zoo import ENTRIES, find_entry

CODE = """
from modelless.controller.sim.worlds.arrivals import Arrivals
from modelless.policies.eviction.least_recently_used import LeastRecentlyUsed
from modelless.variants.making.maker import Made, Maker
from modelless.variants.metrics.classification import TopK
from modelless.variants.runtimes.engines import EngineEntry


class Policy(LeastRecentlyUsed):
    pass


class Copy(Maker):
    name = "copy"
    times: int = 1

    def make(self, model, calibration):
        return Made(model)


class Strict(TopK):
    pass


class Runtime:
    engine = "abacus"


class EveryOther(Arrivals):
    kind: str
    gap_s: float

    def arrivals(self, folder, scale, rng, until_s):
        at_s = 0.0
        while at_s < until_s:
            yield at_s, None
            at_s += self.gap_s / scale


class Entry:
    name = "beads"
    summary = "beads to count"


ABACUS = EngineEntry("all_kinds:Runtime", "pip install abacus", ("all-kinds",), "cpu", "beads")
NO_ENTRY = 5
"""
POINTS = """
[modelless.policies]
mine = all_kinds:Policy
[modelless.makers]
copy = all_kinds:Copy
not-one = all_kinds:Policy
[modelless.metrics]
strict = all_kinds:Strict
top-1 = all_kinds:Strict
answer = builtins:repr
[modelless.engines]
abacus = all_kinds:ABACUS
broken = all_kinds:NO_ENTRY
[modelless.traces]
every-other = all_kinds:EveryOther
no-trace = all_kinds:Policy
[modelless.zoo]
beads = all_kinds:Entry
gone = all_kinds:Gone
"""
CLASSES = Task("t", (), (TensorSpec("scores", "FP32", (-1, 3)),), "top-1", "")


def install(folder: Path, name: str, points: str) -> None:
    """Put a distribution with entry points into ``folder``, as pip would."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that offers an object of every kind."""
    (tmp_path / "all_kinds.py").write_text(CODE)
    install(tmp_path, "all_kinds", POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("all_kinds", None)


@pytest.mark.usefixtures("package")
class TestWhatAPackageOffers:
    def test_a_policy(self) -> None:
        policy = build_policy(EvictionPolicy, "mine")  # type: ignore[type-abstract]
        assert type(policy).__module__ == "all_kinds"

    def test_a_maker(self) -> None:
        assert build_maker("copy", {"times": 2}).model_dump() == {"times": 2}
        with pytest.raises(InvalidInputError, match="copy: time: got 2; there is no such key"):
            build_maker("copy", {"time": 2})
        with pytest.raises(InvalidInputError, match="the class Policy, derived from LeastRec"):
            build_maker("not-one", {})

    def test_a_metric(self) -> None:
        assert type(find_metric("strict", CLASSES)).__module__ == "all_kinds"
        assert "strict" in set(METRICS)
        with pytest.raises(InvalidInputError, match="answer"):
            find_metric("answer", CLASSES)

    def test_a_metric_cannot_take_a_built_in_name(self) -> None:
        assert type(find_metric("top-1", CLASSES)).__module__ != "all_kinds"

    def test_an_engine(self) -> None:
        engine = Engine("abacus")
        assert engine is Engine("abacus") is parse_engine("abacus")
        assert engine == "abacus"
        assert engine in ENGINES
        assert len(ENGINES) == len(list(ENGINES))
        assert type(find_runtime(engine)).__module__ == "all_kinds"
        assert engine_status(engine).available
        assert engine_status(engine).version == "1.0"
        with pytest.raises(InvalidInputError, match="an EngineEntry"):
            find_runtime(Engine("broken"))

    def test_a_kind_of_arrivals(self) -> None:
        settings: TypeAdapter[ArrivalsSettings] = TypeAdapter(ArrivalsSettings)
        found = settings.validate_python({"kind": "every-other", "gap_s": 2})
        times = [at_s for at_s, _ in found.arrivals(Path(), 2.0, np.random.default_rng(), 3.0)]
        assert times == [0.0, 1.0, 2.0]
        told = settings.dump_python(found, mode="json")
        assert told == {"kind": "every-other", "gap_s": 2.0}
        assert arrival_modules([{"arrivals": told}]) == {"all_kinds"}
        with pytest.raises(ValidationError, match="gap_s"):
            settings.validate_python({"kind": "every-other"})
        with pytest.raises(ValidationError, match="derived from Arrivals"):
            settings.validate_python({"kind": "no-trace"})

    def test_a_kind_of_arrivals_by_its_path(self) -> None:
        settings: TypeAdapter[ArrivalsSettings] = TypeAdapter(ArrivalsSettings)
        found = settings.validate_python({"kind": "all_kinds:EveryOther", "gap_s": 1})
        assert next(found.arrivals(Path(), 1.0, np.random.default_rng(), inf)) == (0.0, None)

    def test_a_zoo_entry(self) -> None:
        assert find_entry("beads").name == "beads"
        assert list(ENTRIES)[-2:] == ["beads", "gone"]
        with pytest.raises(EnvironmentUnfitError, match="has no attribute 'Gone'"):
            find_entry("gone")

    def test_two_packages_must_not_offer_the_same_name(self, package: Path) -> None:
        install(package, "second", "[modelless.metrics]\nstrict = elsewhere:Strict\n")
        with pytest.raises(InvalidInputError, match="These offer it: all_kinds, second"):
            find_metric("strict", CLASSES)


def test_without_the_package_names_are_unknown() -> None:
    with pytest.raises(ValueError, match=r"no-such-engine"):
        Engine("no-such-engine")
    with pytest.raises(NotFoundError, match=r"engine 'openvin' .* Did you mean 'openvino'"):
        parse_engine("openvin")
    with pytest.raises(NotFoundError, match="metric 'strict' does not exist; there are: top-1"):
        find_metric("strict", CLASSES)
    settings: TypeAdapter[ArrivalsSettings] = TypeAdapter(ArrivalsSettings)
    with pytest.raises(ValidationError, match=r"'poison' does not exist.*Did you mean 'poisson'"):
        settings.validate_python({"kind": "poison", "rate_per_s": 1})


@pytest.mark.usefixtures("package")
def test_paths_are_taken_only_by_kinds_that_say_so() -> None:
    closed = Plugins("thing", {"a": "all_kinds:Entry"})
    assert closed.find("a").name == "beads"
    with pytest.raises(NotFoundError, match="thing 'all_kinds:Entry' does not exist"):
        closed.find("all_kinds:Entry")
    assert Plugins("thing", {}, takes_paths=True).find("all_kinds:Entry") is closed.find("a")
    assert "all_kinds" in sys.modules
    for find in (lambda name: find_metric(name, CLASSES), parse_engine, find_entry):
        with pytest.raises(NotFoundError, match="does not exist"):
            find("all_kinds:Entry")
