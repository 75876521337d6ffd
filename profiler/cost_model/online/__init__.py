"""The online part of the cost model: what outcomes teach beyond the measurements.

``Corrections`` is the entry point. It divides each outcome among a location for each placement and
load (``Residuals``, ``ContentionCurve``) and the quantiles around it (``Tails``), detects changes
(``ShiftDetector``) and counts how good the predictions were (``CoverageCounter``). It uses plain
floats and lists to learn one outcome, and arrays to predict many placements.
"""
