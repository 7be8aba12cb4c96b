# Two commands need no set-up: `make run` and `make test`. Each makes .venv, installs, and goes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FLAGS  ?=
# A file of tests stays on one core, so that its servers and databases are started once.
PYTEST  = $(BIN)/python -m pytest --numprocesses $(1) --dist loadfile --no-loadscope-reorder $(FLAGS)
# Tests within one process wait a third of their time, for sockets and timers: one more than there are cores.
BESIDE  = $(shell $(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')
# Hundreds of processes are started here: without bytecode each would compile all of kb that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-here test-all test-processes conformance mutants check format load bench contracts site dist lock clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: $(VENV)/.run ## engine and MCP server, ready for an agent
	@exec $(BIN)/kb up $(FLAGS)

test: $(VENV)/.test ## checks, and every test that needs no process of its own: for all day
	@$(MAKE) --no-print-directory --jobs 2 check test-here # mypy has one core for itself, the tests the rest

test-here: $(VENV)/.test
	$(call PYTEST,$(BESIDE)) -m "not process"

test-all: test test-processes conformance mutants ## all that needs no container

test-processes: $(VENV)/.test ## the tests that `make test` leaves out: processes, models
	$(call PYTEST,auto) -m process

conformance: $(VENV)/.test ## MCP's own suite and clients; the first time it fetches Node's packages
	$(BIN)/python -m tests.conformance.run

mutants: $(VENV)/.test ## break the simulator one promise at a time: `kb verify` has to notice
	$(BIN)/python -m tests.mutation.run

check: $(VENV)/.test ## style, types, imports, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m kb_contracts.openapi --check

format: $(VENV)/.test ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

load: $(VENV)/.load ## a short load test, with a report in out/load
	@$(BIN)/python -m kb_load.run $(FLAGS)

# Without BENCH each runs for a second, cold: their answers are checked, and their figures are none to publish.
BENCH ?=
bench: $(VENV)/.load ## benchmarks, for a second each; one with BENCH="hosts --seconds 5"
ifeq ($(BENCH),)
	$(BIN)/python -m bench hosts --rounds 1 --seconds 1 --warm 0
	$(BIN)/python -m bench workers --rounds 1 --seconds 1 --warm 0
	$(BIN)/python -m bench single --rounds 1 --seconds 1 --warm 0 --notes 20
	$(BIN)/python -m bench uploads --rounds 1 --mib 8
else
	@$(BIN)/python -m bench $(BENCH)
endif

contracts: $(VENV)/.test ## write the generated contract documents
	$(BIN)/python -m kb_contracts.openapi

site: $(VENV)/.docs ## the documentation as a site, in out/site
	@rm -rf out/site
	$(BIN)/sphinx-build --conf-dir docs/site --doctree-dir out/site-state --fail-on-warning --keep-going --quiet . out/site

dist: $(VENV)/.pip ## wheel, sdist and the bundle for Claude Desktop, in dist
	$(BIN)/hatchling build --directory dist
	$(BIN)/python deploy/bundle.py dist

lock: | $(VENV)/bin/python ## write requirements.lock; all newest with FLAGS=--upgrade
	@$(PIP_INSTALL) "uv>=0.9"
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --annotation-style line \
	  --custom-compile-command "make lock" --extra test --extra lock --output-file requirements.lock $(FLAGS) pyproject.toml

clean: ## remove what was installed and cached, never data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out dist

# An old Python is told in one line, before pip can tell it in fifty.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "kb needs Python 3.11 or later; $$($(PYTHON) --version 2>&1 || echo $(PYTHON) is missing). Try: make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What extras ask for, each package in the version and with a hash of requirements.lock, and kb itself from here.
# For `make run` pip compiles nothing: Python compiles what is imported, a fifth of the modules, at the first start.
REQUIREMENTS = $(BIN)/python deploy/image/requirements.py
PIP_INSTALL  = $(BIN)/python -m pip install --quiet --disable-pip-version-check
define install
@$(REQUIREMENTS) $(1) >$(VENV)/wanted.txt
@$(PIP_INSTALL) $(2) --requirement $(VENV)/wanted.txt
@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
endef

$(VENV)/.pip: requirements.lock | $(VENV)/bin/python
	@$(REQUIREMENTS) --pip >$(VENV)/pip.txt
	@$(PIP_INSTALL) --require-hashes --no-compile --requirement $(VENV)/pip.txt
	@$(PIP_INSTALL) --require-hashes --no-compile --constraint requirements.lock hatchling
	@touch $@

$(VENV)/.run: pyproject.toml $(VENV)/.pip
	@echo "installing kb (a minute the first time)"
	$(call install,server engine,--no-compile)
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.pip
	@echo "installing kb and what its tests need (a minute or two the first time)"
	$(call install,test)
	@touch $@ $(VENV)/.run $(VENV)/.load $(VENV)/.docs

$(VENV)/.load: pyproject.toml $(VENV)/.pip
	@echo "installing kb and what a load test needs (a minute or two the first time)"
	$(call install,load)
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.pip
	@echo "installing what makes the site"
	$(call install,docs)
	@touch $@
