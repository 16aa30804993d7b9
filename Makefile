# The front door. `make help` lists the targets; test, lint and reproduce are what CI runs.
SHELL := /bin/bash
.DELETE_ON_ERROR:

export SOURCE_DATE_EPOCH := 1767225600
export MPLBACKEND := Agg
export PYTHONHASHSEED := 0
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
UV := $(shell command -v uv 2>/dev/null)

.PHONY: help setup test test-all lint format reproduce update runs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install the package with everything that reproduce, test and lint need

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || $(if $(UV),uv venv -q --seed --python $(PYTHON),$(PYTHON) -m venv) $(VENV)
ifdef UV
	uv pip install -q --python $(PY) --torch-backend cpu -c constraints.txt -e '.[dev]'
else
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
endif
	touch $(STAMP)

test: $(STAMP) ## the fast tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --dist loadfile

test-all: $(STAMP) ## the slow tests too
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --dist loadfile -m "not gpu"

lint: $(STAMP) ## ruff, import-linter, mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

format: $(STAMP) ## let ruff rewrite the layout
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

reproduce: $(STAMP) ## theory, a live GRPO comparison on the CPU, fits, figures, schedule, claims; compares all with what is committed
	$(PY) -m analysis reproduce

update: $(STAMP) ## rebuild the derived artefacts and accept what changed
	$(PY) -m analysis update

runs: $(STAMP) ## the GPU road: the pilot sweeps, added to experiments/results (runs that are there already are skipped)
	for sweep in pilot_progress pilot_failure pilot_onset; do \
	  $(PY) -m experiments.sweep run=$$sweep jobs=16 || exit 1; \
	  ! ls outputs/$$sweep/*/run.json >/dev/null 2>&1 || $(PY) -m experiments.collect outputs/$$sweep || exit 1; done

clean: ## delete what the targets above leave in ignored folders
	rm -rf build outputs
