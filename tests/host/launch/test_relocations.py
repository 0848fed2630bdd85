"""The example in bytes of cudnnpy/_launch/direct/DESIGN.md is the result of the code."""

from __future__ import annotations

import re
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


def test_distances_in_the_text_are_those_of_the_first_probe() -> None:
    addresses = {name: tuple(int(cell, 16) for cell in cells) for name, *cells in rows("| | x | w | y | workspace |")}
    distances = [f"{there - here:x}" for here, there in zip(addresses["A"], addresses["B"], strict=True)]
    assert re.findall(r"moved from A to B by (\S+),|moved by (-\S+),", PAGE) == [(distances[0], ""), ("", distances[1])]


def test_the_workspace_and_the_operands_are_apart_and_differ_in_each_probe() -> None:
    addresses = (0x7F00_0010_0000, 0x7F00_0010_0000, 0x20_0000, 0x7F00_0040_0000)
    probes = list(probe_addresses(addresses))
    assert len({address for probe in probes for address in probe}) == 12
    low = [there - here & 0xFFFF_FFFF for here, there in zip(addresses, probes[0], strict=True)]
    assert len(set(low)) == 4
    assert [address % 32 for address in probes[1][:3]] == [16] * 3
    assert all(probe[3] % 512 == 256 for probe in probes[1:])
