"""cudnnpy.trace on a GPU: lines that plan the same again, times, and captures that a trace does not disturb."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import cudnnpy
import cudnnpy.torch
from cudnnpy.tuning import problem_file

PROGRAM = """
import cudnnpy
x, w = cudnnpy.empty((4, 16, 32, 32), "float16"), cudnnpy.empty((32, 16, 3, 3), "float16")
conv = cudnnpy.Convolution(padding=1, prefer="limited_workspace", workspace_limit=1 << 24)
for _ in range(5):
    y = conv.forward(x, w)
cudnnpy.Pooling(window=2, stride=2).forward(y)
cudnnpy.to_numpy(y)
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def traced(level: int, call: Callable[[], object]) -> list[str]:
    file = io.StringIO()
    with cudnnpy.trace(level, file=file):
        call()
    return file.getvalue().splitlines()


def microseconds(line: str) -> float:
    found = re.search(r"; host [\d.]+ us; [^;]+; GPU <?([\d.]+) us$", line)
    assert found, line
    return float(found[1])


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, *command], env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("level", ["1", "2"])
def test_the_lines_of_a_program_are_a_file_of_problems(level: str, tmp_path: Path) -> None:
    done = run("-c", PROGRAM, CUDNNPY_VERBOSE=level)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "; host " in line]
    assert len(lines) == 6
    assert lines[-1].startswith("# pooling: ")
    assert all(("; GPU " in line) == (level == "2") for line in lines)
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f"{line}\n" for line in lines))
    (problem,) = problem_file.read(trace)
    assert problem.text == ("forward 4x16x32x32 32x16x3x3 pad=1 float16 prefer=limited_workspace workspace_limit=16MiB")
    explained = run("-m", "cudnnpy", "explain", "--json", lines[1])
    assert explained.returncode == 0, explained.stderr
    assert lines[1].split(" # ")[1].startswith(f"{json.loads(explained.stdout)['choice']['name']}; ")


def test_gpu_times_are_of_the_work_alone() -> None:
    """Of a long kernel as events around launches say, and of a short one less than a launch takes on the host.

    The least of several times, since other processes may use the GPU.
    """
    conv, x, w = cudnnpy.Convolution(padding=1, tf32=False), draw(64, 64, 56, 56), draw(64, 64, 3, 3)
    out = conv.forward(x, w)
    for _ in range(8):  # the launches become direct, which takes the host milliseconds
        conv.forward(x, w, out=out)

    def of_events(count: int = 4) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            conv.forward(x, w, out=out)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / count * 1e3

    expected = min(of_events() for _ in range(10))
    lines = traced(2, lambda: [conv.forward(x, w, out=out) for _ in range(9)])
    assert min(map(microseconds, lines)) == pytest.approx(expected, rel=0.3)
    small, result = draw(1, 8, 8, 8), draw(1, 8, 8, 8)
    relu = cudnnpy.Activation("relu")
    lines = [
        line for line in traced(2, lambda: [relu.forward(small, out=result) for _ in range(19)]) if "<" not in line
    ]
    assert len(lines) > 10
    assert min(map(microseconds, lines)) < 10


@pytest.mark.parametrize("level", [1, 2])
def test_a_capture_is_not_disturbed(level: int) -> None:
    conv, x, w = cudnnpy.Convolution(padding=1, tf32=False), draw(2, 8, 16, 16), draw(8, 8, 3, 3)
    out = torch.empty(2, 8, 16, 16, device="cuda")
    conv.forward(x, w, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            conv.forward(x, w, out=out)

    (line,) = traced(level, capture)
    assert line.endswith("; captured")
    x.copy_(draw(2, 8, 16, 16))
    expected = conv.forward(x, w)
    assert traced(level, graph.replay) == []
    torch.testing.assert_close(out, expected)


def test_another_thread_may_be_traced_during_a_capture() -> None:
    """PyTorch captures so that calls of any thread which might wait for the GPU would end the capture."""
    conv, x, w = cudnnpy.Convolution(padding=1, tf32=False), draw(2, 8, 16, 16), draw(8, 8, 3, 3)
    out, other = (torch.empty(2, 8, 16, 16, device="cuda") for _ in range(2))
    conv.forward(x, w, out=out)
    is_planned, is_capturing = threading.Event(), threading.Event()
    stream, lines = torch.cuda.Stream(), list[str]()

    def work() -> None:
        with torch.cuda.stream(stream):
            try:
                for _ in range(4):  # the launch is direct then
                    conv.forward(x, w, out=other)
                stream.synchronize()
            finally:
                is_planned.set()
            is_capturing.wait(60)
            lines.extend(traced(2, lambda: conv.forward(x, w, out=other)))

    thread = threading.Thread(target=work)
    thread.start()
    is_planned.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        conv.forward(x, w, out=out)
        is_capturing.set()
        thread.join()
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert len(lines) == 1
    assert microseconds(lines[0]) > 0
    torch.testing.assert_close(out, other)


@pytest.mark.parametrize("level", [1, 2])
def test_pytorch_programs(level: int) -> None:
    x, w = draw(2, 8, 16, 16), draw(8, 8, 3, 3).requires_grad_()

    def step() -> None:
        y = F.conv2d(x.requires_grad_(), w, padding=1)
        torch.autograd.grad(y.sum(), [x, w])

    with cudnnpy.torch.enable():
        lines = traced(level, lambda: [step() for _ in range(2)])
    operations = ["forward", "backward_data", "backward_filter"] * 2
    assert [line.partition(" ")[0] for line in lines] == operations
    assert ["; planned in " in line for line in lines] == [True] * 3 + [False] * 3
    assert level == 1 or all(microseconds(line) > 0 for line in lines)
