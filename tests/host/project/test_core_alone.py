"""The core stands alone: the package without PyTorch, commands, the store, measuring and direct launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from package_copies import copied, run, run_tests
from planning import profile

from cudnnpy import _LAZY

ABSENT = ("torch", "cli", "_store", "store.py", "_measuring", "_worker.py", "_launch/direct")

# Modules of the copy that serve an absent part, and are imported by it alone or where it is there.
IDLE = {
    "cudnnpy.__main__": "cudnnpy.cli",
    "cudnnpy._planning.offline_planning": "cudnnpy._store",
    "cudnnpy._planning.stored_choice": "cudnnpy._store",
    "cudnnpy._planning.stored_tuner": "cudnnpy._store",
}

# raw, descriptors, Convolution on the stand-in device, and the reference
TESTS = ("raw", "choosing", "workspace", "lowering", "device_operation")

IMPORT_ALL = """
import importlib, pathlib
for file in sorted(pathlib.Path("cudnnpy").rglob("*.py")):
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name)
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
from cudnnpy.convolution import convolution
convolution.on_device = lambda device: nullcontext()
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
    assert run(core, "-c", IMPORT_ALL).splitlines() == [f"{name} {absent}" for name, absent in IDLE.items()]


def test_its_tests_pass(core: Path) -> None:
    """Left out are the one that uses prefer="autotune" and the drawn values, which are not other ones here."""
    autotunes = "tests/host/launch/test_device_operation.py::test_options_have_keys_of_their_own"
    run_tests(core, *TESTS, options=("-m", "not hypothesis", "--deselect", autotunes))


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
    absent = {name: home or name for name, home in _LAZY.items() if (home or name).split(".")[0] in ("cli", "store")}
    assert len(absent) == 2
    assert sorted(errors) == sorted(
        f"{name}: cudnnpy.{name} needs cudnnpy.{home.split('.')[0]}, which this copy of the package lacks"
        for name, home in absent.items()
    )


@pytest.mark.parametrize("absent", ["_measuring", "_store"])
def test_autotune_says_that_measuring_is_absent(core: Path, tmp_path: Path, absent: str) -> None:
    folder = core if absent == "_measuring" else copied(tmp_path, "_store", "store.py")
    assert run(folder, "-c", AUTOTUNE) == (
        f"prefer='autotune' needs the package cudnnpy.{absent}, which this copy lacks. Install the whole package, or use "
        "prefer='fastest', 'limited_workspace' or 'no_workspace', which measure nothing\n"
    )


def test_stored_choices_are_used_without_measuring(tmp_path: Path) -> None:
    """The store needs neither the measuring package nor its process."""
    folder = copied(tmp_path, "_measuring", "_worker.py", "cli", "torch")
    source = "from cudnnpy._planning import selection; print(selection._stored_tuner_class().__name__)"
    assert run(folder, "-c", source) == "StoredTuner\n"
