# make paper and make test need python3, make and a C compiler; they set everything up in .venv and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two explicit threads: more only quarrel on small matrices.
export OMP_NUM_THREADS ?= 2

.PHONY: setup paper test test-all check fmt bench bench-gpu gpu clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"looped needs Python 3.11 or newer, this is {v[0]}.{v[1]}")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The theory checked, the laptop's table trained, and a page about it all, whose path is printed last.
paper: setup
	$(BIN)/looped theory verify
	$(BIN)/looped models check --seconds 90
	$(BIN)/looped paper run table1 --scale laptop --cells 'ED40:*' --again
	$(BIN)/looped paper report

# Two processes of one thread each: threads of both on two cores would wait for each other.
test test-all check: export OMP_NUM_THREADS = 1

test: setup
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n 2

test-all: setup
	$(BIN)/python -m pytest -m 'not gpu' -n 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n 2 tests/test_architecture.py tests/test_config.py tests/utils tests/training/test_schedules.py tests/training/test_evaluation.py

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, site/index.html. A broken link is an error.
.PHONY: docs
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/zensical build --clean --strict

bench: setup
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-gpu: setup
	$(BIN)/looped bench train --preset reasoning --out benchmarks/results/train-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench infer --preset reasoning --batches 512 --out benchmarks/results/infer-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench train --preset lm --out benchmarks/results/train-lm-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench scaling --preset reasoning --out benchmarks/results/scaling-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/python benchmarks/engines.py --out benchmarks/results/engines-gpu-$$(date +%Y-%m).json

# The kernels themselves, which elsewhere run in an interpreter, and what needs a card.
gpu: setup
	$(BIN)/python -m pytest tests/kernels -m 'not gpu'
	$(BIN)/python -m pytest -m gpu

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
