"""Settings of the test run that pyproject.toml cannot hold."""

from hypothesis import settings

# A failing example is printed in a form that can be pinned with @reproduce_failure. There is no deadline for one
# example: a slow machine is not a failure, and pytest's time limit catches a hang.
settings.register_profile("workerflow", print_blob=True, deadline=None)
settings.load_profile("workerflow")
