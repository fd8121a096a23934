"""``python -m bench``: all measurements there are."""

from bench.throughput import main

main()
