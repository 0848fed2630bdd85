"""`cudnnpy tune`: its output, files and exit status, work that it does not repeat, and every bad input. Stand-ins tune."""

from __future__ import annotations

import errno
import html
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process_groups import has_ended, members_of
from stand_in_tuning import KINDS, Machine, gpus_of, tuned, worker

from cudnnpy import raw
from cudnnpy import store as stores
from cudnnpy.availability import UnavailableError
from cudnnpy.cli import command
from cudnnpy.cli.tune.tune_problem import TuningGpu
from cudnnpy.tuning import problem_file, stored_choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.measuring import gpu_worker
from cudnnpy.tuning.profiles.device_profile import FIRST_RELEASE

ROOT = Path(__file__).resolve().parents[3]
PROBLEMS = (
    "forward 1x8x9x9 16x8x3x3 pad=1 float16 channels_last",
    "backward_data 2x8x9x9 16x8x3x3 pad=1 float16 channels_last",
    "backward_filter 4x8x9x9 16x8x3x3 pad=1 float16 channels_last deterministic",
)
ONE_GPU = Machine(partial(gpus_of, KINDS[0]), worker("tune"))
NEVER = ONE_GPU._replace(worker=worker("never"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with problems.txt; the store is a file there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "user.jsonl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name} cache"))  # of the locks of GPUs
    write_problems("problems.txt", *PROBLEMS)
    return tmp_path


def write_problems(file: str, *texts: str) -> None:
    Path(file).write_text("".join(f"{text}\n" for text in texts))


def tune(*arguments: str, machine: Machine = ONE_GPU) -> int:
    """Run the command with a stand-in for the machine."""
    with pytest.MonkeyPatch.context() as patch:
        machine.replace(patch.setattr)
        return command.main(["tune", *arguments])


def stored(path: str = "user.jsonl") -> dict[str, Any]:
    with stores.open(path, read_only=True) as store:
        return {entry.text: entry for entry in store}


# What it prints, keeps and writes


def test_problems_are_tuned_kept_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("problems.txt") == 0
    printed = capsys.readouterr()
    title, *lines, legend, summary = printed.out.splitlines()
    assert legend.startswith("over default: ")
    assert title.split("  ")[0] == "problem"
    assert re.split(r"  +", title) == ["problem", "choice", "workspace", "ms", "error", "over default"]
    assert [re.split(r"  +", line) for line in lines] == [
        [text, "engine 5 + copies", "1 MiB", "0.2500", "0.1", "0.500"] for text in PROBLEMS
    ]
    assert summary == "3 problems; over the default choice: 0.500 in the geometric mean, 0.75 ms of 1.5 ms in all"
    noted = printed.err.splitlines()
    assert [line.partition("]")[0] for line in noted] == ["[1/3", "[2/3", "[3/3"]
    assert all(": 0.2500 ms, GPU 0, " in line for line in noted)
    assert set(stored()) == set(PROBLEMS)
    assert sorted(path.name for path in Path().iterdir() if path.name != "user.jsonl") == ["problems.txt"]


def test_what_is_in_the_store_is_not_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("problems.txt") == 0
    first = capsys.readouterr().out
    assert tune("problems.txt", machine=NEVER) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert again.err == "cudnnpy tune: 3 of 3 problems are in the store\n"
    new = "forward 8x8x9x9 16x8x3x3"
    write_problems("problems.txt", *PROBLEMS, new)
    assert tune("problems.txt") == 0
    assert f"[1/1] {new}: " in capsys.readouterr().err


def test_a_choice_of_more_seconds_replaces_an_incomplete_one() -> None:
    incomplete = ONE_GPU._replace(worker=worker("tune_incompletely"))
    for seconds in ("1", "4"):
        assert tune("problems.txt", "--seconds", seconds, machine=incomplete) == 0
        assert {entry.tune_seconds for entry in stored().values()} == {float(seconds)}
    assert tune("problems.txt", "--seconds", "4", machine=NEVER) == 0
    assert tune("problems.txt", "--seconds", "8") == 0
    assert {(entry.tune_seconds, entry.complete) for entry in stored().values()} == {(8.0, True)}


def test_the_seconds_of_a_problem_are_its_own_unless_they_are_given() -> None:
    write_problems("problems.txt", f"{PROBLEMS[0]} tune_seconds=7", PROBLEMS[1])
    assert tune("problems.txt", "--store", "a.jsonl") == 0
    assert [stored("a.jsonl")[text].tune_seconds for text in PROBLEMS[:2]] == [7.0, 2.0]
    assert tune("problems.txt", "--store", "b.jsonl", "--seconds", "0.25") == 0
    assert [entry.tune_seconds for entry in stored("b.jsonl").values()] == [0.25, 0.25]


def test_a_problem_that_is_listed_twice_gets_the_most_seconds() -> None:
    texts = [f"{PROBLEMS[0]}{word}" for word in ("", " prefer=autotune tune_seconds=7", " tune_seconds=3")]
    write_problems("problems.txt", *texts)
    assert tune("problems.txt") == 0
    assert {text: entry.tune_seconds for text, entry in stored().items()} == {PROBLEMS[0]: 7.0}


def test_what_does_not_change_the_choice_makes_no_second_problem(capsys: pytest.CaptureFixture[str]) -> None:
    write_problems("problems.txt", PROBLEMS[0], f"{PROBLEMS[0]} prefer=autotune", f"{PROBLEMS[0]} tf32=False")
    assert tune("problems.txt") == 0
    assert sorted(stored()) == [PROBLEMS[0], f"{PROBLEMS[0]} tf32=False"]
    assert "[2/2]" in capsys.readouterr().err


def test_each_kind_of_gpu_gets_its_own_choices(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(partial(gpus_of, *KINDS), worker("tune_on_two_kinds"))
    assert tune("problems.txt", machine=machine) == 0
    title, *lines, _, _ = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", title)[1] == "gpu"
    assert sorted(re.split(r"  +", line)[1].partition(",")[0] for line in lines) == 3 * ["Stand-in A"] + 3 * [
        "Stand-in B"
    ]
    assert tune("problems.txt", machine=machine._replace(worker=worker("never"))) == 0


def test_a_problem_that_fails_is_status_1_and_the_others_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ONE_GPU._replace(worker=worker("tune_but_not_all"))
    assert tune("problems.txt", "--html", "page.html", machine=machine) == 1
    printed = capsys.readouterr()
    reason = "set aside after 3 tries: the process that measures ended: signal SIGSEGV"
    said = f"cudnnpy tune: not tuned: {PROBLEMS[2]}: {reason}"
    assert said in printed.err.splitlines()
    assert len(printed.out.splitlines()) == 5
    assert set(stored()) == set(PROBLEMS[:2])
    assert reason in Path("page.html").read_text()


def test_faults_are_stored_and_not_run_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_worker, "driver", lambda: "13.0")
    monkeypatch.setattr(stored_choice, "driver", lambda: "13.0")
    faulty = ONE_GPU._replace(worker=worker("faulty"))
    assert tune("problems.txt", machine=faulty) == 0
    printed = capsys.readouterr().err
    assert printed.count("GPU 0, ") == printed.count("; 1 candidate left out for faults") == 3
    assert "cudnnpy tune: 3 faults of candidates stored, which Store.faults lists: these are not run again\n" in printed
    with stores.open("user.jsonl") as store:
        faults = store.faults()
        assert {one[1:-1] for one in faults} == {
            (text, "engine 9", "process ended", "signal SIGABRT", "13.0") for text in PROBLEMS
        }
        for entry in list(store):
            store.forget(entry.key)
    assert tune("problems.txt", machine=faulty) == 0
    assert "for faults" not in capsys.readouterr().err
    with stores.open("user.jsonl") as store:
        assert store.faults() == faults


def test_faults_of_a_problem_that_fails_are_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = FoundFault("engine 9", "context lost", "CUDA_ERROR", "13.0")
    there = SimpleNamespace(uuid="GPU-0", is_stopped=False, stop=lambda: None, close=lambda: None)
    there.turn = lambda until: nullcontext(True)
    there.measure = lambda *_, **options: Measurement(None, "ended", faults=() if options["left_out"] else (fault,))
    monkeypatch.setattr(stored_choice, "driver", lambda: "13.0")
    assert tune("problems.txt", machine=ONE_GPU._replace(worker=lambda uuid: there)) == 1
    assert "not tuned: set aside after 3 tries: ended; 1 candidate left out for faults\n" in capsys.readouterr().err
    with stores.open("user.jsonl") as store:
        assert len(store.faults()) == 3


def test_a_choice_for_want_of_memory_is_not_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("problems.txt", machine=ONE_GPU._replace(worker=worker("scarce"))) == 1
    assert "the GPU has too little free memory to measure in\n" in capsys.readouterr().err
    assert stored() == {}


def test_what_was_planned_without_a_gpu_is_measured() -> None:
    with stores.open("user.jsonl") as store:
        planned = store.put(tuned(PROBLEMS[0], 0, 0.0, milliseconds=None))
    assert tune("problems.txt") == 0
    assert planned.choice.milliseconds is None
    assert stored()[PROBLEMS[0]].choice.milliseconds is not None


def test_the_page_has_the_report_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    graph = 'graph {"calls":[["<script>", "&"]]}'
    with stores.open("mine.jsonl") as store:
        store.put(tuned(PROBLEMS[0], 0, 2.0))
        store.put(tuned(PROBLEMS[1], 0, 2.0)._replace(text=graph))
    write_problems("two.txt", *PROBLEMS[:2])
    assert tune("two.txt", "--store", "mine.jsonl", "--html", "page.html", machine=NEVER) == 0
    page = Path("page.html").read_text()
    (code,) = re.findall(r"<pre>(.*)</pre>", page, re.DOTALL)
    shown = html.unescape(re.sub("<[^>]*>", "", code)).splitlines()
    assert [line for line in shown if line] == capsys.readouterr().out.splitlines()
    assert any(line.startswith(graph) for line in shown)
    assert not re.search("<script|http", page)  # the page runs and loads nothing


def test_nothing_is_overwritten_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("page.html").write_text("mine")
    never = NEVER._replace(gpus=partial(pytest.fail, "the GPUs were asked for"))
    assert tune("problems.txt", "--html", "page.html", machine=never) == 2
    assert capsys.readouterr().err == "cudnnpy tune: page.html: the file exists; --force overwrites it\n"
    assert Path("page.html").read_text() == "mine"
    assert tune("problems.txt", "--html", "page.html", "--force") == 0
    assert Path("page.html").read_text().lstrip().startswith("<!DOCTYPE html>")


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of the arguments PROBLEMS.txt --record is required"),
        (["missing.txt"], "missing.txt: No such file or directory"),
        (["missing.txt", "--html", "text.txt"], "missing.txt: No such file or directory"),
        (["text.txt"], "text.txt, line 1, column 1: the file must have one problem a line; got another text: "),
        (["old.toml"], "old.toml, line 1: the file must have one problem a line; got TOML, as earlier versions read: "),
        (["."], "path must be a file of problems; got a folder"),
        (["problems.txt", "--html", "nowhere/out"], "nowhere/out: there is no folder "),
        (["problems.txt", "--html", "nowhere/page.html"], "nowhere/page.html: there is no folder "),
        (["problems.txt", "--html", "."], ".: is a folder, not a file to write"),
        (["problems.txt", "--html", "n" * 300], "File name too long"),
        (["problems.txt", "--store", "."], "--store: "),
        (["problems.txt", "--store", "text.txt"], "--store: "),
        (["problems.txt", "--store", "export.jsonl"], "export.jsonl, read only>"),
        (["problems.txt", "--store", ""], "--store must name a file that can be written; got ''"),
        (["problems.txt", "--store", "newer.jsonl"], "newer.jsonl, a store of format 5, not 4"),
        (["problems.txt", "--record", "script.py"], "argument --record: not allowed with argument PROBLEMS.txt"),
        (["--record"], "--record must be followed by SCRIPT.py or -m MODULE; got nothing"),
        (["--record", "missing.py"], "there is no file missing.py"),
        (["problems.txt", "--save", "x.txt"], "--save must be with --record"),
        (["x.txt", "--seconds", "0"], "--seconds: the value must be a number greater than 0; got '0'"),
        (["x.txt", "--seconds", "inf"], "got 'inf'"),
        (["x.txt", "--seconds", "nan"], "got 'nan'"),
        (["--save", "problems.txt", "--record", "script.py"], "problems.txt: the file exists; --force overwrites it"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    Path("text.txt").write_text("this is a text")
    Path("old.toml").write_text(f'format = 1\nproblems = ["{PROBLEMS[0]}"]\n')
    Path("script.py").write_text("")
    Path("newer.jsonl").write_text('{"kind":"cudnnpy store","format":5}\n')
    stores.open("").export("export.jsonl")
    before = sorted(folder.iterdir())
    assert tune(*arguments, machine=NEVER) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("path", "words"), [("", "must name a file"), (".", ": path must be a file; got ")])
def test_a_store_of_the_environment_is_named_so(
    path: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", path)
    assert tune("problems.txt", machine=NEVER) == 2
    assert capsys.readouterr().err.startswith(
        f"cudnnpy tune: CUDNNPY_STORE{'' if words.startswith(':') else ' '}{words}"
    )


def test_choices_that_cannot_be_kept_are_told_and_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(RuntimeWarning, match="cannot be used: .*No space left"):
        assert tune("problems.txt") == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1 + len(PROBLEMS) + 2
    (line,) = [line for line in printed.err.splitlines() if line.startswith("cudnnpy tune: ")]
    assert re.fullmatch(r"cudnnpy tune: choices are not stored: .*user.jsonl: .*No space left on device", line)


def test_a_machine_without_a_gpu_is_told_where_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> list[TuningGpu]:
        raise UnavailableError("no CUDA driver (libcuda.so.1) was found: install NVIDIA's driver")

    assert tune("problems.txt", machine=NEVER._replace(gpus=none)) == 2
    said = "no CUDA driver (libcuda.so.1) was found: install NVIDIA's driver; cudnnpy plan chooses without a GPU\n"
    assert capsys.readouterr().err == f"cudnnpy tune: {said}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forward 1x8x9x9 16x8x3x3 pud=1", "column 26: word must be "),
        ("forward 0x8x9x9 16x8x3x3", "column 1: a planned problem must have elements; got none in x, y"),
    ],
)
def test_a_line_that_is_no_problem_is_reported_and_the_others_are_tuned(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_problems("bad.txt", PROBLEMS[0], "", text)
    assert tune("bad.txt") == 1
    assert f"cudnnpy tune: bad.txt, line 3, {message}" in capsys.readouterr().err
    assert set(stored()) == {PROBLEMS[0]}


def test_a_store_that_may_not_be_written_is_found_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert tune("problems.txt", "--store", str(folder / "problems.txt" / "new.jsonl"), machine=NEVER) == 2
    assert "--store must name a file that can be written" in capsys.readouterr().err
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    assert tune("problems.txt", "--html", "page.html", machine=NEVER) == 2
    assert "cannot be written to" in capsys.readouterr().err


# Recorded programs

PROGRAM = """
import sys
from cudnnpy.tuning import recording
from cudnnpy.tuning.recording import Freeze
from cudnnpy._planning.problem_notation import parse
import beside
assert __name__ == "__main__" and Freeze.is_open()
print(sys.argv, beside.__name__)
for text in {texts!r}:
    recording.note(*parse(text))
{end}
"""


def write_program(name: str, *texts: str, end: str = "") -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(PROGRAM.format(texts=texts, end=end))
    Path(name).with_name("beside.py").write_text("")


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.usefixtures("on_path")
def test_what_a_program_plans_is_tuned(capfd: pytest.CaptureFixture[str]) -> None:
    write_program("there/program.py", *PROBLEMS[:2], f"{PROBLEMS[0]} prefer=autotune")
    assert tune("--save", "saved.txt", "--record", "there/program.py", "--epochs", "1", "-o") == 0
    printed = capfd.readouterr()
    assert "['there/program.py', '--epochs', '1', '-o'] beside\n" in printed.out
    assert "cudnnpy tune: there/program.py ended with exit status 0; 3 problems recorded\n" in printed.err
    assert set(stored()) == set(PROBLEMS[:2])
    assert tune("saved.txt", machine=NEVER) == 0


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("raise RuntimeError('out of data')", 1, "RuntimeError: out of data"),
        ("sys.exit(5)", 5, ""),
        ("sys.exit('a reason')", 1, "a reason"),
    ],
)
def test_a_program_that_fails_is_told_of_and_its_problems_are_tuned(
    capfd: pytest.CaptureFixture[str], end: str, status: int, words: str
) -> None:
    write_program("program.py", PROBLEMS[0], end=end)
    assert tune("--record", "program.py") == 1
    printed = capfd.readouterr()
    assert words in printed.err
    assert f"program.py ended with exit status {status}; 1 problem recorded\n" in printed.err
    assert set(stored()) == {PROBLEMS[0]}


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("end", "how"), [("import os; os._exit(0)", "exit status 0"), ("import os; os.abort()", "signal 6")]
)
def test_a_program_that_ends_without_python_is_recorded(capfd: pytest.CaptureFixture[str], end: str, how: str) -> None:
    write_program("program.py", PROBLEMS[0], end=end)
    assert tune("--record", "program.py") == (how != "exit status 0")
    assert f"cudnnpy tune: program.py ended with {how}; 1 problem recorded\n" in capfd.readouterr().err
    assert set(stored()) == {PROBLEMS[0]}


@pytest.mark.usefixtures("on_path")
def test_a_module_is_a_program_too(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    write_program("package/__main__.py", PROBLEMS[0])
    Path("package/beside.py").rename("beside.py")
    assert tune("--record", "-m", "package", "--fast") == 0
    assert f"['{folder / 'package' / '__main__.py'}', '--fast'] beside" in capfd.readouterr().out
    assert set(stored()) == {PROBLEMS[0]}


LATE = """
import atexit, os, threading, time
atexit.register(lambda: recording.note(*parse({exiting!r})))
def later():
    threading.main_thread().join()
    recording.note(*parse({threaded!r}))
threading.Thread(target=later).start()
"""


@pytest.mark.usefixtures("on_path")
def test_threads_and_exit_handlers_are_recorded_to_their_end(capfd: pytest.CaptureFixture[str]) -> None:
    write_program("program.py", end=LATE.format(threaded=PROBLEMS[0], exiting=PROBLEMS[1]))
    assert tune("--record", "program.py") == 0
    assert "program.py ended with exit status 0; 2 problems recorded\n" in capfd.readouterr().err
    assert set(stored()) == set(PROBLEMS[:2])


PROCESSES = """
import multiprocessing, os, subprocess, sys
from cudnnpy.tuning import recording
from cudnnpy._planning.problem_notation import parse

def plan(number):
    recording.note(*parse({texts!r}[number]))

if __name__ == "__main__":
    if os.fork() == 0:
        plan(0)
        os._exit(0)
    os.wait()
    process = multiprocessing.get_context("spawn").Process(target=plan, args=(1,))
    process.start()
    process.join()
    subprocess.run([sys.executable, "-c", "import program; program.plan(2)"], check=True)
"""


@pytest.mark.usefixtures("on_path")
def test_every_process_of_a_program_is_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    Path("program.py").write_text(PROCESSES.format(texts=PROBLEMS))
    assert tune("--record", "program.py") == 0
    assert "program.py ended with exit status 0; 3 problems recorded\n" in capfd.readouterr().err
    assert set(stored()) == set(PROBLEMS)


ELSEWHERE = """
import os
os.environ["CUDNNPY_RECORD"] = "/missing/file"
recording.note(*parse({text!r}))
"""


@pytest.mark.usefixtures("on_path")
def test_a_process_that_cannot_be_recorded_warns(capfd: pytest.CaptureFixture[str]) -> None:
    write_program("program.py", PROBLEMS[0], end=ELSEWHERE.format(text=PROBLEMS[1]))
    assert tune("--record", "program.py") == 0
    assert re.search(r"process \d+ is not recorded: /missing/file: No such file", capfd.readouterr().err)


@pytest.mark.usefixtures("on_path")
def test_a_recording_imports_nothing_from_the_current_folder(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the program's own folder, as `python there/program.py` does."""
    for name in ("cudnnpy", "json", "numpy"):
        Path(f"{name}.py").write_text("print('taken from the current folder')\n")
    write_program("there/program.py", PROBLEMS[0])
    assert tune("--record", "there/program.py") == 0
    assert "taken" not in capfd.readouterr().out
    assert set(stored()) == {PROBLEMS[0]}


@pytest.mark.usefixtures("on_path")
def test_a_program_that_plans_nothing_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    write_program("program.py")
    assert tune("--record", "program.py", machine=NEVER) == 0
    assert "program.py ended with exit status 0; 0 problems recorded\n" in capfd.readouterr().err


# Without a driver


def no_gpus() -> list[TuningGpu]:
    raise UnavailableError("there is no GPU")


@pytest.mark.usefixtures("on_path", "without_driver")
@pytest.mark.skipif(raw.version() < FIRST_RELEASE, reason="before cuDNN 9.8 nothing is planned without a driver")
@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(3)", 1)])
def test_without_a_driver_the_problems_of_a_program_are_listed(
    capfd: pytest.CaptureFixture[str], end: str, status: int
) -> None:
    Path("program.py").write_text(f"""
import cudnnpy
x, w = cudnnpy.TensorSpec((1, 8, 9, 9), "float16"), cudnnpy.TensorSpec((16, 8, 3, 3), "float16")
cudnnpy.Convolution(padding=1).plan("forward", x, w, device=cudnnpy.DeviceProfile.load("h200"))
{end}
""")
    assert tune("--save", "saved.txt", "--record", "program.py", machine=NEVER._replace(gpus=no_gpus)) == status
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == (
        "cudnnpy tune: saved.txt has 1 problem, and none is tuned, since there is no CUDA driver (libcuda.so.1). To plan "
        "them: cudnnpy plan saved.txt --device h200 -o plans.jsonl"
    )
    assert [one.text for one in problem_file.read("saved.txt")] == ["forward 1x8x9x9 16x8x3x3 pad=1 float16"]


@pytest.mark.usefixtures("on_path")
def test_without_a_gpu_a_recording_says_how_to_list_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    write_program("program.py", PROBLEMS[0])
    assert tune("--record", "program.py", machine=NEVER._replace(gpus=no_gpus)) == 2
    said = "there is no GPU; cudnnpy plan chooses without a GPU; with --save, --record lists the problems of a program"
    assert capsys.readouterr().err == f"cudnnpy tune: {said}\n"


@pytest.mark.usefixtures("on_path")
def test_save_after_the_program_is_told_to_stand_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_program("program.py", PROBLEMS[0])
    assert tune("--record", "program.py", "--save", "saved.txt", machine=NEVER._replace(gpus=no_gpus)) == 2
    said = "--save must be before --record, whose program takes all words after its name"
    assert capsys.readouterr().err == f"cudnnpy tune: there is no GPU; cudnnpy plan chooses without a GPU; {said}\n"


@pytest.mark.usefixtures("on_path", "without_driver")
def test_a_program_that_plans_nothing_is_not_sent_to_plan(capfd: pytest.CaptureFixture[str]) -> None:
    Path("program.py").write_text("print('nothing')\n")
    assert tune("--save", "saved.txt", "--record", "program.py", machine=NEVER._replace(gpus=no_gpus)) == 0
    said = "program.py planned nothing; PyTorch's convolutions are recorded within enable()"
    assert capfd.readouterr().err.splitlines()[-1] == f"cudnnpy tune: saved.txt has no problems: {said}"


# Ctrl-C

INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
sys.path[:0] = [{here!r}, {root!r}]
from functools import partial
import stand_in_tuning
from cudnnpy.cli import command

if __name__ == "__main__":
    gpus = partial(stand_in_tuning.gpus_of, *2 * stand_in_tuning.KINDS[:1])
    stand_in_tuning.Machine(gpus, stand_in_tuning.worker("tune_the_first_alone")).replace(setattr)
    sys.exit(command.main(["tune", *sys.argv[1:]]))
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    """The command in a group of its own, which is not under nohup; its temporary files are in the folder `temporary`."""
    Path("temporary").mkdir()
    Path("interrupted.py").write_text(
        INTERRUPTED.format(here=str(Path(__file__).resolve().parents[2] / "shared"), root=str(ROOT))
    )
    return subprocess.Popen(
        [sys.executable, "interrupted.py", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(Path("temporary").absolute())},
    )


def test_ctrl_c_ends_the_workers_and_keeps_what_was_done(folder: Path) -> None:
    check_a_stop(folder, signal.SIGINT, 130, os.killpg)  # as a terminal does


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_the_workers_end_with_the_command(folder: Path, number: signal.Signals, status: int) -> None:
    check_a_stop(folder, number, status, os.kill)


def check_a_stop(folder: Path, number: signal.Signals, status: int, kill: Callable[[int, int], None]) -> None:
    with started("problems.txt") as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith(f"[1/3] {PROBLEMS[0]}: "), first
        kill(process.pid, number)
        rest = process.stderr.read()
    assert process.returncode == status
    said = (
        f"cudnnpy tune: stopped; 1 of 3 problems are in {folder / 'user.jsonl'}. The same command goes on from there\n"
    )
    assert rest == ("" if status < 0 else said)
    assert not members_of(process.pid)
    endless = [int(path.suffix[1:]) for path in Path().glob("endless.*")]
    assert endless
    assert all(map(has_ended, endless))
    assert [*Path("temporary").iterdir()] == []
    assert set(stored()) == {PROBLEMS[0]}
    assert tune("problems.txt") == 0
    assert set(stored()) == set(PROBLEMS)


def recorded_until(kill: Callable[[int, int], None], number: signal.Signals) -> tuple[int, int, str]:
    """The group, the status and the errors of a command that gets a signal while its program runs."""
    write_program("program.py", PROBLEMS[0], end="print('ready', flush=True)\nimport time\ntime.sleep(600)")
    with started("--save", "saved.txt", "--record", "program.py") as process:
        assert process.stdout is not None
        while "ready" not in process.stdout.readline():
            assert process.poll() is None
        kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()
            os.killpg(process.pid, number)  # the program goes on
        _, error = process.communicate()
    return process.pid, process.returncode, error


@pytest.mark.usefixtures("on_path")
def test_ctrl_c_while_a_program_is_recorded_keeps_the_list() -> None:
    _, status, error = recorded_until(os.killpg, signal.SIGINT)
    assert status == 130
    assert "KeyboardInterrupt" in error  # of the program
    assert error.splitlines()[-1].startswith("cudnnpy tune: program.py ended with ")
    assert PROBLEMS[0] in Path("saved.txt").read_text()


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGTERM, 143, "cudnnpy tune: program.py ended with signal 15; 1 problem recorded\n"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_no_process_is_left_of_a_recording_that_is_stopped(number: signal.Signals, status: int, said: str) -> None:
    group, found, error = recorded_until(os.kill, number)
    assert (found, error) == (status, said)
    assert not members_of(group)
    assert [*Path("temporary").iterdir()] == []
