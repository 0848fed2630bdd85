"""`python -m tools.measured FILES`: judges what surveys measured by leaving networks out, and writes the table.

python -m tools.measured.survey FOLDER --seconds 120 --seed 1      on a GPU: writes rows
python -m tools.measured FOLDER/*.jsonl --gpu "NVIDIA H200" --capability 9.0 --cudnn 9.19
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cudnnpy._planning import measurement_table
from tools.measured import judge, write
from tools.measured.rows import read

LONG_MS = 0.02
TABLES = Path(measurement_table.__file__).with_name("tables")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="rows of tools.measured.survey, exports of a store")
    parser.add_argument("--gpu", required=True, help="its name, for the table's first line")
    parser.add_argument("--capability", required=True, help="its compute capability, such as 9.0")
    parser.add_argument("--cudnn", required=True, help="the release that was measured, such as 9.19")
    parser.add_argument("--out", type=Path, default=TABLES, help="the folder of tables (the package's)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the problems of the present table that the files lack"
    )
    given = parser.parse_args(arguments)
    rows = read(given.files, given.capability, given.cudnn)
    if not rows:
        parser.error("files must have rows of a survey; got none")
    found = judge.left_out(rows)
    long = [one for one in found if one.row.best >= LONG_MS]
    print(judge.HEADER)
    print(judge.summary("all", found))
    for kind in sorted({one.row.features.kind[:3] for one in long}, key=str):
        print(judge.summary(" ".join(map(str, kind)), [one for one in long if one.row.features.kind[:3] == kind]))
    if long:
        print(judge.summary(f"{LONG_MS} ms or more", long))
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / measurement_table.file_name(given.capability, given.cudnn)
    kept = write.read(file.read_text(encoding="utf-8")) if given.keep and file.exists() else []
    text = write.table(rows, given.capability, given.cudnn, kept, GPU=given.gpu)
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}: {len(write.read(text)):,} problems, {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
