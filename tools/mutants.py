"""Breaks the package on purpose, one break at a time, and requires a host test to fail for each: `make mutants`.

tools/mutants.toml is the list: for each file the breaks, each a text of the file, the text that replaces it, the tests of
which one must fail, and the effect on users. `--check` prints the entries whose file, text or test does not exist.

The tests of the list must pass without a break first. A break that no test notices is a survivor, and so is one that only
keeps the tests from running.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("cudnnpy", "tools", "docs", "tests", "pyproject.toml", "README.md", "LICENSE")
SECONDS = 180  # for the tests of one break
SECONDS_UNBROKEN = 1200  # for all tests without one

# Errors of a break that does not run, whatever it breaks.
_NOT_A_BEHAVIOR = re.compile(r"^E +(ImportError|ModuleNotFoundError|NameError|UnboundLocalError|SyntaxError)", re.M)


class Break(NamedTuple):
    """A text of a file and its replacement, the tests of which at least one must fail, and the effect on users."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    effect: str

    def __str__(self) -> str:
        return f"{self.file}: {self.effect}"


def read() -> list[Break]:
    """Return the breaks of the list."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [
        Break(file, row["old"], row["new"], tuple(row["tests"]), row["effect"])
        for file, rows in tables.items()
        for row in rows
    ]


def problems(broken: Break) -> Iterator[str]:
    """Yield the reasons for which a break cannot be tried: a text or a test that does not exist."""
    file = ROOT / broken.file
    if not file.is_file():
        yield "there is no such file"
    elif (count := file.read_text(encoding="utf-8").count(broken.old)) != 1 or broken.old == broken.new:
        yield f"the text must be there once and be changed; it is there {count} times: {broken.old!r}"
    for test in broken.tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).is_file() or f"def {name.partition('[')[0]}" not in (ROOT / path).read_text("utf-8"):
            yield f"there is no test {test}"


def run_tests(root: Path, tests: Sequence[str], *options: str, seconds: float) -> tuple[int, str]:
    """Return pytest's exit status and its output. Raises subprocess.TimeoutExpired."""
    # The examples that hypothesis draws are the same in each run; a broken module must not be taken from a cache.
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *options, *tests]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.returncode, done.stdout + done.stderr


def survival(broken: Break, root: Path) -> str:
    """Try a break in a copy of the tree, and undo it; return the reason for which no test noticed it, or ""."""
    path = root / broken.file
    whole = path.read_text(encoding="utf-8")
    try:
        path.write_text(whole.replace(broken.old, broken.new), encoding="utf-8")
        status, output = run_tests(root, broken.tests, "-x", seconds=SECONDS)
    except subprocess.TimeoutExpired:
        return f"its tests ran for more than {SECONDS} seconds"
    finally:
        path.write_text(whole, encoding="utf-8")
    if status == 0:
        return "its tests pass"
    if status != 1 or not re.search(r"^FAILED ", output, re.M) or _NOT_A_BEHAVIOR.search(output):
        return f"its tests could not run:\n{output[-2000:]}"
    return ""


def survivors(chosen: Sequence[Break], jobs: int) -> Iterator[Break]:
    """Try breaks in `jobs` copies of the tree side by side, and yield those that no test notices.

    Exits where a test fails without a break.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            tree = Path(folder, str(number))
            for name in COPIED:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
                copy(ROOT / name, tree / name)
            # compiled files are checked by content, since a break may leave the size and the second of the change
            subprocess.run(
                [sys.executable, "-m", "compileall", "-qf", "--invalidation-mode", "checked-hash", "cudnnpy", "tools"],
                cwd=tree,
                check=True,
            )
            trees.put(tree)
        tests = sorted({test for broken in chosen for test in broken.tests})
        status, output = run_tests(tree, tests, seconds=SECONDS_UNBROKEN)
        if status:
            sys.exit(f"the tests must pass without a break:\n{output[-6000:]}")

        def work(broken: Break) -> str:
            root, begin = trees.get(), time.monotonic()
            try:
                survived = survival(broken, root)
            finally:
                trees.put(root)
            print(f"{'SURVIVED' if survived else 'noticed'} {time.monotonic() - begin:5.1f} s  {broken}", flush=True)
            return survived

        with ThreadPoolExecutor(jobs) as pool:
            for broken, survived in zip(chosen, pool.map(work, chosen), strict=True):
                if survived:
                    print(f"\n{broken}: {survived}", file=sys.stderr)
                    yield broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every break is noticed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", help="files of the list, or parts of their names (default: all)")
    parser.add_argument("--check", action="store_true", help="print the entries that do not exist, and run nothing")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="how many run side by side")
    parser.add_argument("--share", default="1/1", metavar="2/8", help="every eighth break, from the second")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.share.split("/"))
    known = read()
    missing = [f"{broken}: {problem}" for broken in known for problem in problems(broken)]
    if missing or options.check:
        print("\n".join(missing) or f"{len(known)} breaks exist")
        return int(bool(missing))
    named = [broken for broken in known if not options.files or any(name in broken.file for name in options.files)]
    chosen = named[part - 1 :: parts]
    survived = list(survivors(chosen, max(1, options.jobs)))
    print(f"{len(chosen) - len(survived)} of {len(chosen)} breaks were noticed", file=sys.stderr)
    return int(bool(survived) or not chosen)


if __name__ == "__main__":
    raise SystemExit(main())
