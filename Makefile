# Every target sets up what it needs: a virtual environment in .venv and the package in it, in editable form.
# An environment made before the last change of pyproject.toml is brought up to date first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DIST := build/package
ARGS ?=

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.SECONDARY:
.PHONY: help quickstart test test-all test-weekly lint types imports docs package check format sanitize bench bench-executors bench-ingest bench-pagerank bench-scaling bench-spmv audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "PYTHON=python3.12 makes .venv with that Python; quickstart, test and the benchmarks pass ARGS=... on."

quickstart: $(VENV)/.ready-run ## generate a graph of 4 million edges and rank it
	$(BIN)/mgspmv run pipelines/quickstart.toml $(ARGS)

# Bytecode is kept whatever the environment says: tests start hundreds of processes, which would compile all modules.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile
PART ?=

test: $(VENV)/.ready-test ## run the tests that need nothing but Python (ARGS="-k store -x")
	$(PYTEST) $(ARGS)

test-all: $(VENV)/.ready-test ## run what make test leaves out too, but the weekly tests (PART=slow runs one part)
	$(PYTEST) --fuzz 30 -m '$(if $(PART),($(PART)) and )not weekly' $(ARGS)

test-weekly: $(VENV)/.ready-test ## run long variants, and runs on clusters that faults strike
	$(PYTEST) -m weekly $(ARGS)

lint: $(VENV)/.ready-dev ## ruff: rules and format; the language of documentation, comments and messages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.support.language mgspmv kernels docs README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md

types: $(VENV)/.ready-dev ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy docs/hooks

imports: $(VENV)/.ready-dev ## import-linter: imports run one way
	$(BIN)/lint-imports

# The variable keeps a notice about other programs out of what a strict build says.
docs: $(VENV)/.ready-docs ## build the documentation's site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

# PYTHONPATH comes before the editable install, so what answers is the wheel.
package: $(VENV)/.ready-dev ## build sdist and wheel, and run the command from the wheel
	@rm -rf $(DIST)
	@echo "Building sdist and wheel in $(DIST)"
	@$(BIN)/python -m build --outdir $(DIST) . > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(DIST)/site $(DIST)/*.whl
	PYTHONPATH=$(DIST)/site $(BIN)/python $(DIST)/site/bin/mgspmv --help > /dev/null

check: lint types imports test docs package ## everything that a contribution must pass; CI runs this
	@echo "All checks passed."

format: $(VENV)/.ready-dev ## let ruff fix what it can
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

sanitize: $(VENV)/.ready-test ## memory and race checkers on every CUDA kernel, for hours; needs a GPU and compute-sanitizer
	for tool in memcheck racecheck; do \
	  MGSPMV_PLAIN_MEMORY=1 compute-sanitizer --tool $$tool --kernel-name-exclude kns=cupy_ --error-exitcode 9 \
	    $(BIN)/python -m pytest -q -m gpu $(or $(ARGS),tests/kernels) || exit 1; done

bench: $(VENV)/.ready-bench ## compare with other programs (ARGS="--help")
	$(BIN)/python -m benchmarks.compare $(ARGS)

bench-executors: $(VENV)/.ready-run ## compare the executors of PageRank on a local cluster (ARGS="--help")
	$(BIN)/python -m benchmarks.executors $(ARGS)

bench-ingest: $(VENV)/.ready-bench ## compare ingesting with what others parse and sort (ARGS="--help")
	$(BIN)/python -m benchmarks.ingesting $(ARGS)

bench-pagerank: $(VENV)/.ready-run ## time iterations of PageRank, on a GPU compared with cuGraph (ARGS="--help")
	$(BIN)/python -m benchmarks.pagerank $(ARGS)

bench-scaling: $(VENV)/.ready-run ## time PageRank on more and more workers of this machine (ARGS="--help")
	$(BIN)/python -m benchmarks.scaling $(ARGS)

bench-spmv: $(VENV)/.ready-run ## time every kernel, compared with cuSPARSE or SciPy (ARGS="--help")
	$(BIN)/python -m benchmarks.spmv $(ARGS)

audit: $(VENV)/.ready-dev ## compare versions installed and of the image with known vulnerabilities; needs a network
	$(BIN)/python -m pip freeze --exclude-editable | $(BIN)/pip-audit --strict --disable-pip --no-deps --requirement /dev/stdin
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement deploy/docker/constraints.txt

clean: ## remove .venv, caches and whatever the targets made
	rm -rf $(VENV) build dist pipelines/*/ .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp names the extra that is installed; `run` is the package alone.
EXTRA_run :=
EXTRA_test := [test]
EXTRA_dev := [dev]
EXTRA_docs := [docs]
EXTRA_bench := [bench]

$(VENV)/.ready-%: pyproject.toml | $(VENV)/.created
	@echo "Installing mgspmv$(EXTRA_$*) into $(VENV); the first time takes a few minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(EXTRA_$*)'
	@touch $@

AGAIN := make $(MAKECMDGOALS) PYTHON=python3.12

$(VENV)/.created:
	@command -v '$(PYTHON)' > /dev/null || { echo >&2 \
		"mgspmv needs Python 3.11 or newer, and there is no '$(PYTHON)'; name one: $(AGAIN)"; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
		"mgspmv needs Python 3.11 or newer, and '$(PYTHON)' is $$('$(PYTHON)' -V 2>&1); name a newer one: $(AGAIN)"; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2> /dev/null || { echo >&2 \
		"'$(PYTHON)' cannot make virtual environments: its modules venv and ensurepip are missing;" \
		"install them (Debian, Ubuntu: apt install python3-venv) or name another Python: $(AGAIN)"; exit 1; }
	'$(PYTHON)' -m venv $(VENV)
	@touch $@
