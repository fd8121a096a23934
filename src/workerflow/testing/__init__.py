"""Tools for testing workflows: an engine on a virtual clock, and a workflow crashed at every commit."""

from workerflow.testing.crashes import CrashReport, Difference, crash_everywhere
from workerflow.testing.simulated import SimulatedEngine

__all__ = ["CrashReport", "Difference", "SimulatedEngine", "crash_everywhere"]
