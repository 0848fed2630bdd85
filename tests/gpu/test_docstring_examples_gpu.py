"""The examples in docstrings that need a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import docstring_examples
import pytest

EXAMPLES = {path: docstring_examples.examples(value) for path, value in docstring_examples.documented()}
ON_A_GPU = [path for path, text in EXAMPLES.items() if docstring_examples.needs(text)[0]]
assert len(ON_A_GPU) >= 15


@pytest.mark.parametrize("path", ON_A_GPU)
def test_an_example_runs(path):
    _, package = docstring_examples.needs(EXAMPLES[path])
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert docstring_examples.failures(path, EXAMPLES[path]) == ""
