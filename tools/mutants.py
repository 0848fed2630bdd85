"""Breaks the package on purpose, one break at a time, and requires a host test to fail for each: `make mutants`.

tools/mutants.toml is the list: a file, the text that is replaced, and the tests that must notice. The tests of the list
must pass on the unbroken tree first. A break that no test notices is a survivor, and so is one that merely keeps the tests
from running: a failed import or collection is not counted. A text that a file does not hold exactly once is an error, so
that the list follows the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("cudnnpy", "docs", "tests", "tools", "pyproject.toml", "README.md", "LICENSE")
SECONDS = 180  # for the tests of one break
SECONDS_UNBROKEN = 1200  # for all tests without one

# Errors of a break that does not run, whatever it breaks.
NOT_A_BEHAVIOR = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")


class MutantError(Exception):
    """The list does not fit the tree, or the unbroken tree fails its tests."""


class Break(NamedTuple):
    """One change of one file, and the tests of which at least one must fail."""

    name: str
    file: str
    find: str
    put: str
    tests: tuple[str, ...]
    why: str = ""


class Outcome(NamedTuple):
    """What the tests said of a break: the test that noticed it, or why none did."""

    broken: Break
    noticed_by: str
    survived: str
    seconds: float


def breaks(path: Path = LIST) -> list[Break]:
    """The list. A break without tests of its own has those of its file. Raises MutantError."""
    found: list[Break] = []
    for file in tomllib.loads(path.read_text())["file"]:
        for given in file["break"]:
            unknown = set(given) - set(Break._fields)
            if unknown:
                raise MutantError(f"{given.get('name')}: unknown keys: {', '.join(sorted(unknown))}")
            tests = tuple(given.get("tests") or file["tests"])
            found.append(Break(**{**given, "file": file["path"], "tests": tests}))
    names = [broken.name for broken in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise MutantError(f"names that are given twice: {', '.join(sorted(twice))}")
    return found


def broken_text(broken: Break, root: Path = ROOT) -> str:
    """The file's text with the break. Raises MutantError unless the text to replace is there exactly once."""
    path = root / broken.file
    if not path.is_file():
        raise MutantError(f"{broken.name}: there is no file {broken.file}")
    text = path.read_text()
    count = text.count(broken.find)
    if count != 1:
        raise MutantError(f"{broken.name}: {broken.file} holds the text {count} times; expected once:\n{broken.find}")
    return text.replace(broken.find, broken.put)


def check_list(chosen: Sequence[Break], root: Path = ROOT) -> None:
    """Raises MutantError, with all that is wrong, where a text or a test file of the list is not there."""
    wrong = []
    for broken in chosen:
        try:
            broken_text(broken, root)
        except MutantError as error:
            wrong.append(str(error))
        missing = {test.partition("::")[0] for test in broken.tests}
        wrong += [f"{broken.name}: there is no file {test}" for test in sorted(missing) if not (root / test).is_file()]
    if wrong:
        raise MutantError("\n".join(wrong))


def copy_tree(target: Path) -> Path:
    """A copy of what the tests need. Its compiled files are checked by content: a break may leave the size as it was."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        elif source.is_file():
            shutil.copy2(source, target / name)
    compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "cudnnpy", "tools"]
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
        [*command, *more, *tests],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    tree = xml.parse(report).getroot() if report.is_file() else xml.Element("testsuites")
    return done.returncode, done.stdout + done.stderr, tree


def problems(report: xml.Element) -> Iterator[tuple[str, str, str]]:
    """(test, "failure" or "error", message) of the tests that did not pass."""
    for case in report.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            yield f"{case.get('classname')}::{case.get('name')}", problem.tag, problem.get("message") or ""


def judge(broken: Break, root: Path) -> Outcome:
    """Applies a break to a copy of the tree, runs its tests there, and undoes it."""
    path = root / broken.file
    whole = path.read_text()
    start = time.monotonic()
    try:
        path.write_text(broken_text(broken, root))
        status, output, report = run_tests(root, broken.tests, "-x")
    except subprocess.TimeoutExpired:
        return Outcome(broken, "", f"its tests ran for more than {SECONDS} seconds", time.monotonic() - start)
    finally:
        path.write_text(whole)
    seconds = time.monotonic() - start
    found = list(problems(report))
    failed = [(test, message) for test, tag, message in found if tag == "failure"]
    if status == 0:
        return Outcome(broken, "", "its tests pass", seconds)
    if not failed or any(message.startswith(NOT_A_BEHAVIOR) for _, message in failed):
        said = "\n".join(message for *_, message in found) or output[-2000:]
        return Outcome(broken, "", f"its tests could not run:\n{said}", seconds)
    return Outcome(broken, failed[0][0], "", seconds)


def check_unbroken(root: Path, tests: Sequence[str]) -> None:
    """Raises MutantError where a test of the list fails without a break, or does not exist."""
    try:
        status, output, report = run_tests(root, tests, write=True, seconds=SECONDS_UNBROKEN)
    except subprocess.TimeoutExpired as error:
        raise MutantError(f"without a break the tests run for more than {SECONDS_UNBROKEN} seconds") from error
    if status:
        raise MutantError(f"the tests do not pass on the unbroken tree:\n{output[-6000:]}")
    skipped = {
        f"{case.get('classname')}::{case.get('name')}"
        for case in report.iter("testcase")
        if case.find("skipped") is not None
    }
    for name in sorted(skipped):
        print(f"skipped without a break: {name}")


def judged(chosen: Sequence[Break], jobs: int) -> Iterator[Outcome]:
    """The outcomes in the order of the list, from `jobs` copies of the tree side by side."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first = copy_tree(Path(folder) / "tree")
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


def selected(names: Sequence[str], known: Sequence[Break]) -> list[Break]:
    """The breaks of these names, all of them without names. Raises MutantError for an unknown one."""
    unknown = set(names) - {broken.name for broken in known}
    if unknown:
        raise MutantError(f"unknown breaks: {', '.join(sorted(unknown))}; --list names them all")
    return [broken for broken in known if not names or broken.name in names]


def share(text: str) -> tuple[int, int]:
    """Turn "2/4", the second of four shares, into (2, 4)."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"a share must be such as 1/4 or 4/4; got {text!r}")
    return int(part), int(parts)


def main(arguments: Any = None) -> int:
    """Returns 0 if every break is noticed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="breaks of the list (default: all)")
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="how many run side by side")
    parser.add_argument(
        "--share", type=share, default=(1, 1), metavar="1/4", help="every fourth break, from the first on"
    )
    given = parser.parse_args(arguments)
    part, parts = given.share
    try:
        chosen = selected(given.names, breaks())[part - 1 :: parts]
        check_list(chosen)
        if given.list:
            print("\n".join(f"{broken.name:32} {broken.file}: {broken.why}" for broken in chosen))
            return 0
        survivors = []
        for outcome in judged(chosen, max(1, given.jobs)):
            result = "SURVIVED" if outcome.survived else "noticed "
            print(f"{result} {outcome.seconds:5.1f} s  {outcome.broken.name:32} {outcome.noticed_by}", flush=True)
            if outcome.survived:
                survivors.append(outcome)
    except MutantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for outcome in survivors:
        print(
            f"\n{outcome.broken.name} ({outcome.broken.why or outcome.broken.put}): {outcome.survived}", file=sys.stderr
        )
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} breaks were noticed", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
