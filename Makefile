# Needs Python 3.11 or newer and make; everything else is installed into virtual environments under .venv.
PYTHON ?= python3
ENVIRONMENT := $(PYTHON) tools/environment.py
TORCH := $(ENVIRONMENT) .venv/torch --cudnn torch
# For test-host: a release of the table [tool.cudnnpy.cudnn] in pyproject.toml.
CUDNN ?= cu12
WITHOUT_GPU := tests/host tests/fuzz
# For fuzz: how long each campaign runs.
SECONDS ?= 300
HOST = .venv/$(shell $(PYTHON) -c 'import sys; print("{}.{}".format(*sys.version_info))')-$(CUDNN)

.DEFAULT_GOAL := help
.PHONY: help edges test test-torch test-host test-oldest test-extras test-matrix fuzz mutants style docs clean python test-environment

help:
	@echo "make edges         the edge detector on a sample picture, on the GPU or without one"
	@echo "make test          all tests, with the real cuDNN (GPU tests where there is a GPU; ARGS= goes to pytest)"
	@echo "make test-torch    the tests about PyTorch, which make test ends with, in an environment of their own (3 GB)"
	@echo "make test-host     the tests that need no GPU, with CUDNN=oldest, cu12 or cu13 and any PYTHON="
	@echo "make test-oldest   the same with the oldest release of cuDNN 9"
	@echo "make test-extras   what the package index gives for every extra, alone and beside PyTorch and JAX"
	@echo "make test-matrix   the same with every Python that is found here and every release of cuDNN that is tested"
	@echo "make fuzz          each fuzz campaign in turn for SECONDS= (300), with a new seed, which it prints"
	@echo "make mutants       break the code on purpose and see that a test fails, for each break of tools/mutants.toml"
	@echo "make style         ruff and mypy"
	@echo "make docs          the documentation as a site, build/docs/html, with every link and name in it checked"
	@echo "make clean         remove the environments, caches and results"

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cudnnpy needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=python3.11")'

edges: python
	@$(ENVIRONMENT) .venv/edges --extras cli --cudnn auto
	@.venv/edges/bin/cudnnpy edges -o edges.png --force

test-environment: python
	@$(ENVIRONMENT) .venv/test --extras generate,test,style --cudnn auto --without-driver cu12 --tested

# With ARGS= only the first part, since they may name files.
test: test-environment
	.venv/test/bin/python -m pytest $(or $(ARGS),$(WITHOUT_GPU) tests/gpu)
ifndef ARGS
	@if $(TORCH); then .venv/torch/bin/python -m pytest tests/torch tests/gpu; else \
	echo "NOT TESTED: tests/torch, since the environment with PyTorch could not be made (see above); make test-torch tries again" >&2; \
	test "$$CUDNNPY_REQUIRE_TORCH" != 1; fi
endif

test-torch: python
	@$(TORCH)
	.venv/torch/bin/python -m pytest $(or $(ARGS),tests/torch tests/gpu)

test-host: python
	@$(ENVIRONMENT) $(HOST) --extras test --cudnn $(CUDNN) --tested
	$(HOST)/bin/python -m pytest $(or $(ARGS),$(WITHOUT_GPU))

test-oldest:
	@$(MAKE) --no-print-directory test-host CUDNN=oldest

test-extras: test-environment
	.venv/test/bin/python -m pytest $(or $(ARGS),tests/index)

test-matrix:
	@$(PYTHON) tools/matrix.py

# ARGS= may name one campaign's file.
fuzz: test-environment
	CUDNNPY_FUZZ_SEED=new CUDNNPY_FUZZ_SECONDS=$(SECONDS) .venv/test/bin/python -m pytest -s --ignore=tests/fuzz/test_campaign.py $(or $(ARGS),tests/fuzz)

# ARGS= may name breaks, or be --list.
mutants: test-environment
	.venv/test/bin/python -m tools.mutants $(ARGS)

style: test-environment
	.venv/test/bin/ruff check .
	.venv/test/bin/ruff format --check .
	.venv/test/bin/mypy

docs: python
	@$(ENVIRONMENT) .venv/docs --extras docs --cudnn none
	@.venv/docs/bin/python -m tools.build_site
	.venv/docs/bin/python -m pytest --confcutdir=tests/site tests/site

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis edges.png
	find . -name __pycache__ -prune -exec rm -rf {} +
