# make setup: everything a fresh checkout needs, in .venv; again: nothing to do.   make test: what continuous integration runs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.everstep-ready
TESTS ?= tests
LANES ?= 4
SYSTEM_PACKAGES := iproute2 nftables openssl postgresql slurmctld slurmd slurm-client munge docker.io docker-compose debootstrap

.PHONY: help setup system labs demo quick test test-long check lint types contracts bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

setup: $(STAMP) system  ## virtual environment with everstep, its extras and the test tools

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --constraint constraints.txt --editable '.[torch,postgres,dev]'
	@touch $@

# What the tests start besides Python: namespaces and drop rules for cut networks, a PostgreSQL server, Slurm, a docker engine.
# Without root they are skipped.
system:
	@missing=$$(for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $$missing"; \
	  apt-get install -y -qq --no-install-recommends $$missing >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
	  echo "could not install $$missing: the tests that need them are skipped"; \
	else echo "missing $$missing: the tests that need them are skipped"; fi

labs: setup  ## the Kubernetes of the tests, compiled from Debian's sources: minutes, once
	tests/lab/kubernetes/prepare

quick: $(STAMP) check  ## lint, types, import contracts, unit tests and the ten most telling stories
	$(BIN)/python -m pytest -q -n 2 tests/unit @tests/ten_stories.txt

test: setup check  ## lint, types, import contracts, then all tests, several side by side
	$(BIN)/python -m pytest -n $(LANES) $(TESTS)

test-long: setup check  ## the same with all repetitions, seeds, kills and sizes
	EVERSTEP_TEST_LONG=1 $(BIN)/python -m pytest -n $(LANES) $(TESTS)

check: lint types contracts

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMP)  ## which part may import which
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

demo: $(STAMP)  ## kill a worker in the middle of training and watch it go on
	$(BIN)/python examples/demo.py

bench: setup  ## measurements, as JSON lines
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
