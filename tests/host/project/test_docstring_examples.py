"""Every public class and function has an example, and those that need no GPU run; tests/gpu runs the others."""

from __future__ import annotations

import docstring_examples
import pytest

from cudnnpy import raw
from cudnnpy.tuning.profiles.device_profile import FIRST_RELEASE

DOCUMENTED = dict(docstring_examples.documented())
HERE = [
    path for path, value in DOCUMENTED.items() if not docstring_examples.needs(docstring_examples.examples(value))[0]
]


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_public_class_or_function_has_an_example(path):
    assert len(DOCUMENTED) > 100
    assert ">>> " in docstring_examples.examples(DOCUMENTED[path])


@pytest.mark.parametrize("path", HERE)
def test_an_example_that_needs_no_gpu_runs(path):
    if "DeviceProfile.load" in docstring_examples.examples(DOCUMENTED[path]) and raw.version() < FIRST_RELEASE:
        pytest.skip("the loaded cuDNN has no device profiles")
    assert docstring_examples.failures(path, docstring_examples.examples(DOCUMENTED[path])) == ""


@pytest.mark.parametrize("path", [path for path in DOCUMENTED if path not in HERE])
def test_an_example_for_a_gpu_can_be_compiled(path):
    for example in docstring_examples.doctest.DocTestParser().get_examples(
        docstring_examples.examples(DOCUMENTED[path])
    ):
        compile(example.source, path, "single")


def test_an_example_that_fails_is_found():
    assert "Got:" in docstring_examples.failures("sum", ">>> 1 + 1\n3\n")
    assert docstring_examples.needs(">>> # on a GPU\n>>> 1\n1") == (True, "")
    assert docstring_examples.needs(">>> # on a GPU, with torch\n>>> 1\n1") == (True, "torch")
    assert docstring_examples.needs(">>> 1\n1") == (False, "")
