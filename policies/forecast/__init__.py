"""Forecasters: one file each, and ``intake``, by which they are told."""
