# Set-up, quickstart and checks. Needs bash and Python 3.11 on x86-64 Linux; everything goes into .venv.

PYTHON ?= $(firstword $(shell command -v python3.11 python3) python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

TORCH := torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

DISTRIBUTIONS := . $(addprefix plugins/vime_,grpo qwen3 math_verifier megatron vllm rocm)
PACKAGES := vime_core $(foreach name,$(notdir $(filter plugins/%,$(DISTRIBUTIONS))),plugins/$(name)/$(name))

SEED ?= 0
# More settings for the quickstart, e.g. make quickstart OVERRIDES="train.steps=20 train.lr=1e-4"
OVERRIDES ?=
# More arguments for pytest, e.g. make test PYTEST_ARGS="-k packing -x"
PYTEST_ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install quickstart quickstart-moe layouts test test-full lint lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## create .venv with everything for a CPU

$(INSTALLED): requirements/cpu.txt $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit(f"requirements/cpu.txt needs Python 3.11 or later, $(PYTHON) is {v[0]}.{v[1]}: set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) from where pip is set to look, else from $(TORCH_INDEX)"
	$(BIN)/pip install -q --no-deps $(TORCH) || $(BIN)/pip install -q --no-deps --index-url $(TORCH_INDEX) $(TORCH)
	$(BIN)/pip install -q --no-deps -r requirements/cpu.txt
	$(BIN)/pip install -q --no-deps --no-build-isolation $(addprefix -e ,$(DISTRIBUTIONS))
	@touch $@

quickstart: install  ## install, then train a tiny Qwen3 to add (SEED=0)
	$(BIN)/python -m examples.quickstart.run run.seed=$(SEED) $(OVERRIDES)

quickstart-moe: install  ## the same with experts in the model
	$(BIN)/python -m examples.quickstart.run experiment=quickstart_moe run.seed=$(SEED) $(OVERRIDES)

layouts: install  ## compare training under every parallel layout with one rank
	$(BIN)/python -W ignore plugins/vime_megatron/tests/layouts.py

lint: install  ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES) examples requirements
	$(BIN)/lint-imports

test: lint  ## install, lint, and the tests that `full` does not mark
	$(BIN)/python -m pytest -m "not full" $(PYTEST_ARGS)

test-full: lint  ## install, lint, and all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lock: install  ## write requirements/cpu.txt anew from cpu.in and .venv
	$(BIN)/python requirements/lock.py

clean:  ## remove caches and built packages; keeps .venv and outputs
	rm -rf build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
