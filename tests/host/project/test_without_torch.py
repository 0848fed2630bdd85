"""tests/host runs without torch, and where torch is missing one line says which tests are left out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch_here

TESTS = Path(__file__).resolve().parents[2]


@cache
def needs_torch(file: Path) -> bool:
    """Whether a file imports torch, itself or through what lies beside it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            beside = [folder / f"{name}.py" for folder in (file.parent, TESTS / "shared")]
            if name.partition(".")[0] == "torch" or any(needs_torch(other) for other in beside if other.is_file()):
                return True
    return False


def test_nothing_here_imports_torch() -> None:
    files = list((TESTS / "host").rglob("*.py"))
    assert len(files) > 50
    assert [file.name for file in files if needs_torch(file)] == []


def test_the_gpu_tests_that_do_without_torch_are_listed() -> None:
    module = ast.parse((TESTS / "gpu" / "conftest.py").read_text())
    (listed,) = (node for node in ast.walk(module) if isinstance(node, ast.Set))
    files = {file.name for file in (TESTS / "gpu").glob("test_*.py") if not needs_torch(file)}
    assert set(ast.literal_eval(listed)) == files


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process where torch cannot be imported."""
    program = "import sys; sys.modules['torch'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDNNPY_REQUIRE")}
    return subprocess.run(
        command, cwd=TESTS.parent, env=kept | environment, capture_output=True, text=True, check=False
    )


def test_one_line_says_that_torch_is_missing() -> None:
    done = run("tests/torch")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert done.stdout.count("torch is not installed, so the tests of tests/torch are not run") == 1


def test_torch_can_be_required() -> None:
    done = run("tests/torch", CUDNNPY_REQUIRE_TORCH="1")
    assert done.returncode == 1
    assert "CUDNNPY_REQUIRE_TORCH=1, and torch is not installed" in done.stdout


def test_where_a_gpu_is_required_its_tests_require_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_here, "TORCH", False)
    monkeypatch.delenv("CUDNNPY_REQUIRE_TORCH", raising=False)
    monkeypatch.setenv("CUDNNPY_REQUIRE_GPU", "1")
    with pytest.raises(
        pytest.fail.Exception, match="CUDNNPY_REQUIRE_GPU=1, and torch is not installed, so the GPU tests"
    ):
        torch_here.need_torch("the GPU tests", "CUDNNPY_REQUIRE_GPU")
    with pytest.raises(pytest.skip.Exception):
        torch_here.need_torch("the others")


def test_the_folder_torch_is_not_taken_for_torch() -> None:
    """pytest puts tests/ on the module path, where an import of torch would find the folder."""
    assert str(TESTS) not in sys.path
