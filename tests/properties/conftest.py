"""The profile for a longer search, by hand: ``pytest tests/properties --hypothesis-profile thorough``."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("thorough", settings.get_profile("workerflow"), max_examples=1000)
