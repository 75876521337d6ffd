"""Scaling policies: one file each."""
