"""The breaks that `make mutants` tries, and the program that tries them, on a small tree of its own."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

import pytest

from tools import breaks, mutants
from tools.breaks import BreakError, broken
from tools.mutants import Break, Guard, check, judge, main, repaired, run_tests

CODE = '''"""Numbers."""


class Scale:
    """Doubles."""

    factor = 2

    def double(self, number):
        """Twice the number."""
        if number is None:
            return 0
        return self.factor * number  # a comment


def low(numbers, limit=None):
    with limit:
        found = [n for n in numbers if n < limit and n]
    return min(found)
'''
TEST = """from package.code import Scale


def test_one():
    assert Scale().double(1) == 2


def test_zero():
    assert Scale().double(0) == 0
"""
DOUBLE = "package.code:Scale.double"
HALF = Break(DOUBLE, "simplify 2", ("test_code",))  # number, without the factor


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a few functions, and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which these tests do not need
    monkeypatch.setattr(mutants, "PACKAGES", ("package",))
    for name, text in (
        ("package/__init__.py", ""),
        ("package/code.py", CODE),
        ("tests/unit/test_code.py", TEST),
        ("tests/unit/test_more.py", TEST),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_list_fits_the_code() -> None:
    """Its functions, breaks and tests exist, and each break says what users would see."""
    known = mutants.guards()
    assert check(known) == []
    assert len(mutants.breaks_of(known)) > 45
    assert all(b.why and b.tests for b in mutants.breaks_of(known))
    assert mutants.written(known) == mutants.LIST.read_text()


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        ("Scale.double", "drop 1", "        return self.factor * number"),
        ("Scale.double", "always 1", "        if True:"),
        ("Scale.double", "never 2", "            return False"),
        ("Scale.double", "negate 1", "        if not number is None:"),
        ("Scale.double", "other 1", "        if number is not None:"),
        ("Scale.double", "other 2", "        return self.factor // number"),
        ("Scale.double", "constant 2", "            return 1"),
        ("Scale.double", "none 2", "        return None"),
        ("Scale.double", "simplify 1", "        return self.factor"),
        ("Scale", "constant 1", "    factor = 3"),
        ("Scale.factor", "constant 1", "    factor = 3"),
        ("low", "bare 1", "    found = [n for n in numbers if n < limit and n]"),
        ("low", "omit 1", "        found = [n for n in numbers]"),
        ("low", "omit 3", "        found = [n for n in numbers if n < limit]"),
        ("low", "swap 1", "        found = [n for n in numbers if n and n < limit]"),
        ("low", "other 3", "    return max(found)"),
    ],
)
def test_a_break_changes_one_place(function: str, name: str, expected: str) -> None:
    whole = broken(CODE, "Scale.factor", "constant 1").replace("factor = 3", "factor = 2")
    changed = [line for line in broken(CODE, function, name).splitlines() if line not in whole.splitlines()]
    if name == "drop 1":  # which leaves lines out, and adds none
        assert "if number" not in broken(CODE, function, name)
        assert expected in broken(CODE, function, name)
    else:
        assert changed == [expected]


def test_every_break_of_a_function_has_a_name_and_leaves_python() -> None:
    for function in ("Scale", "Scale.double", "low"):
        found = breaks.names(CODE, function)
        texts = [broken(CODE, function, name) for name in found]
        assert len(found) > 5
        for text in texts:
            ast.parse(text)


def test_a_break_outlives_new_names_and_lines() -> None:
    again = CODE.replace("number", "value").replace("class Scale", "# moved\n\nUNIT = 1\n\n\nclass Scale")
    assert "return value" in broken(again, "Scale.double", "simplify 2")


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        ("Scale.doubled", "drop 1", "there is no Scale.doubled; the nearest is Scale.double"),
        ("Scale.double", "drop 9", "Scale.double has 3 breaks 'drop'; got 'drop 9'"),
        ("Scale.double", "drop", "a break must be a number after one of drop, bare, .*; got 'drop'"),
        ("Scale.double", "crush 1", "got 'crush 1'"),
    ],
)
def test_a_break_that_does_not_exist_is_an_error(function: str, name: str, message: str) -> None:
    with pytest.raises(BreakError, match=message):
        broken(CODE, function, name)


def test_a_break_is_noticed_by_a_test_that_fails(tree: Path) -> None:
    outcome = judge(HALF, tree)
    assert (outcome.noticed_by, outcome.survived) == ("tests.unit.test_code::test_one", "")
    assert (tree / "package/code.py").read_text() == CODE
    assert run_tests(tree, HALF.tests)[0] == 0  # nothing is left of the break, compiled files among it


@pytest.mark.parametrize(
    ("function", "name", "tests", "why"),
    [
        ("low", "other 3", ("test_code",), "its tests pass"),
        (DOUBLE, "simplify 2", ("test_code::test_zero",), "its tests pass"),
        ("Scale.double", "drop 1", ("test_code",), "its tests pass"),
        ("Scale", "drop 2", ("test_code",), "its tests could not run:\nAttributeError"),
    ],
    ids=["another function", "too few tests", "no such case", "a name"],
)
def test_a_break_that_no_test_notices_survives(
    tree: Path, monkeypatch: pytest.MonkeyPatch, function: str, name: str, tests: tuple[str, ...], why: str
) -> None:
    monkeypatch.setattr(mutants, "NOT_A_BEHAVIOR", ("AttributeError",))
    function = function if ":" in function else f"package.code:{function}"
    outcome = judge(Break(function, name, tests), tree)
    assert outcome.noticed_by == ""
    assert outcome.survived.startswith(why)
    assert (tree / "package/code.py").read_text() == CODE


GOOD = Guard(DOUBLE, ("test_code::test_one", "test_more"), {"negate 1": "wrong numbers"})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"function": "package.codes:Scale.double"}, "there is no module package.codes; the nearest is package.code"),
        ({"function": "package.code:Scale.treble"}, "there is no Scale.treble; the nearest is Scale.double"),
        ({"breaks": {"negate 7": ""}}, "package.code:Scale.double negate 7: there is no such break"),
        ({"tests": ("test_other",)}, "there is no file test_other.py in tests"),
        ({"tests": ("test_code::test_two",)}, "there is no test test_code::test_two"),
    ],
)
def test_the_check_names_what_does_not_exist(tree: Path, change: dict[str, object], line: str) -> None:
    assert check([GOOD], tree) == []
    (found,) = check([GOOD._replace(**change)], tree)
    assert line in found


def test_the_repair_follows_moved_functions_and_drops_what_is_gone(tree: Path) -> None:
    (tree / "package/code.py").rename(tree / "package/moved.py")
    moved = GOOD._replace(function="package.moved:Scale.double")
    assert repaired([GOOD], tree) == [moved]
    assert repaired([moved], tree) == [moved]
    wrong = GOOD._replace(tests=("test_gone", "test_more"), breaks={"negate 1": "a", "negate 7": "b"})
    assert repaired([wrong], tree) == [Guard(moved.function, ("test_more",), {"negate 1": "a"})]
    elsewhere = GOOD._replace(tests=("test_gone::test_zero", "test_code::test_zero", "test_gone::test_three"))
    (tree / "tests/unit/test_more.py").write_text(TEST.replace("test_zero", "test_three"))
    assert repaired([elsewhere], tree) == [moved._replace(tests=("test_code::test_zero", "test_more::test_three"))]
    assert repaired([GOOD._replace(function="package.code:gone"), GOOD._replace(tests=("test_gone",))], tree) == []


def test_breaks_are_chosen_by_their_function(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = mutants.guards()[:2]
    assert mutants.selected([second.function], [first, second]) == [second]
    assert main(["--list", first.function]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].startswith(f"{first.function} {next(iter(first.breaks))}: ")
    assert main(["--list", "--share", "2/2", first.function]) == 0
    assert capsys.readouterr().out.splitlines() == listed[1::2]
    assert main(["--list", "--try", first.function]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(listed)
    assert main(["no_such_function"]) == 1
    assert "the list has no function no_such_function" in capsys.readouterr().err


def test_the_command_checks_and_repairs_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = mutants.guards()[:2]
    monkeypatch.setattr(mutants, "LIST", tmp_path / "list.toml")
    (tmp_path / "list.toml").write_text("# Breaks.\n")
    wrong = second._replace(function=f"{second.function}_gone")
    (tmp_path / "list.toml").write_text(mutants.written([first, wrong]))
    known = mutants.guards(tmp_path / "list.toml")
    monkeypatch.setattr(mutants, "guards", lambda: known)
    assert main(["--check"]) == 1
    assert f"{wrong.function}: there is no" in capsys.readouterr().out
    assert main(["--check", "--repair"]) == 1
    assert f"- {wrong.function}" in capsys.readouterr().out
    assert (tmp_path / "list.toml").read_text() == "# Breaks.\n" + mutants.written([first]).partition("\n")[2]


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "a/b", "1/0"])
def test_a_share_that_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a share must be such as"):
        mutants.share(text)
