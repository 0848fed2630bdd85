"""`python -m tools.measured FILES`: writes a table of measurements, and judges it by leaving networks out.

python -m tools.measured.survey FOLDER --seconds 300 --seed 1      on a GPU: writes an export of a store
python -m tools.measured FOLDER/*.jsonl --gpu "NVIDIA H200" --capability 9.0 --cudnn 9.19
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from cudnnpy._planning import measurement_table
from cudnnpy._planning.problem import is_strict
from cudnnpy.convolution.table_features import features
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import cells
from tools.measured import judge, write
from tools.measured.rows import Row, read
from tools.ranking.problems import problem_of

LONG_MS = 0.02
TABLES = Path(measurement_table.__file__).with_name("tables")


def with_networks(rows: list[Row]) -> list[Row]:
    """Return rows with the networks of the benchmark that have their problems; a row of no network stays by itself."""
    shapes = {row.features.sizes[:axes] for row in rows for axes in (3, 4, 5)}
    networks: dict[Any, set[str]] = {}
    for cell in (cell for of_network in cells(catalogue.read()).values() for cell in of_network):
        if shapes.isdisjoint((cell.layer.x_shape(cell.batch), cell.layer.y_shape(cell.batch))):
            continue
        problem, options = problem_of(cell)
        if (found := features(problem, is_strict(problem, options))) is not None:
            networks.setdefault((found.kind, found.sizes), set()).update(cell.networks)
    known = ((row, networks.get((row.features.kind, row.features.sizes))) for row in rows)
    return [row._replace(networks=frozenset(names)) if names else row for row, names in known]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="exports of a store, rows of tools.benchmark")
    parser.add_argument("--gpu", required=True, help="its name, for the table's first line")
    parser.add_argument("--capability", required=True, help="its compute capability, such as 9.0")
    parser.add_argument("--cudnn", required=True, help="the release that was measured, such as 9.19")
    parser.add_argument("--out", type=Path, default=TABLES, help="the folder of tables (the package's)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the problems of the present table that the files lack"
    )
    given = parser.parse_args(arguments)
    rows = with_networks(read(given.files, given.capability, given.cudnn))
    if not rows:
        parser.error("files must have measured problems; got none")
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
