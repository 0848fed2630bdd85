"""Our constants, structs and prototypes against a C compiler and the real headers."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from cudnnpy import raw
from cudnnpy.raw import _api

Compile = Callable[..., str]

_INTEGERS = (ctypes.c_int, ctypes.c_uint, ctypes.c_int64, ctypes.c_size_t, ctypes.c_ulonglong)


@pytest.fixture(scope="module")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles C source against the real headers, with warnings as errors; runs it and returns what it prints."""
    directories = [find_nvidia_header_directory(name) for name in ("cudnn", "cudart", "nvcc")]
    if None in directories:
        pytest.skip("the headers of cuDNN, cudart and nvcc are not all installed (make test-environment)")
    text = Path(str(directories[0]), "cudnn_version.h").read_text()
    found = ".".join(re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", text))
    if found != raw.HEADER_VERSION:
        pytest.skip(
            f"the installed headers are cuDNN {found}'s, and the package was generated from {raw.HEADER_VERSION}'s"
        )
    folder = tmp_path_factory.mktemp("abi")
    flags = [
        "-std=c11", "-Wall", "-Werror", "-Wno-unused-variable", "-Wno-deprecated-declarations",
        *(f"-isystem{directory}" for directory in directories),
    ]  # fmt: skip

    def compile_c(source: str, run: bool = True) -> str:
        (folder / "probe.c").write_text(f"#include <cudnn.h>\n#include <cudnn_backend.h>\n{source}")
        output = ["-o", "probe"] if run else ["-fsyntax-only"]
        subprocess.run(["cc", *flags, "probe.c", *output], cwd=folder, check=True, capture_output=True, text=True)
        return subprocess.run(["./probe"], cwd=folder, check=True, capture_output=True, text=True).stdout if run else ""

    return compile_c


def _printed(compile_c: Compile, statements: list[str]) -> list[str]:
    includes = "#include <stdio.h>\n#include <stddef.h>\n"
    return compile_c(f"{includes}int main(void) {{\n{chr(10).join(statements)}\nreturn 0; }}\n").splitlines()


def _structs() -> list[type[ctypes.Structure]]:
    kinds = {value for value in vars(_api).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)}
    return sorted((kind for kind in kinds if hasattr(kind, "_fields_")), key=lambda kind: kind.__name__)


def _c_name(kind: type[ctypes.Structure]) -> str:
    return kind.__name__ if kind.__name__.endswith("_t") else f"struct {kind.__name__}"


def test_every_struct_has_the_size_and_the_fields_of_c(compile_c: Compile) -> None:
    statements, ours = [], []
    for kind in _structs():
        name = _c_name(kind)
        statements.append(f'printf("{kind.__name__} %zu %zu\\n", sizeof({name}), _Alignof({name}));')
        ours.append(f"{kind.__name__} {ctypes.sizeof(kind)} {ctypes.alignment(kind)}")
        for field, _type in kind._fields_:
            place = getattr(kind, field)
            statements.append(
                f'printf("{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
            )
            ours.append(f"{field} {place.offset} {place.size}")
    assert len(_structs()) == 7
    assert _printed(compile_c, statements) == ours


def test_every_enumerator_has_the_value_of_c(compile_c: Compile) -> None:
    members = [(name, int(member)) for kind in _api.ENUMS for name, member in kind.__members__.items()]
    printed = _printed(compile_c, [f'printf("{name} %lld\\n", (long long){name});' for name, _ in members])
    assert printed == [f"{name} {value}" for name, value in members]
    assert len(members) > 900


def test_every_macro_has_the_value_of_c(compile_c: Compile) -> None:
    ours = {
        name: value for name, value in vars(_api).items() if name.startswith("CUDNN_") and type(value) in (int, float)
    }
    printed = _printed(compile_c, [f'printf("{name} %.17g\\n", (double)({name}));' for name in ours])
    assert {line.split()[0]: float(line.split()[1]) for line in printed} == ours
    assert {"CUDNN_VERSION", "CUDNN_DIM_MAX", "CUDNN_LRN_MIN_K"} <= set(ours)


def _prototypes() -> Iterator[str]:
    """One C declaration for each function, which the compiler refuses unless it agrees with the header's own."""
    for name in raw.functions():
        yield f"{raw.prototype(name)};"


def test_every_prototype_is_that_of_c(compile_c: Compile) -> None:
    compile_c("\n".join(_prototypes()), run=False)


def test_every_type_in_a_prototype_has_the_size_and_the_sign_of_c(compile_c: Compile) -> None:
    kinds = {kind for name in raw.functions() for _name, kind, _direction in raw.parameters(name)}
    statements, ours = [], []
    for kind in sorted(kind for kind in kinds if not kind.endswith("[]")):
        passed = raw.ctype(kind)
        statements.append(f'printf("{kind} %zu\\n", sizeof({kind}));')
        ours.append(f"{kind} {ctypes.sizeof(passed)}")
        if passed in _INTEGERS and "cudnn" not in kind and "library" not in kind:  # enums fit both signs
            statements.append(f'printf("%d\\n", ({kind})-1 < ({kind})1);')
            ours.append(str(int(passed(-1).value < 0)))
    assert _printed(compile_c, statements) == ours
    assert len(ours) > 60
