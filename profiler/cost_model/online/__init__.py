"""The cost model's online half: what outcomes teach beyond what was measured.

``Corrections`` is the way in. It divides what an outcome says among a location for each placement
and load (``Residuals``, ``ContentionCurve``), the quantiles around it (``Tails``), watches for
change (``ShiftDetector``) and keeps count of how good the predictions were (``CoverageCounter``).
Plain floats and lists where one outcome is learned, arrays where many placements are predicted.
"""
