"""The breaks that `make mutants` tries, and the program that tries them, on a small tree of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Break, MutantError, broken_text, check_list, judge, main, run_tests, selected

CODE = "def double(number):\n    return 2 * number\n"
TEST = """from package.code import double


def test_one():
    assert double(1) == 2


def test_zero():
    assert double(0) == 0
"""
HALF = Break("half", "package/code.py", "2 * number", "number / 2", ("tests/test_code.py",))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one function, and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which these tests do not need
    for name, text in (("package/__init__.py", ""), ("package/code.py", CODE), ("tests/test_code.py", TEST)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_list_fits_the_code() -> None:
    """Its texts are there, each once; so are its tests' files. A change of the code moves its breaks."""
    known = mutants.breaks()
    check_list(known)
    assert len(known) > 45
    assert all(broken.find != broken.put and broken.why for broken in known)


def test_every_test_of_the_list_exists() -> None:
    for broken in mutants.breaks():
        for test in broken.tests:
            file, _, name = test.partition("::")
            assert not name or f"def {name.partition('[')[0]}(" in (mutants.ROOT / file).read_text(), test


def test_a_break_is_noticed_by_a_test_that_fails(tree: Path) -> None:
    outcome = judge(HALF, tree)
    assert (outcome.noticed_by, outcome.survived) == ("tests.test_code::test_one", "")
    assert (tree / HALF.file).read_text() == CODE
    assert run_tests(tree, HALF.tests)[0] == 0  # nothing is left of the break, compiled files among it


@pytest.mark.parametrize(
    ("put", "tests", "why"),
    [
        ("number + number", ("tests/test_code.py",), "its tests pass"),
        ("2.0 * number", ("tests/test_code.py::test_zero",), "its tests pass"),
        ("2 * numbr", ("tests/test_code.py",), "its tests could not run:\nNameError"),
        ("2 ** ", ("tests/test_code.py",), "its tests could not run:\n"),
        ("number / 2", ("tests/test_code.py::test_two",), "its tests could not run:\n"),
    ],
    ids=["equivalent", "too few tests", "a name", "a syntax error", "no such test"],
)
def test_what_no_test_notices_survives(tree: Path, put: str, tests: tuple[str, ...], why: str) -> None:
    outcome = judge(HALF._replace(put=put, tests=tests), tree)
    assert outcome.noticed_by == ""
    assert outcome.survived.startswith(why)
    assert (tree / HALF.file).read_text() == CODE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"find": "3 * number"}, "package/code.py holds the text 0 times; expected once"),
        ({"find": "number"}, "package/code.py holds the text 2 times"),
        ({"file": "package/other.py"}, "there is no file package/other.py"),
        ({"tests": ("tests/test_other.py::test",)}, "half: there is no file tests/test_other.py"),
    ],
)
def test_a_list_that_does_not_fit_the_tree_is_an_error(tree: Path, change: dict[str, str], message: str) -> None:
    check_list([HALF], tree)
    assert broken_text(HALF, tree) == CODE.replace("2 * number", "number / 2")
    with pytest.raises(MutantError, match=message):
        check_list([HALF._replace(**change)], tree)


def test_breaks_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = known = mutants.breaks()
    assert selected([], known) == known
    assert selected([second.name, first.name], known) == [first, second]
    assert main(["--list", first.name]) == 0
    assert capsys.readouterr().out.startswith(first.name)
    assert main(["--list", "--share", "2/2", first.name, second.name, known[2].name, known[3].name]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [second.name, known[3].name]
    assert main(["no-such-break"]) == 1
    assert "unknown breaks: no-such-break" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "a/b", "1/0"])
def test_a_share_that_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a share must be such as"):
        mutants.share(text)


def test_a_name_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    list_ = tmp_path / "list.toml"
    one = '[[file.break]]\nname = "one"\nfind = "a"\nput = "b"\n'
    list_.write_text(f'[[file]]\npath = "package/code.py"\ntests = ["tests/test_code.py"]\n{one}{one}')
    with pytest.raises(MutantError, match="names that are given twice: one"):
        mutants.breaks(list_)
