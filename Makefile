# make setup: everything a fresh checkout needs, in .venv; again: nothing to do.   make test: what continuous integration runs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.everstep-ready
EVERYTHING := .[torch,postgres,search,dev]
DEMO_STAMP := $(VENV)/.everstep-demo
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.everstep-ready
TESTS ?= tests
LANES ?= 3
PART ?= worlds deaths models doors schedules costs
FAULTS ?= 1000
SEED ?= 1
# Hundreds of short processes are started: none of them should compile what another has compiled already.
unexport PYTHONDONTWRITEBYTECODE
SYSTEM_PACKAGES := iproute2 nftables openssl postgresql slurmctld slurmd slurm-client munge docker.io docker-compose debootstrap chromium

.PHONY: help setup system page page-pictures labs demo quick test test-long test-cuda soak mutants check lint types contracts house bench peers clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

setup: $(STAMP) system page  ## virtual environment with everstep, its extras and the test tools

# Bytecode on all cores, but for oci and kubernetes.aio, which are large and mostly unused. Not left to the first import:
# tests mount the environment read-only. A file that does not compile is a template or for another Python.
$(STAMP): pyproject.toml constraints.txt
	$(call install,$(VENV),--editable '$(EVERYTHING)')
	-@$(BIN)/python -m compileall -qq -j 0 -x 'site-packages/(oci|kubernetes/aio)/' $(VENV)/lib
	$(BIN)/python -c 'import ocifs, oci.core, oci.data_science, oci.loggingsearch, oci.secrets'
	@touch $@

# $(call install,ENVIRONMENT,PACKAGES): without bytecode, which pip would write in one process and for all of oci.
define install
$(PYTHON) -m venv $(1)
$(1)/bin/pip install -qq --no-compile --constraint constraints.txt $(2)
endef

# What the tests start besides Python: namespaces and drop rules for cut networks, a PostgreSQL server, Slurm, a docker engine, a browser.
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

# By package-lock.json: what the page is built with, and for its tests axe-core, which finds what keeps people out, and
# TypeScript, which reads the types in comments.
node_modules: package.json package-lock.json | system
	@if ! command -v npm >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing npm"; apt-get install -y -qq --no-install-recommends npm >/dev/null 2>&1; fi; \
	if command -v npm >/dev/null && npm ci --ignore-scripts --no-audit --no-fund --silent; then touch $@; \
	else echo "npm could not install the page's packages: the tests that need them are skipped"; fi

# Without it all but the page works, and the page says what to do.
page: node_modules  ## build the page's scripts, if one of them has changed
	@$(PYTHON) tools/page_vendor.py || echo "the page is missing or outdated until make page has built it"

# Every view, light and dark, for a phone and for a desk; to be looked at, not compared.
page-pictures: setup  ## pictures of every view of the page, in build/page-pictures
	PYTHONPATH=tests $(BIN)/python tools/page_pictures.py build/page-pictures

labs: setup  ## the Kubernetes of the tests, compiled from Debian's sources: minutes, once
	tests/lab/kubernetes/prepare

quick: $(STAMP) check  ## lint, types, import contracts, the house, unit tests and the ten most telling stories
	$(BIN)/python -m pytest -q -n $(LANES) tests/unit @tests/ten_stories.txt

test: setup check  ## lint, types, import contracts, the house, then all tests, several side by side
	$(BIN)/python -m pytest -n $(LANES) $(TESTS)

test-long: setup check  ## the same with all repetitions, seeds, kills and sizes
	EVERSTEP_TEST_LONG=1 $(BIN)/python -m pytest -n $(LANES) $(TESTS)

# Each part ends within 8 minutes on one GPU. Nothing is installed: such machines often have their own torch.
test-cuda:  ## stories on a GPU over NCCL (PART="worlds deaths models doors schedules costs", or some of them)
	@failed=; for part in $(PART); do \
	  began=$$SECONDS; \
	  $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m pytest tests/cuda/test_$$part.py || failed="$$failed $$part"; \
	  echo "part $$part: $$((SECONDS - began)) s"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

soak: setup  ## random faults at random times on every door (FAULTS=how many SEED=the first schedule KEEP=a folder for what fails)
	PYTHONPATH=tests $(BIN)/python -m soak --faults $(FAULTS) --seed $(SEED) $(if $(KEEP),--keep $(KEEP))

mutants: $(STAMP)  ## which test catches which deliberate fault (ONLY="name ..." for some)
	$(BIN)/python tests/mutants/run.py $(ONLY)

check: lint types contracts house

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMP)  ## which part may import which
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

house: $(STAMP)  ## rooms, names, phrases and places within their bounds
	$(BIN)/python tools/house.py --check

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))  ## kill a worker in the middle of training and watch the others continue
	$(BIN)/python examples/demo.py

# Only what the demo needs, if `make setup` has not been here; it adds the rest later.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,$(VENV),--editable . torch numpy)
	@touch $@

bench: setup  ## measurements, as JSON lines; null for peers that are not installed
	$(BIN)/python -m benchmarks

peers: $(PEERS_STAMP)  ## the systems that benchmarks compare with, in an environment of their own

# MLflow needs an older graphql-core than the tests; without it, its pages show an error.
# Bytecode as for our own environment: peers start processes while the time is taken.
$(PEERS_STAMP): benchmarks/peers.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	grep -v '^graphql-core==' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/pip install -qq --no-compile --constraint $(PEERS)/constraints.txt --editable . numpy --requirement benchmarks/peers.txt
	-@$(PEERS)/bin/python -m compileall -qq -j 0 -x 'site-packages/(mlflow|ray/(rllib|serve|dashboard))/' $(PEERS)/lib
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
