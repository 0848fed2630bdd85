"""The example in bytes of cudnnpy/_launch/direct/DESIGN.md is the result of the code."""

from __future__ import annotations

from pathlib import Path

import cudnnpy
from cudnnpy._launch.direct.relocations import find_relocations, probe_addresses

PAGE = (Path(cudnnpy.__file__).parent / "_launch" / "direct" / "DESIGN.md").read_text()
NAMES = ("x", "w", "y", "workspace")


def rows(head: str) -> list[list[str]]:
    """The cells of the table with a head, without backticks."""
    lines = PAGE.partition(f"{head}\n")[2].splitlines()[1:]
    table = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]


def test_the_example_is_true() -> None:
    addresses = {name: tuple(int(cell, 16) for cell in cells) for name, *cells in rows("| | x | w | y | workspace |")}
    probes = list(probe_addresses(addresses["A"]))
    assert probes == [addresses[name] for name in "BCD"]
    table = rows("| offset | 1: A | 2: B | 3: A | 4: C | 5: D |")
    captures = [b"".join(bytes.fromhex(row[column]) for row in table) for column in range(1, 6)]
    first, *rest = captures
    probed = [rest[0], *rest[2:]]
    found = find_relocations(addresses["A"], [first, rest[1]], list(zip(probes, probed, strict=True)))
    assert found is not None
    assert [
        [str(at), "8" if wide else "4", NAMES[operand], f"{addend:x}"] for wide, at, operand, addend in found
    ] == rows("| offset | bytes | operand | addend |")
