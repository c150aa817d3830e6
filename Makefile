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

# Processes of one thread each, because more threads would compete for the cores.
test test-all check gpu: export OMP_NUM_THREADS = 1

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
	for script in $(filter-out $(addprefix benchmarks/,all_gpu.py precision.py shapes.py),$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The theory paper, theory-paper/theory.pdf; the package draws its figures.
theory-pdf: setup
	@command -v latexmk >/dev/null || { echo "latexmk is missing: theory-paper/Makefile says what to install"; exit 2; }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(MAKE) -C theory-paper PYTHON='$(CURDIR)/$(BIN)/python'

# The machine-checked proofs. They need Coq and nothing else.
proofs:
	@command -v coqc >/dev/null || { echo "coqc is missing: apt-get install coq"; exit 1; }
	$(MAKE) -C proofs

# Kernels run in an interpreter elsewhere; these tests run them on a GPU, and bench-gpu measures them.
# Both use the set-up environment if there is one, and otherwise `python3`, because a GPU machine may be offline. What
# that python3 lacks, `make gpu-packages` fetches on another machine; copy its folder along.
GPU_PACKAGES := .gpu-packages
GPU_PACKAGES_FOR ?= 3.12
gpu bench-gpu: GPU_PYTHON = $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
gpu bench-gpu: export PYTHONPATH = $(abspath src):$(abspath $(GPU_PACKAGES))

# JOBS tests run at a time. One that takes more than TEST_SECONDS shows where it waits and ends its process, and a new
# process runs the others. $(GPU_RESULTS)/tests.log gets every outcome at once, with all messages of a failure.
JOBS ?= 8
TEST_SECONDS ?= 120
GPU_RESULTS ?= .gpu-results
# Whole trainings first: they take longest.
GPU_FIRST := $(addprefix tests/,training/test_faults_gpu.py training/test_distributed_gpu.py models/test_engines_gpu.py \
  experiments/test_experiments_gpu.py inference/test_generate_gpu.py training/test_halting_gpu.py)
gpu: export TEST_LOG = $(abspath $(GPU_RESULTS))/tests.log
gpu: export TORCHINDUCTOR_COMPILE_THREADS = 1
gpu: GPU_PYTEST = $(GPU_PYTHON) -m pytest -n $(JOBS) --dist load --maxschedchunk 1 --durations 15 \
  -o faulthandler_timeout=$(TEST_SECONDS) -o faulthandler_exit_on_timeout=true
gpu:
	mkdir -p $(GPU_RESULTS) && rm -f $(GPU_RESULTS)/tests.log
	failed=0; \
	$(GPU_PYTEST) -m gpu $(GPU_FIRST) $$(grep -rl 'mark\.gpu' tests --include='*.py') || failed=1; \
	$(GPU_PYTEST) -m 'not gpu' tests/kernels || failed=1; \
	exit $$failed

# All benchmarks of a GPU that the documentation quotes, as far as they fit into the minutes.
BENCH_RESULTS ?= benchmarks/results
bench-gpu:
	$(GPU_PYTHON) benchmarks/all_gpu.py --minutes $(MINUTES) --out $(BENCH_RESULTS)

# The small packages that an image with PyTorch usually lacks, for Python $(GPU_PACKAGES_FOR).
gpu-packages: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-compile --target $(GPU_PACKAGES) --no-deps \
	  --only-binary :all: --python-version $(GPU_PACKAGES_FOR) --constraint constraints.txt \
	  docstring-parser execnet hypothesis iniconfig jaxtyping msgspec packaging pluggy pytest pytest-xdist rich \
	  safetensors sortedcontainers tyro typeguard typing-extensions wadler-lindig

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
