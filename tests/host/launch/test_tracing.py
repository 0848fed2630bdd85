"""cudnnpy.trace: one line for each call, which the notation accepts, and nothing of it while no call is traced."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from ctypes import c_float, c_void_p
from pathlib import Path
from typing import Any

import pytest
from sample_calls import SAMPLES, Sample
from stand_in_device import STREAM, Array, StandInDevice

import cudnnpy
from cudnnpy import Engine, TensorSpec
from cudnnpy._launch import dispatch, tracing
from cudnnpy._launch.dispatch import ArrayOperation
from cudnnpy._launch.launcher import Launcher
from cudnnpy._planning.problem_notation import parse
from cudnnpy.tuning import problem_file

ROOT = Path(__file__).resolve().parents[3]
TEXT = "forward 2x4x6x6 8x4x3x3 pad=1"
HOST = r"host \d+\.\d us; (direct|by cuDNN \([^;]+\))"


def arrays() -> tuple[Array, Array, Array]:
    return Array(2, 4, 6, 6), Array(8, 4, 3, 3), Array(2, 8, 6, 6)


def convolve(calls: int = 1, **options: Any) -> None:
    conv, (x, w, out) = cudnnpy.Convolution(padding=1, **options), arrays()
    for _ in range(calls):
        conv.forward(x, w, out=out)


class Lines(io.StringIO):
    """A file of lines."""

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture
def file() -> Lines:
    return Lines()


def test_a_binary_file_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="file must be a text file, not a binary one; got "):
        cudnnpy.trace(file=io.BytesIO())  # type: ignore[arg-type]


def test_each_call_is_a_line_with_the_problem_the_choice_and_the_times(stand_in: StandInDevice, file: Lines) -> None:
    stand_in.workspace_size = 1536
    with cudnnpy.trace(file=file):
        convolve(3)
    first, *later = file.lines
    beginning = re.escape(f"{TEXT} # made up; heuristics; workspace 1.5 KiB; ")
    assert re.fullmatch(rf"{beginning}planned in \d+\.\d ms; {HOST}", first)
    assert len(later) == 2
    assert all(re.fullmatch(f"{beginning}{HOST}", line) for line in later)


@pytest.mark.usefixtures("stand_in")
def test_the_source_of_a_choice(file: Lines) -> None:
    conv, (x, w, out) = cudnnpy.Convolution(padding=1), arrays()
    with cudnnpy.trace(file=file):
        convolve(algorithm=Engine(7))
        plan = conv.plan("forward", x, w, out=out)
        for layer, milliseconds in (("user", 0.25), ("", 0.25)):
            plan.store_layer, plan.milliseconds = layer, milliseconds
            plan._of_thread.__dict__.clear()
            plan.execute(x.pointer, w.pointer, out.pointer, 0, STREAM)
    assert [line.split("; ")[1] for line in file.lines] == ["algorithm=", "from the store (user)", "autotune (0.25 ms)"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_operation_is_traced(stand_in: StandInDevice, file: Lines, sample: Sample) -> None:
    call, given = sample.operation(), sample.given()
    with cudnnpy.trace(file=file):
        call(**given)
        call(**given)
    assert len(file.lines) == 2
    for line in file.lines:
        assert re.search(rf"; workspace [^;]+; (planned in [^;]+ ms; )?{HOST}$", line)
        if sample.launch == "cudnnBackendExecute" and line.startswith("graph "):
            parse(line)
        else:
            assert line.startswith("# ")
            launched = line.split("; ")[1].split(", ")
            fills = {"cuMemsetD16Async": "memset", "cuMemsetD32Async": "memset"}
            assert [fills.get(one.name, one.name) for one in stand_in.thread_state.launches] == launched


@pytest.mark.usefixtures("stand_in")
def test_convolutions_of_every_kind_have_a_line_that_is_read_again(file: Lines) -> None:
    x, w, y = arrays()
    conv = cudnnpy.Convolution(padding=1)
    transpose = cudnnpy.ConvolutionTranspose(padding=1, stride=2, output_padding=1)
    graph = cudnnpy.Graph()
    graph.output("out", graph.pointwise("relu_fwd", graph.tensor("x", TensorSpec((2, 4, 6, 6)))))
    with cudnnpy.trace(file=file):
        conv.forward(x, w, Array(8), "relu", out=y)
        conv.backward_data(y, w, out=x)
        conv.backward_filter(y, x, out=w)
        transpose.forward(y, w)
        cudnnpy.FusedConvolution(padding=1).forward(x, w, Array(8))
        graph.run(x=x)
        plan = graph.plan()
        plan.execute(x.pointer, Array(2, 4, 6, 6).pointer, 0, STREAM)
    lines = file.lines
    operations = ["forward", "backward_data", "backward_filter", "backward_data", "graph", "graph", "graph"]
    assert [parse(line)[0].operation for line in lines] == operations
    assert all(re.search(rf"; planned in \d+\.\d ms; {HOST}$", line) for line in lines)


def test_a_file_of_lines_is_a_file_of_problems(stand_in: StandInDevice, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    x, w, y = arrays()
    with open(path, "w") as file, cudnnpy.trace(file=file):
        convolve(3)
        convolve(1, prefer="autotune")
        cudnnpy.Pooling(window=2, stride=2).forward(x)
        cudnnpy.FusedConvolution(padding=1).forward(x, w, out=y)
    found = problem_file.read(path)
    assert [one.text for one in found][:2] == [TEXT, f"{TEXT} prefer=autotune"]
    assert [one.line for one in found] == [1, 4, 6]
    (fused,) = found[2:]
    assert fused.problem == stand_in.choices[-1][0]


def test_direct_launches_are_traced(stand_in: StandInDevice, file: Lines) -> None:
    """A line says who launches the plan, and why not directly."""
    stand_in.is_relocatable = True
    with cudnnpy.trace(file=file):
        convolve(4)
        cudnnpy.set_direct_launches(False)
        convolve(3)
    assert stand_in.direct_launches == 1
    pending = ["by cuDNN (not verified yet)"]
    assert [line.split("; ")[-1] for line in file.lines] == [
        *pending * 2,
        *["direct"] * 2,
        *pending,
        *["by cuDNN (turned off)"] * 2,
    ]


def test_a_launcher_that_makes_its_device_current_writes_one_line(stand_in: StandInDevice, file: Lines) -> None:
    x, w, y = (Array(*array.shape, device=1) for array in arrays())
    with cudnnpy.trace(file=file):
        cudnnpy.Convolution(padding=1).forward(x, w, out=y)
    assert stand_in.thread_state.device == 0
    assert len(file.lines) == 1


# On and off


def functions() -> list[Any]:
    return [vars(Launcher)["run"], dispatch.run, vars(ArrayOperation)["_run"]]


def test_the_functions_of_a_call_are_replaced_only_while_calls_are_traced(file: Lines) -> None:
    """Calls that are not traced run the same code as if there were no trace."""
    before = functions()
    with cudnnpy.trace(file=file):
        assert not any(traced is other for traced, other in zip(functions(), before, strict=True))
        with cudnnpy.trace(0):
            assert functions() == before
        assert functions() != before
    assert functions() == before


@pytest.mark.usefixtures("stand_in")
def test_calls_of_every_thread_are_traced(file: Lines) -> None:
    with cudnnpy.trace(file=file):
        threads = [threading.Thread(target=convolve, args=[3]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(file.lines) == 9
    assert sum("; planned in " in line for line in file.lines) == 3


@pytest.mark.usefixtures("stand_in")
def test_lines_go_to_the_standard_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    with cudnnpy.trace():
        convolve()
        for broken in (closed, None):  # the program goes on
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", broken)
                convolve()
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count(TEXT) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 3}, "level must be an integer of 0 to 2; got 3"),
        ({"level": "2"}, "level must be an integer of 0 to 2; got '2'"),
        ({"level": True}, "level must be an integer of 0 to 2; got True"),
        ({"file": "trace.txt"}, "file must be a text file, with write and flush, or None; got 'trace.txt'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    before = functions()
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        cudnnpy.trace(**arguments)
    assert functions() == before


@pytest.mark.parametrize(
    ("value", "level", "warning", "first"),
    [
        ("1", 1, "", "_planning.plan"),
        ("2", 2, "", "_launch.launcher"),
        ("2", 2, "", "_layers.graph"),
        ("2", 2, "", "_layers.convolution"),
        ("0", 0, "", "_launch.launcher"),
        ("", 0, "", "_launch.launcher"),
        ("yes", 0, "CUDNNPY_VERBOSE must be 0, 1 or 2; got 'yes'", "_launch.launcher"),
    ],
)
def test_the_environment_variable(value: str, level: int, warning: str, first: str) -> None:
    """Whichever module is imported first."""
    program = f"import cudnnpy.{first}; from cudnnpy._launch import tracing; print(tracing._active, *tracing._untraced)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "CUDNNPY_VERBOSE": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"_Trace(level={level}, file=None) " if level else "None\n")
    assert (warning in done.stderr) if warning else (done.stderr == "")


# Level 2


class FakeEvents:
    """The driver's events: a time of 12.5 us, and the calls in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error = 0

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuEventCreate":
                arguments[0]._obj.value = 0x10 + len(self.calls)
            elif name == "cuEventElapsedTime":
                assert isinstance(arguments[0]._obj, c_float)
                arguments[0]._obj.value = 0.0125
            elif name in ("cuEventRecord", "cuLaunchHostFunc"):
                address = arguments[1 if name == "cuEventRecord" else 0]
                assert isinstance(address, c_void_p)
                assert address.value == STREAM
            return self.error if name == "cuEventSynchronize" else 0

        return called


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> FakeEvents:
    fake = FakeEvents()
    monkeypatch.setattr(tracing, "driver_library", lambda: fake)
    monkeypatch.setattr(tracing, "relaxed_capture", nullcontext)
    monkeypatch.setattr(tracing, "on_device", lambda device: nullcontext())
    return fake


def test_level_2_measures_the_launch_between_two_events(
    stand_in: StandInDevice, file: Lines, events: FakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "note", lambda launch: events.calls.append(launch.name))
    monkeypatch.setattr(tracing, "_DELAY_US", 10**9)  # whatever this machine takes
    with cudnnpy.trace(2, file=file):
        cudnnpy.Pooling(window=2).forward(Array(2, 4, 6, 6))
    assert re.search(rf"; {HOST}; GPU 12\.5 us$", file.lines[0])
    begin = ["cuEventCreate", "cuEventCreate", "cuLaunchHostFunc", "cuEventRecord"]
    end = ["cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuEventDestroy_v2", "cuEventDestroy_v2"]
    assert events.calls == [*begin, "cudnnPoolingForward", *end]


@pytest.mark.usefixtures("events")
def test_a_launch_that_takes_longer_than_the_delay_has_an_upper_bound(
    stand_in: StandInDevice, file: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "note", lambda launch: time.sleep(2e-6 * tracing._DELAY_US))
    with cudnnpy.trace(2, file=file):
        cudnnpy.Pooling(window=2).forward(Array(2, 4, 6, 6))
    assert file.lines[0].endswith("; GPU <12.5 us")


@pytest.mark.usefixtures("stand_in")
def test_an_error_of_the_gpu_is_left_to_the_program(file: Lines, events: FakeEvents) -> None:
    events.error = 700
    with cudnnpy.trace(2, file=file):
        convolve()
    assert file.lines[0].endswith("; GPU time unknown")
    assert events.calls.count("cuEventDestroy_v2") == 2


def test_the_events_of_a_call_that_fails_are_destroyed(
    stand_in: StandInDevice, events: FakeEvents, file: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "launched", lambda *_: 5000)
    monkeypatch.setattr(cudnnpy.raw, "last_error", lambda: "")
    with cudnnpy.trace(2, file=file), pytest.raises(cudnnpy.CudnnError):
        convolve()
    assert file.lines == []
    assert events.calls.count("cuEventCreate") == events.calls.count("cuEventDestroy_v2") == 2


@pytest.mark.parametrize("level", [1, 2])
def test_a_captured_call_is_not_timed_on_the_gpu(
    stand_in: StandInDevice, file: Lines, events: FakeEvents, level: int
) -> None:
    convolve()
    stand_in.capturing.add(STREAM)
    with cudnnpy.trace(level, file=file):
        convolve(2)
    assert [line.rpartition("; ")[2] for line in file.lines] == ["captured"] * 2
    assert events.calls == []
