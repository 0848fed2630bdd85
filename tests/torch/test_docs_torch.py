"""The documentation's programs that use torch and need no GPU."""

from __future__ import annotations

import pages
import pytest

PROGRAMS = [page for page in pages.PAGES if ("torch",) in pages.packages(page, gpu=False)]
assert "porting/torch.md" in PROGRAMS


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_pages_programs_run_with_torch(page, tmp_path):
    pages.run(page, tmp_path, ("torch",), gpu=False)
