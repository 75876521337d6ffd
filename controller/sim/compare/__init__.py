"""Comparing systems on the same worlds, paired by seed."""
