"""The learned part of the cost model: predictions of points that were not measured.

``features`` turns points into columns of numbers. ``roofline`` estimates their latency
analytically. ``gaussian_process`` learns what the roofline misses, with the covariance of
``kernel``. ``item_effects`` and ``proxies`` use what is known of the same items on other devices.
``mixture`` weighs them against what the device itself shows. ``predictor`` combines these parts for
any device; ``fleet_model`` asks it for the placements of this machine. ``unmeasured`` fills the
gaps in profiles, and
``experiment_design`` chooses what to measure next. ``evaluation`` compares the predictor with
``baselines``. ``prior`` and ``snapshot`` read the shipped figures, which ``training`` makes.
"""
