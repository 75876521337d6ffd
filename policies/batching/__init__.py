"""Batching policies: one file each."""
