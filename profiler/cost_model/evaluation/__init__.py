"""Tests the predictor of ``unmeasured`` beside baselines, for ``modelless costmodel evaluate``."""
