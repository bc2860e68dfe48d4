# Each target sets up what it needs in .venv; nothing has to be installed by hand but python3 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-versions lint format bench sanitize sanitize-gpu clean

help:
	@echo 'make demo      train small networks with and without BNP, print a table, write a page (about 2 minutes)'
	@echo 'make test      the test suite (about 5 minutes on two cores)'
	@echo 'make test-slow the slow tests (a few minutes more); make test-all: both'
	@echo 'make test-versions  the tests that depend on torch, with several versions of it (downloads gigabytes; an hour)'
	@echo 'make lint      ruff, mypy, the import contract'
	@echo 'make format    let ruff put the code in order'
	@echo 'make bench     speed, as ratios: BNP beside BN, probes beside other libraries (installs them; ten minutes)'
	@echo 'make sanitize  20,000 random cases with C kernels that report each wrong access (needs gcc; 15 minutes on two cores)'
	@echo 'make sanitize-gpu  the tests of the GPU kernels under compute-sanitizer (needs a GPU and the CUDA toolkit)'
	@echo 'make clean     remove .venv and caches'

# The stamp is written last: an interrupted set-up is taken up again.
$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard src/trimtab/bnp/backends/native*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'trimtab needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...' >&2; exit 1; }
	@echo 'Setting up .venv (PyTorch is large; this takes a minute or more the first time)'
	@$(PYTHON) -m venv $(VENV) || \
	  { echo 'python3 could not make a virtual environment; on Debian and Ubuntu install python3-venv.' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[lab,dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/trimtab demo

test: $(READY)
	@$(BIN)/python -m pytest -n 2 -m 'not slow'

test-slow: $(READY)
	@$(BIN)/python -m pytest -n 2 -m slow

test-all: test test-slow

# Each version of torch in an environment of its own, in .venv-torch.
test-versions: $(READY)
	@$(BIN)/python -m tests.versions

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# What others' packages need may not replace the torch that is there.
$(VENV)/.bench: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/hessian.py
	@$(BIN)/python benchmarks/landscape_cost.py

sanitize: $(READY)
	@$(BIN)/python -m tests.bnp.sanitize

# Each tensor is memory of its own then, so that an access beyond it is seen. Graphs and measurements of memory need the
# allocator that is off; the tests of those are left out. Only our kernels are looked at: all others would take an hour.
sanitize-gpu: $(READY)
	@PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
	  --kernel-name kernel_substring=moments_of --kernel-name kernel_substring=precondition \
	  $(BIN)/python -m pytest -q -p no:cacheprovider tests/bnp/test_backends_gpu.py -k 'not captured and not hold_no_memory'

clean:
	rm -rf $(VENV) .venv-torch .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
