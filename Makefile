# Needs Python 3.11 or newer, git and make; everything else goes into $(VENV).

VENV ?= .venv
# The Python to make $(VENV) with. Empty: the first of 3.13, 3.12 and 3.11 that runs.
PYTHON ?=
# How the engines of the tests run: see tests/conftest.py.
MODES ?= normal always-replay hibernating

BIN := $(VENV)/bin
RUN := $(BIN)/python -m
STAMP := $(VENV)/installed
CODE := src tests $(wildcard examples bench)

# A python3.13 on the path may be a version manager's stand-in that only fails, or lack venv: so each is tried.
WORKS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help setup format check test spec faults simulate demo bench clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make .venv with the package and the developer's tools; PYTHON=… picks the Python

$(STAMP): pyproject.toml
	@set -e; found=; if ! $(BIN)/python -c '$(WORKS)' >/dev/null 2>&1; then \
	    for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do \
	        if "$$python" -c '$(WORKS)' >/dev/null 2>&1; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "no Python 3.11 or newer with venv works here; say which to use: make setup PYTHON=…" >&2; exit 1; \
	    fi; \
	    echo "making $(VENV) with $$found"; \
	    "$$found" -m venv --clear $(VENV); \
	fi
	@$(RUN) pip install --quiet --disable-pip-version-check 'pip>=25.1' # the first with --group
	@$(RUN) pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

format: $(STAMP) ## Lay out the code and mend what the linter can mend
	$(RUN) ruff format $(CODE)
	$(RUN) ruff check --fix $(CODE)

check: $(STAMP) ## Check layout, lint, types, layers and tidiness
	$(RUN) ruff format --check $(CODE)
	$(RUN) ruff check $(CODE)
	$(RUN) mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	$(RUN) pytest --quiet tests/test_tidy.py

test: $(STAMP) ## Run all tests, and the quick ones in the other modes; MODES=normal ARGS="-k name -x" runs less
	@set -e; for mode in $(MODES); do \
	    if [ $$mode = normal ]; then some=; else some='not slow'; fi; \
	    echo "$(RUN) pytest --numprocesses auto --mode $$mode -m '$$some' $(ARGS)"; \
	    $(RUN) pytest --numprocesses auto --mode $$mode -m "$$some" $(ARGS); \
	done

spec: $(STAMP) ## Show every behaviour, the tests that show it, and whether they pass
	$(RUN) pytest -p tests.laws --quiet

faults: $(STAMP) ## Inject every fault at every point and show the table; takes long
	$(RUN) tests.faults

simulate: $(STAMP) ## Run SEEDS=10000 random programs with random faults from FROM=0
	$(RUN) tests.simulation --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)

demo: $(STAMP) ## Watch a workflow survive a crash
	$(RUN) examples.demo

bench: $(STAMP) ## Measure
	$(RUN) bench

clean: ## Remove everything that was made
	rm -rf .venv .venv-3.* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
