# Needs Python 3.11 or newer and make; everything else is installed into virtual environments under .venv.
PYTHON ?= python3
ENVIRONMENT := $(PYTHON) tools/environment.py
TORCH := $(ENVIRONMENT) .venv/torch --cudnn torch
# For test-host: a release of the table [tool.cudnnpy.cudnn] in pyproject.toml.
CUDNN ?= cu12
WITHOUT_GPU := tests/host tests/fuzz
# Of the tests that need no GPU, and of the breaks, so many run side by side.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n < 8 ? n : 8)))
IN_PARALLEL = -n $(JOBS) --dist loadfile
# Each of these processes has one thread of linear algebra.
ONE_THREAD = OPENBLAS_NUM_THREADS=1
# The tests start some thousand interpreters, of which each would compile what it imports.
export PYTHONDONTWRITEBYTECODE =
# For fuzz: how long each campaign runs.
SECONDS ?= 300
HOST = .venv/$(shell $(PYTHON) -c 'import sys; print("{}.{}".format(*sys.version_info))')-$(CUDNN)

.DEFAULT_GOAL := help
.PHONY: help edges test test-torch test-host test-oldest test-sdist test-extras test-small-extras test-matrix fuzz mutants style docs clean
.PHONY: python test-environment test-torch-if-possible

help:
	@echo "make edges         the edge detector on a sample image, on the GPU or without one"
	@echo "make test          the tests without PyTorch, with the real cuDNN (GPU tests where there is a GPU; ARGS= goes to pytest)"
	@echo "make test-torch    the tests about PyTorch, in an environment of their own (6 GB)"
	@echo "make test-host     the tests that need no GPU, with CUDNN=oldest, cu12 or cu13 and any PYTHON="
	@echo "make test-oldest   the same with the oldest release of cuDNN 9"
	@echo "make test-sdist    the same with the files of the sdist"
	@echo "make test-extras   what the package index gives for every extra, alone and beside PyTorch and JAX"
	@echo "make test-small-extras  the part of it that .ci/run has: the small extras, installed and used"
	@echo "make test-matrix   the tests that need no GPU with every Python found here and every tested release of cuDNN (PAIRS=3.12:cu12)"
	@echo "make fuzz          each fuzz campaign in turn for SECONDS= (300), with a new seed, which it prints"
	@echo "make mutants       break the code on purpose and see that a test fails, for each break of tools/mutants.toml (SHARE=1/4)"
	@echo "make style         ruff, mypy and pyright, in an environment without cuDNN"
	@echo "make docs          the documentation as a site, build/docs/html, where a warning is an error"
	@echo "make clean         remove the environments, caches and results"

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cudnnpy needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=python3.11")'

edges: python
	@$(ENVIRONMENT) .venv/edges --extras cli --cudnn auto
	@.venv/edges/bin/cudnnpy edges -o edges.png --force

test-environment: python
	@$(ENVIRONMENT) .venv/test --extras generate,test --cudnn auto --without-driver cu12 --tested

# On a GPU tests run one after the other.
ifdef ARGS
test: test-environment
	.venv/test/bin/python -m pytest $(ARGS)
else
test: test-environment
	$(ONE_THREAD) .venv/test/bin/python -m pytest $(IN_PARALLEL) $(WITHOUT_GPU)
	.venv/test/bin/python -m pytest tests/gpu
endif

test-torch: python
	@$(TORCH)
	.venv/torch/bin/python -m pytest $(or $(ARGS),tests/torch tests/gpu)

# For .ci/run: the same, and a line in its place where the environment cannot be made.
test-torch-if-possible: python
	@if $(TORCH); then .venv/torch/bin/python -m pytest tests/torch tests/gpu; else \
	echo "NOT TESTED: tests/torch, since the environment with PyTorch could not be made (see above); make test-torch tries again" >&2; \
	test "$$CUDNNPY_REQUIRE_TORCH" != 1; fi

test-host: python
	@$(ENVIRONMENT) $(HOST) --extras test --cudnn $(CUDNN) --tested
	$(ONE_THREAD) $(HOST)/bin/python -m pytest $(or $(ARGS),$(IN_PARALLEL) $(WITHOUT_GPU))

test-oldest:
	@$(MAKE) --no-print-directory test-host CUDNN=oldest

# The files of the sdist must pass their own tests as well.
test-sdist: test-environment
	rm -rf build/sdist
	.venv/test/bin/python -m hatchling build -t sdist -d build/sdist
	tar -xzf build/sdist/*.tar.gz -C build/sdist --strip-components=1
	@$(MAKE) --no-print-directory -C build/sdist test-oldest
	rm -rf build/sdist

test-extras: test-environment
	.venv/test/bin/python -m pytest $(or $(ARGS),tests/index)

test-small-extras: test-environment
	.venv/test/bin/python -m pytest tests/index/test_small_extras.py

test-matrix:
	@$(PYTHON) tools/matrix.py $(PAIRS)

# ARGS= may name one campaign's file.
fuzz: test-environment
	CUDNNPY_FUZZ_SEED=new CUDNNPY_FUZZ_SECONDS=$(SECONDS) .venv/test/bin/python -m pytest -s $(or $(ARGS),tests/fuzz)

# ARGS= may name files of the list, or be --check; SHARE=1/4 is every fourth break, from the first on.
mutants: test-environment
	.venv/test/bin/python -m tools.mutants $(ARGS) $(if $(SHARE),--share $(SHARE)) --jobs $(JOBS)

# Here, too, since it needs the type checkers: the test of public types.
style: python
	@$(ENVIRONMENT) .venv/style --extras style --cudnn none
	.venv/style/bin/ruff check .
	.venv/style/bin/ruff format --check .
	.venv/style/bin/mypy
	PYTHONPATH=tests/shared .venv/style/bin/python -m pytest --noconftest tests/host/project/test_typed.py

docs: python
	@$(ENVIRONMENT) .venv/docs --extras docs --cudnn none
	@.venv/docs/bin/python -m tools.build_site

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis edges.png
	find . -name __pycache__ -prune -exec rm -rf {} +
