"""Examples: each module runs with ``python -m examples.NAME`` and is run by the tests."""
