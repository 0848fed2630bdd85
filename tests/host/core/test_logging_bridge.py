"""cuDNN's messages in Python's logging: cudnnpy.log_to."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_records import LogRecords

import cudnnpy
from cudnnpy import descriptors, raw

ROOT = Path(__file__).resolve().parents[3]
BAD = (raw.CUDNN_TENSOR_NCHW, raw.CUDNN_DATA_FLOAT, -1, 2, 3, 4)


@pytest.fixture
def tensor() -> Iterator[Any]:
    made = raw.cudnnTensorDescriptor_t()
    raw.call("cudnnCreateTensorDescriptor", ctypes.byref(made))
    yield made
    raw.call("cudnnDestroyTensorDescriptor", made)


@pytest.fixture
def kept() -> Iterator[LogRecords]:
    """What the logger "cudnnpy" gets; its level is DEBUG."""
    logger, handler = logging.getLogger("cudnnpy"), LogRecords()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def registered() -> tuple[int, Any]:
    """The mask and the function that cuDNN has."""
    mask, data, function = ctypes.c_uint(), ctypes.c_void_p(), raw.cudnnCallback_t()
    raw.call("cudnnGetCallback", ctypes.byref(mask), ctypes.byref(data), ctypes.byref(function))
    return mask.value, function


def child(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which starts with `bad()`, a call that fails."""
    start = f"""
import atexit, ctypes, logging, os, sys, threading, time
import cudnnpy
from cudnnpy import raw
tensor = None
def bad():
    global tensor
    if tensor is None:
        tensor = raw.cudnnTensorDescriptor_t()
        raw.call("cudnnCreateTensorDescriptor", ctypes.byref(tensor))
    return raw.cudnnSetTensor4dDescriptor(tensor, *{tuple(map(int, BAD))})
"""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUDNN_LOG")}
    return subprocess.run(
        [sys.executable, "-c", start + source],
        cwd=ROOT,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# What a record says


def test_an_error_is_a_record_that_says_what_failed_and_where(kept: LogRecords, tensor: Any) -> None:
    with cudnnpy.log_to("cudnnpy", level="ERROR"):
        status = raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
    (record,) = kept.records
    assert (record.levelno, record.name, record.pathname) == (logging.ERROR, "cudnnpy", __file__)
    assert record.funcName == "test_an_error_is_a_record_that_says_what_failed_and_where"
    text = record.getMessage()
    assert text.startswith("cudnnSetTensor4dDescriptor(): ")
    assert "CUDNN_STATUS_BAD_PARAM" in text
    assert "Time" not in text
    assert "Process" not in text
    facts = vars(record)
    assert (facts["cudnn_function"], facts["cudnn_status"]) == ("cudnnSetTensor4dDescriptor", status)
    assert (facts["cudnn_handle"], facts["cudnn_stream"]) == (None, None)


def test_at_debug_every_call_is_a_record_with_its_arguments(kept: LogRecords) -> None:
    with cudnnpy.log_to("cudnnpy", level=logging.DEBUG):
        descriptors.TensorDescriptor((2, 3, 5, 7)).close()
    functions = [vars(record)["cudnn_function"] for record in kept.records]
    assert {record.pathname for record in kept.records} == {__file__}
    assert functions[0] == "cudnnCreateTensorDescriptor"
    assert functions[-1] == "cudnnDestroyTensorDescriptor"
    assert {record.levelno for record in kept.records} == {logging.DEBUG}
    texts = "\n".join(record.getMessage() for record in kept.records)
    assert "CUDNN_DATA_FLOAT" in texts
    assert "cudnnSetCallback" not in texts  # what log_to calls itself


MESSAGE = b"CuDNN (v91900) function cudnnX() called:\0    a: 100%s;\0        b\n\0Time: now\0Process=1; GPU=3; Handle=1;\0\0no"


@pytest.mark.parametrize(
    ("severity", "level"), [(0, "CRITICAL"), (1, "ERROR"), (2, "WARNING"), (3, "DEBUG"), (4, "DEBUG")]
)
def test_severities_and_all_that_cudnn_states(kept: LogRecords, severity: int, level: str) -> None:
    """As on a GPU, and for severities that are rare or not known yet: the test calls the function that cuDNN has."""
    facts = raw.cudnnDebugStruct(cudnn_version=91900, cudnnStatus=5000, stream=0x10, tid=7)
    facts.handle = ctypes.cast(0x20, raw.cudnnHandle_t)
    with cudnnpy.log_to("cudnnpy"):
        _, function = registered()
        kept.records.clear()
        function(severity, None, ctypes.byref(facts), MESSAGE)
    (record,) = kept.records
    assert record.levelname == level
    assert record.getMessage() == "cudnnX():\n    a: 100%s;\n        b"
    names = ("function", "status", "handle", "stream")
    assert [vars(record)[f"cudnn_{name}"] for name in names] == ["cudnnX", 5000, 0x20, 0x10]


@pytest.mark.parametrize("text", [None, b"\0", b"not\xff a call\0\0"])
def test_a_message_of_another_form_is_a_record_too(kept: LogRecords, text: bytes | None) -> None:
    with cudnnpy.log_to("cudnnpy"):
        _, function = registered()
        kept.records.clear()
        function(1, None, None, text)
    (record,) = kept.records
    assert record.getMessage() == ("not\ufffd a call" if text and len(text) > 1 else "")
    assert vars(record)["cudnn_function"] == ""


# What cuDNN is asked for


@pytest.mark.parametrize(
    ("level", "mask"),
    [(0, 14), ("DEBUG", 14), (10, 14), (11, 6), ("INFO", 6), ("WARNING", 6), (31, 2), ("ERROR", 2), ("CRITICAL", 2)],
)
def test_cudnn_is_asked_for_no_more_than_the_level(level: int | str, mask: int) -> None:
    with cudnnpy.log_to("cudnnpy", level=level):
        assert registered()[0] == mask


def test_what_is_less_severe_than_asked_for_is_dropped(kept: LogRecords, tensor: Any) -> None:
    """cuDNN sends errors whatever the mask is."""
    with cudnnpy.log_to("cudnnpy", level="CRITICAL"):
        raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
    assert kept.records == []


# On and off


def test_blocks_restore_what_held_before(tensor: Any) -> None:
    first, second = logging.Logger("first"), logging.Logger("second")
    handlers = LogRecords(), LogRecords()
    first.addHandler(handlers[0])
    second.addHandler(handlers[1])

    def counts() -> list[int]:
        raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
        return [len(handler.records) for handler in handlers]

    with cudnnpy.log_to(first, level="ERROR"):
        assert counts() == [1, 0]
        with cudnnpy.log_to(second, level="ERROR"):
            assert counts() == [1, 1]
        assert counts() == [2, 1]
        with cudnnpy.log_to(None):
            assert counts() == [2, 1]
        assert counts() == [3, 1]
    assert counts() == [3, 1]


def test_off_is_silent_as_before() -> None:
    """Without a function, cuDNN would write errors to the standard error."""
    done = child("""
bad()
with cudnnpy.log_to("cudnnpy", level="CRITICAL"):
    bad()
bad()
cudnnpy.log_to("cudnnpy", level="CRITICAL")
cudnnpy.log_to(None)
bad()
print("end")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# Threads, handlers that do more or fail, and exit


def test_a_handler_may_call_cudnn_and_log_to(tensor: Any) -> None:
    """The messages of its own calls are dropped: they would never end."""
    logger, seen = logging.Logger("calls"), []

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(raw.cudnnSetTensor4dDescriptor(tensor, *BAD))
            with cudnnpy.log_to(None):
                pass

    logger.addHandler(Calls())
    with cudnnpy.log_to(logger, level="ERROR"):
        raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
        raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
    assert seen == [raw.CUDNN_STATUS_BAD_PARAM] * 2


def test_an_exception_of_a_handler_does_not_reach_cudnn(tensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, unraisable = logging.Logger("raises"), []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraisable.append(str(what.exc_value)))

    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the handler's own")

    logger.addHandler(Raises())
    with cudnnpy.log_to(logger, level="ERROR"):
        assert raw.cudnnSetTensor4dDescriptor(tensor, *BAD) == raw.CUDNN_STATUS_BAD_PARAM
        assert raw.cudnnSetTensor4dDescriptor(tensor, *BAD) == raw.CUDNN_STATUS_BAD_PARAM
    assert unraisable == ["the handler's own"] * 2


def test_ctrl_c_in_a_handler_interrupts_the_program() -> None:
    done = child("""
import signal
class Interrupted(logging.Handler):
    def emit(self, record):
        if not interrupted:
            interrupted.append(1)
            signal.raise_signal(signal.SIGINT)
interrupted = []
logging.getLogger("cudnnpy").addHandler(Interrupted())
cudnnpy.log_to()
try:
    print(bad())
    for _ in range(500):  # a signal of another thread does not end a sleep
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "CUDNN_STATUS_BAD_PARAM\ninterrupted\n", "")


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os.kill(os.getpid(), 2)"])
def test_the_exit_of_a_program_that_logs_until_the_end(end: str) -> None:
    """Calls of handlers of exit, of finalizers and of threads that nothing waits for, before and after log_to's own."""
    done = child(f"""
logging.basicConfig(stream=sys.stdout, level="DEBUG")
class AtTheEnd:
    def __del__(self, bad=bad):
        bad()
kept = AtTheEnd()
atexit.register(bad)
cudnnpy.log_to()
atexit.register(bad)
def forever():
    made = raw.cudnnTensorDescriptor_t()
    raw.cudnnCreateTensorDescriptor(ctypes.byref(made))
    while True:
        raw.cudnnSetTensor4dDescriptor(made, 0, 0, -1, 2, 3, 4)
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
bad()
time.sleep(0.1)
{end}
""")
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, -signal.SIGINT), done.stderr[-2000:]
    assert done.stderr.splitlines()[-1:] == (["KeyboardInterrupt"] if "kill" in end else [])  # and nothing after it
    assert "DEBUG:cudnnpy:cudnnSetTensor4dDescriptor():" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_logs_as_its_parent_does() -> None:
    done = child("""
class Printed(logging.Handler):
    def emit(self, record):
        print("parent" if os.getpid() == parent else "child", record.cudnn_function, flush=True)
parent = os.getpid()
logging.getLogger("cudnnpy").addHandler(Printed())
cudnnpy.log_to()
bad()
if pid := os.fork():
    print("exit status of the child", os.waitpid(pid, 0)[1])
else:
    bad()
    cudnnpy.log_to(None)
    bad()
    sys.exit(0)
bad()
""")
    function = "cudnnSetTensor4dDescriptor"
    wanted = [f"parent {function}", f"child {function}", "exit status of the child 0", f"parent {function}"]
    assert (done.returncode, done.stdout.splitlines()) == (0, wanted), done.stderr


# Bad input


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((3,), TypeError, "logger must be a logging.Logger, the name of one, or None; got 3"),
        ((print,), TypeError, "logger must be a logging.Logger, the name of one, or None; got <built-in"),
        (("cudnnpy", "LOUD"), ValueError, "level must be a number or the name of a level of logging (CRITICAL, "),
        (("cudnnpy", True), TypeError, "level must be a number or the name of a level of logging; got True"),
        (("cudnnpy", -1), ValueError, "level must be a number or the name of a level of logging; got -1"),
        ((None, 1.5), TypeError, "level must be a number or the name of a level of logging; got 1.5"),
    ],
)
def test_bad_input_changes_nothing(
    arguments: tuple[Any, ...], kind: type[Exception], message: str, tensor: Any
) -> None:
    logger, handler = logging.Logger("holds"), LogRecords()
    logger.addHandler(handler)
    with cudnnpy.log_to(logger, level="ERROR"):
        with pytest.raises(kind) as error:
            cudnnpy.log_to(arguments[0], level=(*arguments, None)[1])
        raw.cudnnSetTensor4dDescriptor(tensor, *BAD)
    assert str(error.value).startswith(message)
    assert len(handler.records) == 1


def test_only_turning_it_on_needs_cudnn() -> None:
    done = child(
        """
cudnnpy.log_to(None)
with cudnnpy.log_to(None):
    pass
try:
    cudnnpy.log_to("cudnnpy")
except cudnnpy.errors.LibraryNotFoundError as error:
    print(error)
cudnnpy.log_to(None)
""",
        CUDNNPY_LIBRARY="/no/such/file",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CUDNNPY_LIBRARY names '/no/such/file', which is not a file")
