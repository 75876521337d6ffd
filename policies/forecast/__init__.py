"""Forecasters: one file each, and ``observed_rates``, which prepares their input."""
