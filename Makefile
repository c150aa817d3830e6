# make paper and make test need python3, make and a C compiler; they set everything up in .venv and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two threads: more slow down small matmuls.
export OMP_NUM_THREADS ?= 2

.PHONY: setup paper test test-all check fmt bench bench-gpu gpu gpu-packages proofs theory-pdf crash crash-full docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"looped needs Python 3.11 or newer, this is {v[0]}.{v[1]}")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Check the theory and the shipped models, train the laptop's table, and write the report; its path is printed last.
paper: setup
	$(BIN)/looped theory verify
	$(BIN)/looped models check --seconds 90
	$(BIN)/looped paper run table1-dense --scale laptop --cells 'ED40:*' --again
	$(BIN)/looped paper report

# Two processes of one thread each, because more threads would compete for the two cores.
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

# The documentation with the demo as a site, site/index.html. A broken link is an error.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/zensical build --clean --strict
	$(BIN)/looped demo --out site/demo --no-open

bench: setup
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-gpu: setup
	$(BIN)/looped bench train --preset reasoning --out benchmarks/results/train-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench infer --preset reasoning --batches 512 --out benchmarks/results/infer-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench train --preset lm --out benchmarks/results/train-lm-gpu-$$(date +%Y-%m).json
	$(BIN)/looped bench scaling --preset reasoning --out benchmarks/results/scaling-reasoning-gpu-$$(date +%Y-%m).json
	$(BIN)/python benchmarks/engines.py --out benchmarks/results/engines-gpu-$$(date +%Y-%m).json

# The theory paper, theory-paper/theory.pdf; the package draws its figures.
theory-pdf: setup
	@command -v latexmk >/dev/null || { echo "latexmk is missing: theory-paper/Makefile says what to install"; exit 2; }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(MAKE) -C theory-paper PYTHON='$(CURDIR)/$(BIN)/python'

# The machine-checked proofs. They need Coq and nothing else.
proofs:
	@command -v coqc >/dev/null || { echo "coqc is missing: apt-get install coq"; exit 1; }
	$(MAKE) -C proofs

# Kernels run in an interpreter elsewhere; these tests run them on a GPU.
# They use the set-up environment if there is one, and otherwise `python3`, because a GPU machine may be offline. What
# that python3 lacks, `make gpu-packages` fetches on another machine; copy its folder along.
GPU_PACKAGES := .gpu-packages
GPU_PACKAGES_FOR ?= 3.12
gpu: GPU_PYTHON = $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
gpu: export PYTHONPATH = src:$(GPU_PACKAGES)
# A test of more than a minute shows where it waits.
gpu: GPU_PYTEST = $(GPU_PYTHON) -m pytest -o faulthandler_timeout=60 --durations 10
gpu:
	$(GPU_PYTEST) tests/kernels -m 'not gpu'
	$(GPU_PYTEST) -m gpu $$(grep -rl 'mark\.gpu' tests --include='*.py')

# The small packages that an image with PyTorch usually lacks, for Python $(GPU_PACKAGES_FOR).
gpu-packages: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(GPU_PACKAGES) --no-deps \
	  --only-binary :all: --python-version $(GPU_PACKAGES_FOR) --constraint constraints.txt \
	  docstring-parser hypothesis msgspec sortedcontainers tyro typeguard typing-extensions

# What the command line does when it is killed, when disks fail, and with files that are damaged or hostile: a seeded
# sample, as much of it as fits into the minutes.
MINUTES ?= 15
crash: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m faults --jobs 2 --minutes $(MINUTES)

# Every fault instead of a sample. Takes hours; stopped, it goes on from its journal. The table is kept.
crash-full: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m faults --full --jobs 2 --journal .crash --out dev/crash-full.md

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache
