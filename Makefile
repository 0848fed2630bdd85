# Needs Python 3.11 or newer and make; everything else is installed into virtual environments under .venv.
PYTHON ?= python3
ENVIRONMENT := $(PYTHON) tools/environment.py
OLDEST_CUDNN := nvidia-cudnn-cu12==9.0.0.312

.DEFAULT_GOAL := help
.PHONY: help edges test test-oldest style clean python test-environment

help:
	@echo "make edges         the edge detector on a sample picture, on the GPU or without one"
	@echo "make test          all tests, with the real cuDNN (GPU tests where there is a GPU; ARGS= goes to pytest)"
	@echo "make test-oldest   the tests that need no GPU, with the oldest release of cuDNN 9"
	@echo "make style         ruff and mypy"
	@echo "make clean         remove the environments, caches and results"

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cudnnpy needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=python3.11")'

edges: python
	@$(ENVIRONMENT) .venv/edges --extras cli --cudnn auto
	@.venv/edges/bin/cudnnpy edges -o edges.png --force

test-environment: python
	@$(ENVIRONMENT) .venv/test --extras generate,test,style --cudnn auto --without-driver cu12

test: test-environment
	.venv/test/bin/python -m pytest $(ARGS)

test-oldest: python
	@$(ENVIRONMENT) .venv/oldest --extras test --cudnn cu12 --pin $(OLDEST_CUDNN)
	.venv/oldest/bin/python -m pytest tests/host tests/fuzz $(ARGS)

style: test-environment
	.venv/test/bin/ruff check .
	.venv/test/bin/ruff format --check .
	.venv/test/bin/mypy

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis edges.png
	find . -name __pycache__ -prune -exec rm -rf {} +
