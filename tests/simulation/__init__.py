"""Whole runs under random faults, each drawn from one seed: ``python -m tests.simulation --seed 1``."""
