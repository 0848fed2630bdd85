"""The core stands alone: the package without PyTorch, commands and tuning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from package_copies import copied, run, run_tests
from planning import profile
from rooms import ROOMS, path_of

from cudnnpy import _LAZY

ABSENT = [path_of(name) for name in ROOMS["the extras"]]

# raw, descriptors, and Convolution on the stand-in device
TESTS = ("raw", "choosing", "device_operation")

IMPORT_ALL = """
import importlib, pathlib
for file in sorted(pathlib.Path("cudnnpy").rglob("*.py")):
    importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
"""

PUBLIC_NAMES = """
import cudnnpy
for name in cudnnpy.__all__:
    try:
        getattr(cudnnpy, name)
    except ImportError as error:
        print(f"{name}: {error}")
"""

AUTOTUNE = """
import cudnnpy
x, w = cudnnpy.TensorSpec((8, 64, 28, 28), "float16"), cudnnpy.TensorSpec((64, 64, 3, 3), "float16")
from contextlib import nullcontext
from cudnnpy._planning import selection
from cudnnpy._layers import convolution
convolution.on_device = lambda device: nullcontext()
selection.Handle.default = lambda device: None
selection.memory.free_bytes = lambda device: 1 << 37
try:
    cudnnpy.Convolution(prefer="autotune").plan("forward", x, w, device=0)
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the core, with the tests."""
    return copied(tmp_path_factory.mktemp("core"), *ABSENT)


def test_every_other_module_is_imported(core: Path) -> None:
    assert run(core, "-c", IMPORT_ALL) == ""


def test_its_tests_pass(core: Path) -> None:
    """Left out are the drawn values, which are not other ones here."""
    run_tests(core, *TESTS, options=("-m", "not hypothesis"))


def test_it_plans_by_each_preference_that_measures_nothing(core: Path, planning_environment: dict[str, str]) -> None:
    found = json.loads(run(core, "tests/shared/core_plans.py", str(profile()), environment=planning_environment))
    sizes = found["sizes"]
    assert len(sizes) == 6
    for name, size in sizes.items():
        assert size == 0 or not name.startswith("no_workspace")
        assert size <= 1 << 20 or not name.startswith("limited_workspace")
    assert found["usable"] >= 5
    assert found["rejected"] >= 5


def test_an_absent_part_is_named_where_a_public_name_needs_it(core: Path) -> None:
    errors = run(core, "-c", PUBLIC_NAMES).splitlines()
    absent = {
        name: home or name for name, home in _LAZY.items() if not is_there(core, (home or name).partition(":")[0])
    }
    assert len(absent) >= 5
    assert sorted(errors) == sorted(
        f"{name}: cudnnpy.{name} needs cudnnpy.{first_absent(core, home)}, which this copy of the package lacks"
        for name, home in absent.items()
    )


def is_there(folder: Path, module: str) -> bool:
    path = folder / "cudnnpy" / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def first_absent(folder: Path, module: str) -> str:
    """The package of an absent module, or the module itself in a package that is there."""
    package = module.partition(".")[0]
    return module if is_there(folder, package) else package


def test_autotune_says_that_tuning_is_absent(core: Path) -> None:
    assert run(core, "-c", AUTOTUNE) == (
        "prefer='autotune' needs the package cudnnpy.tuning, which this copy lacks. Install the whole package, or use "
        "prefer='fastest', 'limited_workspace' or 'no_workspace', which measure nothing\n"
    )
