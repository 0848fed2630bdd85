"""Small files and arguments take little memory, and errors show them short and printable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up_entries import CANDIDATES, entry

from cudnnpy._checks.option_values import error_repr, printable
from cudnnpy._checks.size_limits import MAX_PRINTED_CHARACTERS, MAX_SHOWN_CHARACTERS
from cudnnpy.cli import text_table
from cudnnpy.store import Store
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.store.levels import Layers

# Each call must fail within 500 MiB more memory than the process has, and with a message that can be shown.
_PROGRAM = r"""
import hashlib, re, resource, sys, warnings
from itertools import repeat
from pathlib import Path
import numpy as np
import cudnnpy
from cudnnpy import Engine
from cudnnpy._core.layouts import TensorSpec, check_spec
from cudnnpy._planning import choice
from cudnnpy._planning import problem_notation; from cudnnpy.tuning import problem_file
from cudnnpy.store import Store
from cudnnpy._layers.graph import _checked_axes as checked_axes

class Huge:  # an array
    shape = (10**9,)
    tolist = None
    def __iter__(self):
        return repeat(np.int64(1))

folder = Path(sys.argv[1])
def file(name, content):
    (folder / name).write_bytes(content)
    return folder / name

header = b'{"format":4,"kind":"cudnnpy store"}\n'
calls = [
    *(
        lambda path=file(f"{number}.txt", content): problem_file.read(path)
        for number, content in enumerate((
            b"x" * 10_000_000,
            b"1 " * 8_000_000,
            b"\n" * (16 << 20),
            b"x\n" * 8_000_000,
            b"[[a.b]]\n" * 1_000_000,
            b"{" + b'"' * 10_000_000,
            b"forward " + b"1 " * 500_000,
            b"forward 1x1x1x1 1x1x1x1 pad=" + b"1," * 500_000 + b"1",
            b"#" * (17 << 20),
        ))
    ),
    lambda: problem_notation.parse("1 " * 5_000_000),
    lambda: choice.deserialize('"' + "\\" * 8_000_000),
    lambda: choice.deserialize("[" + "[]," * 1_000_000 + "1]"),
]
limit = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024 + (500 << 20)
content = b'"id":"entry %s","record":[%s]}' % (b"0" * 64, b"[]," * 20_000_000)
long = file("long.jsonl", header + b'{"checksum":"%s",%s\n' % (hashlib.sha256(content).hexdigest().encode(), content))
del content
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with warnings.catch_warnings(record=True) as caught:
    assert len(Store(long)) == 0
assert "1 damaged or missing lines" in str(caught[0].message)
for many in (range(10**9), repeat(1), Huge()):
    calls += [
        lambda many=many: cudnnpy.Convolution(padding=many),
        lambda many=many: cudnnpy.Convolution(stride=many),
        lambda many=many: cudnnpy.Convolution(dilation=(many, 1)),
        lambda many=many: cudnnpy.Convolution(padding=(many, 1)),
        lambda many=many: cudnnpy.Convolution(workspace_limit=many),
        lambda many=many: cudnnpy.Pooling(window=many),
        lambda many=many: cudnnpy.Convolution().output_shape(many, (1, 1, 1, 1)),
        lambda many=many: checked_axes(many, 4),
        lambda many=many: check_spec("x", TensorSpec((1, 1), strides=many)),
        lambda many=many: cudnnpy.empty(many),
        lambda many=many: Engine(1, many),
    ]
calls += [
    lambda: cudnnpy.Convolution(mode="x" * 50_000_000),
    lambda: cudnnpy.Convolution(padding="x" * 50_000_000),
    lambda: cudnnpy.Convolution(algorithm="x" * 50_000_000),
    lambda: cudnnpy.Convolution(padding=[1] * 1_000_000),
    lambda: Engine(1, ((1, 1) for _ in repeat(0))),
]
for number, call in enumerate(calls):
    try:
        call()
    except (TypeError, ValueError) as error:
        assert len(str(error)) < 4000, (number, len(str(error)))
    else:
        raise AssertionError(number)
print(len(calls))
"""


def test_small_files_and_arguments_take_little_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "50\n"), done.stderr[-3000:]


def test_a_value_is_shown_in_few_characters() -> None:
    for value in ("x" * 10**7, b"x" * 10**7, [1] * 10**6, (10**600,) * 9, {1: "x" * 5000}):
        assert len(error_repr(value)) == MAX_SHOWN_CHARACTERS
        assert error_repr(value).endswith("...")
    for short in ("x" * 900, [1] * 300, None, 1.5, "\x1b"):
        assert error_repr(short) == repr(short)


CONTROL = "\ud800\x1b[2J\x9b\u202e"


@pytest.mark.parametrize(
    "changes",
    [
        {"text": CONTROL},
        {"lowering": CONTROL},
        {"gpu": CONTROL},
        {"made_with": {"cudnnpy": CONTROL}},
        {"made_with": {CONTROL: ""}},
        *(
            {"candidates": (CANDIDATES[0]._replace(**{field: value}),), "chosen": 0}
            for field, value in (
                ("name", CONTROL),
                ("source", CONTROL),
                ("rejection_reason", CONTROL),
                ("notes", (CONTROL,)),
            )
        ),
    ],
)
def test_an_entry_without_control_characters_is_kept_alone(changes: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(entry(**{"text": "forward", **changes}).plain()))
    with pytest.raises(ValueError, match="must be a str without control characters") as caught:
        Entry.of(plain)
    assert str(caught.value).isprintable()


def test_the_detail_of_a_fault_is_printable() -> None:
    with Store("") as store:
        Layers(store).add_faults(entry("forward").key, "forward", [("engine 1", "not confirmed", CONTROL, "13.0")])
        (fault,) = store.faults()
    assert fault.detail == printable(CONTROL) == r"\ud800\x1b[2J\x9b\u202e"


def test_what_the_command_prints_is_printable_and_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert text_table.say("cudnnpy tune", f"{CONTROL}\n{'x' * 300_000}", 2) == 2
    text_table.show([CONTROL])
    out, err = capsys.readouterr()
    assert out == f"{printable(CONTROL)}\n"
    assert err == f"cudnnpy tune: {printable(CONTROL)}\n{'x' * MAX_PRINTED_CHARACTERS}...\n"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "\udcff\x1b.txt", "--device", "p\udcff.json", "-o", "o\udcff"),
        ("explain", "forward", "1x1x1x1", "1x1x1x1", "--device", "\udcff\x1b"),
    ],
)
def test_names_of_files_that_are_not_utf_8(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cudnnpy", *map(os.fsencode, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert b"\\udcff" in done.stderr
    assert b"\x1b" not in done.stderr
    assert b"Traceback" not in done.stderr
