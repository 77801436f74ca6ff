# Each goal makes its own .venv if it is missing, and makes it anew when the pins change.
#   make demo     the whole idea on this machine: two Ray clusters, four stages, MLflow
#   make test     the tests
#   make test-long  more of the same: every layout, longer chaos
#   make check    lint, format, types, floors
#   make bench    the benchmarks, each with its ratio
#   make test-gpu, make bench-gpu    the same on one GPU, where there is one
#   make setup    only the .venv

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PINS   := $(shell { cat constraints.txt; sed -n '/^\[build-system\]/,/^\[tool/p' pyproject.toml; } | cksum | tr -d ' ')
READY  := $(VENV)/.pins-$(PINS)

.PHONY: setup demo test test-clusters test-others test-long test-gpu check bench bench-gpu pictures

setup: $(READY)

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' \
	  || { echo "octad needs Python 3.11 or 3.12: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[server,train,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/octad demo

# Those with clusters mostly wait for processes to start: the others run beside them.
test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line test-clusters test-others

test-clusters:
	$(BIN)/pytest tests/integration -m 'ray and not long'

test-others:
	$(BIN)/pytest -m 'not ray and not long' --numprocesses 3 --dist loadfile

test-long: $(READY)
	$(BIN)/pytest tests/integration -m 'ray and long'
	$(BIN)/pytest -m 'long and not ray' --numprocesses 2 --dist loadfile

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python tests/bench/run.py

test-gpu: $(READY)
	$(BIN)/pytest -m gpu tests/gpu

bench-gpu: $(READY)
	$(BIN)/python tests/bench/gpu.py

pictures: $(READY)
	$(BIN)/python docs/pictures/make.py
