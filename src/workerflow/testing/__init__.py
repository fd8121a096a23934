"""Tools for testing workflows: an engine on a virtual clock."""

from workerflow.testing.simulated import SimulatedEngine

__all__ = ["SimulatedEngine"]
