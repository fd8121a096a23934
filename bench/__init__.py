"""Measurements, each beside its raw limit in the same run."""
