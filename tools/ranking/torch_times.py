"""`python -m tools.ranking.torch_times LIST -o FILE`: PyTorch's times of the cells that a survey of the list measures.

FILE has a line for each cell: its number and text, as in the survey with the same seed and expression, its name, and the
milliseconds of PyTorch with its search (torch.backends.cudnn.benchmark). The same command continues an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmark.command import usable_torch
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.tensors import operands, torch_call
from tools.benchmark.timing import Budget, times_in_turns
from tools.ranking.drawing import listed, of_cell
from tools.rows import Writer, read

_SECONDS, _MOST, _LEAST = 0.1, 9, 3  # of timing a cell, and its repetitions


def milliseconds(torch: Any, cell: Cell) -> float:
    """Return PyTorch's time of a cell."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, cell.kind.tf32
    calls = [torch_call(torch, cell, one) for one in operands(torch, cell)]
    with torch.no_grad():
        times = times_in_turns(torch, {"torch": calls}, _MOST, _LEAST, Budget(_SECONDS))
    return median(times["torch"] + times["torch, again"])


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.ranking.torch_times", description=__doc__)
    parser.add_argument("list", type=Path, help="a list of networks")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no cell is begun (60)")
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the cells (1)")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="cells whose names match")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file")
    given = parser.parse_args(arguments)
    torch, end = usable_torch(), Budget(given.seconds)
    done, writer = {row["number"] for row in read(given.output)}, Writer(given.output)
    for number, cell in enumerate(listed(given.list, given.seed, given.only)):
        if number in done or not end.left:
            continue
        row: dict[str, Any] = {**of_cell(number, cell)._asdict(), "name": cell.name}
        try:
            row["torch"] = round(milliseconds(torch, cell), 6)
        except RuntimeError as error:  # torch has no kernel for it, or no memory
            row["error"] = str(error)[:200]
        writer.add(row)
        torch.cuda.empty_cache()
    print(f"{len(read(given.output))} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main())
