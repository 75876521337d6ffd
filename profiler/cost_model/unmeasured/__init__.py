"""Predicts points that were not measured: new placements, and batch sizes beyond the measured ones.

The way of a prediction: ``figures`` fills the gaps of a machine's profile, and asks
``machine_predictor`` for latencies. That has a ``device_predictor`` for each device class, which
weighs its experts with ``mixture_of_experts``: two Gaussian processes and the closest devices.

The experts' parts: ``features`` turns points into columns of numbers, ``roofline`` estimates their
latency analytically, ``gaussian_process`` learns what the roofline misses, with the covariance of
``kernel``. ``item_effects`` and ``proxies`` use what other devices tell of the same items.
``prior`` and ``snapshot`` read the shipped figures. ``experiment_design`` chooses what to measure
next.
"""
