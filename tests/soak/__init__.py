"""Sustained load, and whether anything grows without bound under it."""
