"""The programs in the pages of the documentation.

A block that starts with ```python runs anywhere, on a GPU and without one. One that starts with ```python gpu needs a
GPU; one that starts with ```python cpu is the other form of it, and runs where the page runs without a GPU. Words after
these name packages that the block needs as well: ```python gpu torch, ```python torch. Such blocks are left out where the
package is not asked for, on a GPU and without one, so no other block may build on them.

The blocks of a page share their names, from top to bottom.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))  # below docs
PLACES = ("gpu", "cpu")
PACKAGES = ("torch", "cupy", "jax", "cudnn")  # cudnn: cudnn-frontend


class Block(NamedTuple):
    first_line: int  # of the page, counted from 0
    words: tuple[str, ...]  # after "python"
    lines: list[str]

    @property
    def place(self) -> str:
        """Where the block runs: "gpu", "cpu", or "" for both."""
        return self.words[0] if self.words and self.words[0] in PLACES else ""

    @property
    def packages(self) -> tuple[str, ...]:
        return self.words[1:] if self.place else self.words


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page. A fence that is not closed, or a word that means nothing, is an AssertionError."""
    found: list[Block] = []
    opened: Block | None = None
    for number, line in enumerate(text.splitlines()):
        if not line.startswith("```"):
            if opened is not None:
                opened.lines.append(line)
        elif opened is None:
            opened = Block(number + 1, tuple(line[3:].split()), [])
        else:
            assert line == "```", f"line {number + 1}: a fence inside a block"
            if opened.words[:1] == ("python",):
                block = opened._replace(words=opened.words[1:])
                strange = [word for word in block.packages if word not in PACKAGES]
                assert not strange, f"line {opened.first_line}: {strange[0]!r} is neither gpu, cpu nor a package"
                found.append(block)
            opened = None
    assert opened is None, f"line {opened.first_line if opened else 0}: the block is not closed"
    return found


def packages(page: str, gpu: bool = True) -> list[tuple[str, ...]]:
    """Every set of packages that some block needs that runs on a GPU, or without one; () for none.

    It is empty if the page has no block for the GPU alone, or none that runs without one.
    """
    return sorted({block.packages for block in _of(page) if (block.place == "gpu" if gpu else block.place != "gpu")})


def _of(page: str) -> list[Block]:
    return blocks((ROOT / "docs" / page).read_text())


def program(text: str, needs: tuple[str, ...] = (), gpu: bool = True) -> str:
    """The blocks that run together, on a GPU or without one, on the lines that they have in the page.

    `needs` are the packages that blocks may need, all or none.
    """
    lines = [""] * len(text.splitlines())
    for block in blocks(text):
        if block.place != ("cpu" if gpu else "gpu") and block.packages in ((), needs):
            lines[block.first_line : block.first_line + len(block.lines)] = block.lines
    return "\n".join(lines) + "\n"


def run(page: str, folder: Path, needs: tuple[str, ...] = (), gpu: bool = True) -> None:
    """Runs a page's program in a folder; the page says what some lines print: print(1 + 1)  # -> 2."""
    source = program((ROOT / "docs" / page).read_text(), needs, gpu)
    file = folder / f"{Path(page).name}.py"
    file.write_text(source)
    examples = str(ROOT / "docs" / "examples")  # a page says which of them is to be copied beside the program
    code = f"import sys; sys.path[:0] = {[str(ROOT), examples]!r}; exec(compile(open({str(file)!r}).read(), {page!r}, 'exec'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}:\n{done.stderr}"
    missing = unprinted(source, done.stdout)
    assert not missing, f"{page} promises {missing[0]!r}, and this was printed:\n{done.stdout}"


def unprinted(source: str, output: str) -> list[str]:
    """The promised lines (after "# -> ") that were not printed, in their order, each by itself."""
    printed = iter(output.splitlines())
    return [wanted for wanted in re.findall(r"# -> (.+)", source) if wanted not in printed]
