"""The small extras of the wheel, installed from the package index: each suffices for its purpose.

The large ones are what the other tests' environments are made of. Needs the network: make test-extras.
"""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from package_index import built_wheel, pip, run

USES = {
    "images": "cudnnpy edges -o edges.png",
    "cli": "cudnnpy edges -o edges.png",
    "dtypes": "python -c \"import cudnnpy, ml_dtypes, numpy; f = cudnnpy.reference.Activation().forward; "
    "assert f(numpy.ones((1, 2), ml_dtypes.bfloat16)).dtype.name == 'bfloat16'\"",
    "cluster": 'python -c "import distributed, cudnnpy.cli.tune.dask_cluster"',
    "plots": 'python -c "import matplotlib.pyplot, cudnnpy.reference"',
}  # fmt: skip


@pytest.mark.parametrize("extra", USES)
def test_the_small_ones_are_enough_for_what_they_are_for(tmp_path: Path, extra: str) -> None:
    wheel = built_wheel(tmp_path)
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    pip("--python", folder / "bin" / "python", "install", "-q", f"cudnnpy[{extra}] @ {wheel.as_uri()}")
    run("sh", "-c", f"'{folder}'/bin/{USES[extra]}", cwd=tmp_path)
