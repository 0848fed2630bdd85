"""The documentation's programs on a GPU, each page with and without the packages that some of its blocks need."""

from __future__ import annotations

from importlib.util import find_spec

import pages
import pytest

PROGRAMS = [(page, needs) for page in pages.PAGES for needs in pages.packages(page)]
assert len(PROGRAMS) >= 4


@pytest.mark.parametrize(
    ("page", "needs"), PROGRAMS, ids=lambda given: given if isinstance(given, str) else "+".join(given)
)
def test_a_pages_programs_run(page, needs, tmp_path):
    for package in needs:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if "jax" in needs and not any(find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)):
        pytest.skip("JAX is installed without its GPU part")
    pages.run(page, tmp_path, needs)
