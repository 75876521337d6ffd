"""The learned half of the cost model: predicting what was not measured, and saying how surely.

``points`` are turned into features, ``roofline`` gives the analytical estimate
(scaled by ``device_speed``), ``kernel`` says
which points tell of which, ``process`` is the Gaussian-process regression of what the roofline
misses, ``mixture`` lets it lean on devices that have the same items, ``calibration`` makes its
bands as wide as they have to be, ``predictor`` is all of these together. ``design`` chooses what to
measure next, ``evaluation`` tries it all on any table beside ``baselines``. ``prior`` reads the
shipped figures, which ``training`` makes.
"""
