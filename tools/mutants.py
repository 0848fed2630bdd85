"""Breaks the package on purpose, one break at a time, and requires a host test to fail for each: `make mutants`.

tools/mutants.toml is the list. A table of it is a function, "module:Class.method": the tests that guard it, then breaks of
it with what users would see. A break is an operator and a number (tools/breaks.py), so that an entry outlives new names and
lines. `--try` prints which breaks of a function its tests notice, for a new entry; `--check` prints the entries whose
function, break or test does not exist, and with `--repair` finds functions again by their name in other modules.

The tests of the list must pass on the unbroken tree first. A break that no test notices is a survivor, and so is one that
merely keeps the tests from running: a failed import or collection is not counted.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from . import breaks
from .breaks import BreakError

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
PACKAGES = ("cudnnpy", "tools")
COPIED = (*PACKAGES, "docs", "tests", "pyproject.toml", "README.md", "LICENSE")
SECONDS = 180  # for the tests of one break
SECONDS_UNBROKEN = 1200  # for all tests without one

# Errors of a break that does not run, whatever it breaks.
NOT_A_BEHAVIOR = ("ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "SyntaxError")


class Guard(NamedTuple):
    """A function, the tests that guard it, and its breaks with what users would see."""

    function: str
    tests: tuple[str, ...]
    breaks: dict[str, str]


class Break(NamedTuple):
    """A break of a function, and the tests of which at least one must fail."""

    function: str
    name: str
    tests: tuple[str, ...]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.function} {self.name}"


class Outcome(NamedTuple):
    """What the tests said of a break: the test that noticed it, or why none did."""

    broken: Break
    noticed_by: str
    survived: str
    seconds: float


def guards(path: Path = LIST) -> list[Guard]:
    """The list."""
    tables = tomllib.loads(path.read_text())
    return [Guard(function, tuple(table.pop("tests")), table) for function, table in tables.items()]


def breaks_of(known: Sequence[Guard]) -> list[Break]:
    """The breaks of the list, one after the other."""
    return [Break(guard.function, name, guard.tests, why) for guard in known for name, why in guard.breaks.items()]


def source_of(function: str, root: Path = ROOT) -> tuple[Path, str]:
    """The file of "module:Class.method" and the name in it. Raises BreakError, which names the nearest module."""
    module, _, name = function.partition(":")
    for path in (root / f"{module.replace('.', '/')}.py", root / module.replace(".", "/") / "__init__.py"):
        if path.is_file():
            return path, name
    near = difflib.get_close_matches(module, modules(root), 1, 0.0)
    raise BreakError(f"there is no module {module}" + (f"; the nearest is {near[0]}" if near else ""))


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The modules whose functions may be broken, by name."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def broken_source(broken: Break, root: Path = ROOT) -> str:
    """The source of the module with the break. Raises BreakError."""
    path, name = source_of(broken.function, root)
    return breaks.broken(path.read_text(), name, broken.name)


def path_of(test: str, root: Path = ROOT) -> str:
    """pytest's name of "test_file::test_name", wherever the file is in tests. Raises BreakError."""
    file, separator, name = test.partition("::")
    path = test_files(root).get(file)
    if path is None:
        raise BreakError(f"there is no file {file}.py in tests")
    if separator and f"def {name.rpartition('::')[2].partition('[')[0]}(" not in path.read_text():
        raise BreakError(f"there is no test {test}")
    return f"{path.relative_to(root)}{separator}{name}"


@functools.cache
def test_files(root: Path) -> dict[str, Path]:
    """The files of tests by name; no two have the same name."""
    return {path.stem: path for path in (root / "tests").rglob("test_*.py")}


def problems_of(guard: Guard, root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(break or test, or "" for the whole guard, problem) of what does not exist."""
    try:
        path, name = source_of(guard.function, root)
        possible = breaks.names(path.read_text(), name)
        yield from ((broken, "there is no such break") for broken in guard.breaks if broken not in possible)
    except BreakError as error:
        yield "", str(error)
    for test in guard.tests:
        try:
            path_of(test, root)
        except BreakError as error:
            yield test, str(error)


def check(known: Sequence[Guard], root: Path = ROOT) -> list[str]:
    """A line for each function, break and test of the list that does not exist."""
    return [
        f"{guard.function} {subject}: {problem}".replace(" :", ":")
        for guard in known
        for subject, problem in problems_of(guard, root)
    ]


def repaired(known: Sequence[Guard], root: Path = ROOT) -> list[Guard]:
    """The list with what exists: functions and tests that moved, without the breaks and tests that are gone.

    A function is found again by its name, in the module with the nearest name; a test is the only one of its name.
    """
    homes: dict[str, list[str]] = {}
    for module, path in modules(root).items():
        for name, _ in breaks.definitions(ast.parse(path.read_text()).body):
            homes.setdefault(name, []).append(module)
    taken = {guard.function for guard in known}
    left = []
    for guard in known:
        if any(not subject for subject, _ in problems_of(guard, root)):
            module, _, name = guard.function.partition(":")
            free = [home for home in homes.get(name, []) if f"{home}:{name}" not in taken]
            near = difflib.get_close_matches(module, free, 1, 0.66)
            if not near:
                continue
            guard = guard._replace(function=f"{near[0]}:{name}")
        gone = {subject for subject, _ in problems_of(guard, root)}
        tests = tuple(
            test for test in dict.fromkeys(moved_test(test, root) for test in guard.tests) if test not in gone
        )
        names = {name: why for name, why in guard.breaks.items() if name not in gone}
        if tests and names:
            left.append(Guard(guard.function, tests, names))
    return left


def moved_test(test: str, root: Path = ROOT) -> str:
    """The test under its new file, if it is gone from its old one and another has the only test of that name."""
    file, _, name = test.partition("::")
    definition = f"def {name.rpartition('::')[2].partition('[')[0]}("
    files = test_files(root)
    if not name or (file in files and definition in files[file].read_text()):
        return test
    found = [stem for stem, path in files.items() if definition in path.read_text()]
    return f"{found[0]}::{name}" if len(found) == 1 else test


def repair(known: Sequence[Guard]) -> None:
    """Write the list as repaired, and print what that changes."""
    new = repaired(known)
    before, after = ({str(broken) for broken in breaks_of(some)} for some in (known, new))
    print("\n".join(f"- {line}" for line in sorted(before - after)))
    print("\n".join(f"+ {line}" for line in sorted(after - before)))
    LIST.write_text(written(new))


def written(known: Sequence[Guard]) -> str:
    """The text of a list, with the comment of the present one."""
    lines = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    module = ""
    for guard in known:
        if guard.function.partition(":")[0] != module:
            module = guard.function.partition(":")[0]
            lines.append("")
        tests = f"tests = [{', '.join(map(quoted, guard.tests))}]"
        if len(tests) > 120:
            texts = ", ".join(map(quoted, guard.tests)) + ","
            tests = "\n".join(["tests = [", *(f"    {line}" for line in textwrap.wrap(texts, 116)), "]"])
        lines += [f"[{quoted(guard.function)}]", tests]
        lines += [f"{quoted(name)} = {quoted(why)}" for name, why in guard.breaks.items()]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A string of TOML, as JSON writes it."""
    return json.dumps(text, ensure_ascii=False)


def copy_tree(target: Path, chosen: Sequence[Break]) -> Path:
    """A copy of what the tests need, in which the modules of the breaks have no comments: as they are when broken.

    Compiled files are checked by content, since a break may leave the size as it was.
    """
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        elif source.is_file():
            shutil.copy2(source, target / name)
    for path in {source_of(broken.function, target)[0] for broken in chosen}:
        path.write_text(ast.unparse(ast.parse(path.read_text())))
    compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *PACKAGES]
    subprocess.run([sys.executable, *compile_all], cwd=target, check=True)
    return target


def run_tests(
    root: Path, tests: Sequence[str], *more: str, write: bool = False, seconds: float = SECONDS
) -> tuple[int, str, xml.Element]:
    """pytest's exit status, its output and its report. Raises subprocess.TimeoutExpired."""
    report = root / "report.xml"
    report.unlink(missing_ok=True)
    # The examples that hypothesis draws are the same in each run.
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(root)}
    if not write:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *more, *(path_of(test, root) for test in tests)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    tree = xml.parse(report).getroot() if report.is_file() else xml.Element("testsuites")
    return done.returncode, done.stdout + done.stderr, tree


def failures(report: xml.Element) -> Iterator[tuple[str, str, str]]:
    """(test, "failure" or "error", message) of the tests that did not pass."""
    for case in report.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            yield f"{case.get('classname')}::{case.get('name')}", problem.tag, problem.get("message") or ""


def judge(broken: Break, root: Path) -> Outcome:
    """Applies a break to a copy of the tree, runs its tests there, and undoes it."""
    path, _ = source_of(broken.function, root)
    whole = path.read_text()
    start = time.monotonic()
    try:
        path.write_text(broken_source(broken, root))
        status, output, report = run_tests(root, broken.tests, "-x")
    except subprocess.TimeoutExpired:
        return Outcome(broken, "", f"its tests ran for more than {SECONDS} seconds", time.monotonic() - start)
    finally:
        path.write_text(whole)
    seconds = time.monotonic() - start
    found = list(failures(report))
    failed = [(test, message) for test, tag, message in found if tag == "failure"]
    if status == 0:
        return Outcome(broken, "", "its tests pass", seconds)
    if not failed or any(message.startswith(NOT_A_BEHAVIOR) for _, message in failed):
        said = "\n".join(message for *_, message in found) or output[-2000:]
        return Outcome(broken, "", f"its tests could not run:\n{said}", seconds)
    return Outcome(broken, failed[0][0], "", seconds)


def check_unbroken(root: Path, tests: Sequence[str]) -> None:
    """Raises BreakError where a test of the list fails without a break."""
    try:
        status, output, report = run_tests(root, tests, write=True, seconds=SECONDS_UNBROKEN)
    except subprocess.TimeoutExpired as error:
        raise BreakError(f"without a break the tests run for more than {SECONDS_UNBROKEN} seconds") from error
    if status:
        raise BreakError(f"the tests do not pass on the unbroken tree:\n{output[-6000:]}")
    for case in report.iter("testcase"):
        if case.find("skipped") is not None:
            print(f"skipped without a break: {case.get('classname')}::{case.get('name')}")


def judged(chosen: Sequence[Break], jobs: int) -> Iterator[Outcome]:
    """The outcomes in the order of the list, from `jobs` copies of the tree side by side."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first = copy_tree(Path(folder) / "tree", chosen)
        tests = list(dict.fromkeys(test for broken in chosen for test in broken.tests))
        print(f"{len(chosen)} breaks; without one, {len(tests)} files or tests pass:", end=" ", flush=True)
        start = time.monotonic()
        check_unbroken(first, tests)
        print(f"{time.monotonic() - start:.1f} s", flush=True)
        free: SimpleQueue[Path] = SimpleQueue()
        free.put(first)
        for number in range(1, jobs):
            free.put(Path(shutil.copytree(first, Path(folder) / f"tree{number}")))

        def work(broken: Break) -> Outcome:
            root = free.get()
            try:
                return judge(broken, root)
            finally:
                free.put(root)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(work, chosen)


def selected(texts: Sequence[str], known: Sequence[Guard]) -> list[Guard]:
    """The guards whose function has one of the texts in its name, all of them without one. Raises BreakError."""
    for text in texts:
        if not any(text in guard.function for guard in known):
            raise BreakError(f"the list has no function {text}; --list prints them all")
    return [guard for guard in known if not texts or any(text in guard.function for text in texts)]


def all_breaks(guard: Guard) -> Guard:
    """The guard with every break of its function, for --try."""
    path, name = source_of(guard.function)
    return guard._replace(
        breaks={broken: guard.breaks.get(broken, "") for broken in breaks.names(path.read_text(), name)}
    )


def share(text: str) -> tuple[int, int]:
    """Turn "2/4", the second of four shares, into (2, 4)."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"a share must be such as 1/4 or 4/4; got {text!r}")
    return int(part), int(parts)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("functions", nargs="*", help="functions of the list, or parts of their names (default: all)")
    parser.add_argument("--list", action="store_true", help="print the breaks and run nothing")
    parser.add_argument("--check", action="store_true", help="print what does not exist of the list, and run nothing")
    parser.add_argument(
        "--repair", action="store_true", help="with --check: find functions that moved, and drop what is gone"
    )
    parser.add_argument("--try", action="store_true", dest="all", help="try every break of the functions of the list")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="how many run side by side")
    parser.add_argument("--share", type=share, default=(1, 1), metavar="1/4", help="every fourth break, from the first")
    return parser.parse_args(arguments)


def main(arguments: Any = None) -> int:
    """Returns 0 if every break is noticed, else 1."""
    options = parsed(arguments)
    part, parts = options.share
    try:
        known = guards()
        wrong = check(known)
        if options.check or wrong:
            print("\n".join(wrong) or f"{len(breaks_of(known))} breaks of {len(known)} functions exist")
            if options.repair:
                repair(known)
            return 1 if wrong else 0
        found = selected(options.functions, known)
        chosen = breaks_of([all_breaks(guard) for guard in found] if options.all else found)[part - 1 :: parts]
        if options.list:
            print("\n".join(f"{broken}: {broken.why}" for broken in chosen))
            return 0
        survivors = []
        for outcome in judged(chosen, max(1, options.jobs)):
            result = "SURVIVED" if outcome.survived else "noticed "
            print(f"{result} {outcome.seconds:5.1f} s  {outcome.broken} {outcome.noticed_by}", flush=True)
            if outcome.survived:
                survivors.append(outcome)
    except BreakError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for outcome in survivors:
        print(f"\n{outcome.broken} ({outcome.broken.why}): {outcome.survived}", file=sys.stderr)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} breaks were noticed", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
