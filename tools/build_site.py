"""Build the documentation as a site: what `make docs` runs, in an environment with the extra `docs`.

    python -m tools.build_site                 # docs/ -> build/docs/html; a warning is an error
    python -m tools.build_site --out FOLDER    # -> FOLDER/html

The pages are plain Markdown, written to be read in the repository as well. They are copied into a folder of sources, where
docs/ is the top: links between them stay as they are, and a file elsewhere in the repository that a page links to is
copied to project/, with the link changed to lead there. Python files become pages that show them. The pages of the
reference are written beside them, one for each public name. Sphinx reads that folder with docs/conf.py.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tools import c_pages, public_api

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"
ELSEWHERE = "project/"  # where files from outside docs/ lie in the site
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.DOTALL)

Files = dict[PurePosixPath, bytes]  # of the folder of sources, by path


def place(file: str) -> PurePosixPath:
    """Return the place of a file of the repository in the folder of sources."""
    return PurePosixPath(file.removeprefix(DOCS) if file.startswith(DOCS) else ELSEWHERE + file)


def links(text: str) -> list[str]:
    """Return the files that a page links to, without anchors; except in code blocks."""
    return [link for part in FENCE.split(text)[::2] for link in LINK.findall(part)]


def relinked(page: str, text: str) -> str:
    """Return the text of a page whose links lead to the same files in the folder of sources.

    `page` is the page's path in the repository. A link out of the repository is a ValueError.
    """
    here = place(page).parent

    def moved(link: re.Match[str]) -> str:
        file = os.path.normpath(os.path.join(os.path.dirname(page), link[1]))
        if file.startswith(".."):
            raise ValueError(f"{page} links to {link[1]}, outside of the repository")
        target = place(file)
        return os.path.relpath(target.with_suffix(".rst") if target.suffix == ".py" else target, here)

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def sources(start: Iterable[str]) -> Files:
    """Return the files of the site: the pages `start`, and whatever they and the pages found so link to.

    What does not exist is left out, so that Sphinx reports the link with the page and the line.
    """
    found: Files = {}
    waiting = list(start)
    while waiting:
        file = waiting.pop()
        path = ROOT / file
        if place(file) in found or not path.is_file():
            continue
        found[place(file)] = path.read_bytes()
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            found[place(file)] = relinked(file, text).encode()
            waiting += [os.path.normpath(os.path.join(os.path.dirname(file), link)) for link in links(text)]
        elif path.suffix == ".py":
            found[place(file).with_suffix(".rst")] = program_page(path.name)
    return found


def program_page(name: str) -> bytes:
    """Return a page that shows a Python file beside it."""
    return f"{name}\n{'=' * len(name)}\n\n.. literalinclude:: {name}\n   :language: python\n".encode()


def reference() -> Files:
    """Return the index of the reference: a table of the names of each public module, with a page for each name."""
    folder = PurePosixPath("reference")
    files: Files = {}
    index = ["API reference", "=============", "", ".. toctree::", "   :maxdepth: 1", ""]
    for module, title in public_api.MODULES.items():
        first, *others = title.split()
        heading = f"``{module}``: {' '.join([first.lower() if first[1:].islower() else first, *others])}"
        names = [
            f"   {name}"
            for name in public_api.exported(module)
            if public_api.page_of(f"{module}.{name}") == f"{module}.{name}"
        ]
        lines = [heading, "=" * len(heading), "", f".. automodule:: {module}", ""]
        lines += [
            f".. currentmodule:: {module}",
            "",
            ".. autosummary::",
            "   :toctree: .",
            "   :nosignatures:",
            "",
            *names,
        ]
        files[folder / f"{module}.rst"] = "\n".join([*lines, ""]).encode()
        index.append(f"   {module}")
    files[folder / "index.rst"] = "\n".join([*index, ""]).encode()
    return files


def build(out: Path) -> int:
    """Write the folder of sources and build the site from it; return the exit status of Sphinx."""
    files = {**sources(pages()), **reference(), **c_pages.pages()}
    folder = out / "source"
    for stale in (folder, out / "html"):
        shutil.rmtree(stale, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", "-E"]
    command += ["-c", str(ROOT / "docs"), "-d", str(out / "doctrees"), str(folder), str(out / "html")]
    return subprocess.run(command, check=False).returncode


def pages() -> Iterator[str]:
    """Yield the pages that the site starts from: all of docs/, and those at the top that are for readers."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield path.relative_to(ROOT).as_posix()
    yield from ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; see the module's own text."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="default: build/docs")
    options = parser.parse_args(arguments)
    status = build(options.out)
    if status == 0:
        print(f"built {options.out / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
