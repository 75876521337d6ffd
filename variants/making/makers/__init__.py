"""Makers of variants, one file each."""
