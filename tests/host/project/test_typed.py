"""mypy and pyright accept valid uses and reject invalid ones: the files in tests/typed.

A file whose name ends in _errors.py has lines that are marked with the errors they must have, mypy's code and pyright's:

    raw.cudnnCreat  # E: attr-defined reportAttributeAccessIssue

The checkers see the package as an installed one, and none of this repository's settings.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "tests" / "typed").glob("*.py"))
MYPY = r"^(\w+\.py):(\d+): error: (.*)  \[([\w-]+)\]$"

# file name -> line -> its errors, a code and a message each
Found = dict[str, dict[int, list[tuple[str, str]]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files by themselves, outside of the repository."""
    there = tmp_path_factory.mktemp("typed")
    for file in FILES:
        shutil.copy(file, there)
    return there


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    environment.pop("MYPYPATH", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def by_line(errors: list[tuple[str, int, str, str]]) -> Found:
    found: Found = {file.name: {} for file in FILES}
    for file, line, code, message in errors:
        found[file].setdefault(line, []).append((code, message))
    return found


@pytest.fixture(scope="module")
def mypy(folder: Path) -> Found:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (make style)")
    names = [file.name for file in FILES]
    done = run(folder, sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", *names)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [re.match(MYPY, line) for line in done.stdout.splitlines() if ": error: " in line]
    assert None not in lines, done.stdout
    return by_line([(line[1], int(line[2]), line[4], line[3]) for line in lines if line])


@pytest.fixture(scope="module")
def pyright(folder: Path) -> Found:
    """In the mode for libraries' users that is strictest."""
    beside = Path(sys.executable).parent
    program = shutil.which("pyright", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("pyright is not installed (make style)")
    settings = {
        "include": [file.name for file in FILES],
        "typeCheckingMode": "strict",
        "reportUnusedExpression": False,
        "reportUnusedCallResult": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run(folder, program, "--outputjson", "--pythonpath", sys.executable)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)["generalDiagnostics"]
    return by_line(
        [
            (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one.get("rule", "syntax"), one["message"])
            for one in told
            if one["severity"] == "error"
        ]
    )


def differences(file: Path, found: Found, checker: int) -> list[str]:
    """What is not as the marks of a file say: errors without a mark, and marks without such an error."""
    told, wrong, marks = found[file.name], [], 0
    for number, line in enumerate(file.read_text().splitlines(), 1):
        mark = re.search(r"# E: ([\w-]+) (\w+)$", line)
        assert mark or "# E:" not in line, f"{file.name}:{number}: a mark that is not understood"
        errors = told.get(number, [])
        marks += mark is not None
        if mark is None:
            wrong += [f"{number}: {message} [{code}]" for code, message in errors]
        elif mark[checker] not in [code for code, _ in errors]:
            wrong.append(f"{number}: expected {mark[checker]}; got {errors or 'no error'}: {line}")
    assert bool(marks) == file.name.endswith("_errors.py")
    return wrong


def test_there_are_files() -> None:
    names = {file.name for file in FILES}
    assert {"near_c.py", "near_c_errors.py", "on_arrays.py", "on_arrays_errors.py"} <= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_mypy_refuses_the_marked_lines_alone(mypy: Found, file: Path) -> None:
    assert differences(file, mypy, 1) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pyright_refuses_the_marked_lines_alone(pyright: Found, file: Path) -> None:
    assert differences(file, pyright, 2) == []
