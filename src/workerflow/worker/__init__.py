"""Hosting live instances: claim, drive, commit, hibernate, release."""
