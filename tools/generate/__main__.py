"""`python -m tools.generate [--check]`: headers -> api.jsonl -> the four files of _OUTPUTS.

It writes cudnnpy/__init__.pyi as well, from the table of public names in cudnnpy/__init__.py.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

import cudnnpy
from tools.generate import exports, records, render

ROOT = Path(__file__).resolve().parents[2]

# The only files that the generator writes, in both of its modes: these from the headers, and the package's own stub.
_OUTPUTS: dict[Path, Callable[[render.Api], str]] = {
    ROOT / "cudnnpy" / "raw" / "_api.py": render.module,
    ROOT / "cudnnpy" / "raw" / "_api.pyi": render.stub,
    ROOT / "cudnnpy" / "_enumerator_names.py": render.enumerator_names,
    ROOT / "docs" / "coverage.md": render.coverage,
}
_PACKAGE_STUB = ROOT / "cudnnpy" / "__init__.pyi"
_REPAIR = "python -m tools.generate"


def _from_headers() -> str:
    from tools.generate import headers  # libclang and the headers are needed for this step alone

    return records.dump(headers.read())


def main() -> int:
    """Exit status 0 when all is written, or with --check unchanged; 1 with a diff on standard output."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail with a diff where a file would change"
    )
    parser.add_argument(
        "--from-api",
        action="store_true",
        help="start from the committed api.jsonl: neither headers nor libclang needed",
    )
    options = parser.parse_args()
    api = records.API.read_text() if options.from_api else _from_headers()
    parsed = render.Api(records.load(api))
    wanted = {records.API: api, **{path: make(parsed) for path, make in _OUTPUTS.items()}}
    wanted[_PACKAGE_STUB] = exports.stub(cudnnpy._LAZY)
    changed = 0
    for path, text in wanted.items():
        present = path.read_text() if path.exists() else ""
        if present == text:
            continue
        changed += 1
        name = str(path.relative_to(ROOT))
        if options.check:
            lines = difflib.unified_diff(present.splitlines(True), text.splitlines(True), name, f"{name} (generated)")
            sys.stdout.writelines(lines)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if options.check and changed:
        print(f"{changed} generated file(s) differ; repair: {_REPAIR}")
        return 1
    print(f"cuDNN {parsed.version}: {len(wanted) - changed} file(s) unchanged, {changed} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
