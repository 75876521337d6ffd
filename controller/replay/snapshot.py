"""Snapshots of a gateway's knowledge at its start, as data that rebuilds its cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from modelless.controller.config import Settings, parse_settings
from modelless.controller.replay.codec import decode
from modelless.profiler.cost_model.model_inputs import CostInputs
from modelless.profiler.cost_model.slowdowns import PairRun
from modelless.profiler.cost_model.unmeasured.figures import PredictedFigures
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import DeviceClass, Variant


class Snapshot(NamedTuple):
    """All inputs of a gateway's decisions besides the events."""

    settings: Settings
    variants: Mapping[str, Variant]
    device_classes: Mapping[str, DeviceClass]
    cost_inputs: CostInputs

    def document(self) -> dict[str, Any]:
        """Return the snapshot as data that ``codec.encode`` takes."""
        inputs = self.cost_inputs
        return {
            "settings": self.settings.model_dump(mode="json"),
            "variants": list(self.variants.values()),
            "device_classes": list(self.device_classes.values()),
            "measurements": list(inputs.measurements),
            "pair_runs": list(inputs.pair_runs),
            "supposed": list(inputs.predicted),
            "sized": list(inputs.sized),
        }


def read_snapshot(document: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot in a tape's header.

    Raises:
        InvalidInputError: settings that this version does not know.
    """
    variants = decode(tuple[Variant, ...], document["variants"])
    classes = decode(tuple[DeviceClass, ...], document["device_classes"])
    settings = parse_settings(document["settings"], "the recording's settings")
    return Snapshot(
        settings,
        {variant.id: variant for variant in variants},
        {device.name: device for device in classes},
        CostInputs(
            decode(tuple[Measurement, ...], document["measurements"]),
            decode(tuple[PairRun, ...], document["pair_runs"]),
            decode(tuple[PredictedFigures, ...], document["supposed"]),
            settings.learn_online,
            decode(tuple[Measurement, ...], document.get("sized", ())),
        ),
    )
