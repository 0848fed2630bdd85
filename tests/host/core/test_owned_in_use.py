"""Objects in use by several threads, interrupted calls, and forks: nothing is destroyed under a call, nothing hangs."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import pytest
from fresh_process import python
from stand_in_library import LibcudnnFixture

from cudnnpy import backend, descriptors, raw
from cudnnpy.errors import ClosedError, StatusError


@pytest.mark.parametrize("call", [raw.call, lambda name, *arguments: raw.check(getattr(raw, name)(*arguments))])
def test_close_during_a_call_leaves_the_end_to_the_call(call: Any, libcudnn: LibcudnnFixture) -> None:
    made = descriptors.ActivationDescriptor("relu")
    library = libcudnn(real=True)
    destroy = "cudnnDestroyActivationDescriptor"

    class Argument:
        @property
        def _as_parameter_(self) -> int:
            made.close()
            assert made.closed
            assert destroy not in library.names
            return int(raw.CUDNN_ACTIVATION_TANH)

    call("cudnnSetActivationDescriptor", made, Argument(), 0, 0.0)
    assert library.names[-1] == destroy
    with pytest.raises(ClosedError):
        raw.call("cudnnSetActivationDescriptor", made, 0, 0, 0.0)


def test_a_kept_pointer_outlives_its_owner() -> None:
    made = descriptors.TensorDescriptor((1, 2, 3, 4))
    pointer = made.pointer
    made.close()
    size = c_size_t()
    raw.call("cudnnGetTensorSizeInBytes", pointer, byref(size))
    assert size.value == 96


def test_what_a_backend_descriptor_points_to_outlives_its_own_close(libcudnn: LibcudnnFixture) -> None:
    destroyed: list[Any] = []

    def recording(name: str, *arguments: Any) -> None:
        if "Destroy" in name:
            destroyed.append(c_void_p.from_buffer_copy(arguments[0]).value)

    libcudnn(recording, real=True)
    reduction = backend.Descriptor(raw.CUDNN_BACKEND_REDUCTION_DESCRIPTOR)
    operation = backend.Descriptor(raw.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
    with suppress(StatusError):  # it is not finalized, for which some releases need a driver
        operation[raw.CUDNN_ATTR_OPERATION_REDUCTION_DESC] = reduction
    one, other = reduction.address, operation.address
    reduction.close()
    assert reduction.closed
    assert destroyed == []
    operation.close()
    del operation
    assert destroyed == [other, one]


def test_threads_that_use_what_another_closes() -> None:
    assert (
        python(
            "import sys, threading, time\n"
            "from ctypes import byref, c_size_t, c_void_p\n"
            "from cudnnpy import raw, descriptors\n"
            "from cudnnpy.errors import ClosedError, StatusError\n"
            "sys.setswitchinterval(1e-6)\n"
            "made = [descriptors.TensorDescriptor((1, 2, 3, 4)) for _ in range(4)]\n"
            "end = time.monotonic() + 2\n"
            "wrong = []\n"
            "def use():\n"
            "    size = c_size_t()\n"
            "    while time.monotonic() < end:\n"
            "        for one in tuple(made):\n"
            "            size.value = 0\n"
            "            try:\n"
            "                raw.call('cudnnGetTensorSizeInBytes', one, byref(size))\n"
            "            except ClosedError:\n"
            "                continue\n"
            "            if size.value != 96:\n"
            "                wrong.append(size.value)\n"
            "def renew():\n"
            "    while time.monotonic() < end:\n"
            "        for at in range(4):\n"
            "            made[at].close()\n"
            "            made[at] = descriptors.TensorDescriptor((1, 2, 3, 4))\n"
            "            descriptors.TensorDescriptor((7, 7, 7, 7)).close()\n"
            "threads = [threading.Thread(target=t) for t in (use, use, use, renew, renew)]\n"
            "for thread in threads: thread.start()\n"
            "for thread in threads: thread.join()\n"
            "print(wrong[:3])\n"
        )
        == "[]\n"
    )


_INTERRUPTED = """
import collections, signal
from ctypes import byref, c_size_t, c_void_p
from cudnnpy import raw, descriptors
made = descriptors.TensorDescriptor((1, 2, 3, 4))
signal.signal(signal.SIGALRM, signal.default_int_handler)
found = collections.Counter()
size = c_size_t()
function = raw.cudnnSetTensor4dDescriptor
for at in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + at % 97 * 1e-6)
        while True:
            CALL
    except BaseException as error:
        found[type(error).__name__] += 1
print(sorted(found))
"""


@pytest.mark.parametrize(
    "call",
    [
        "raw.call('cudnnSetTensor4dDescriptor', made, 0, 0, 1, 2, 3, 4)",
        "raw.call('cudnnGetTensorSizeInBytes', made, byref(size))",
        "function(made, 0, 0, 1, 2, 3, 4)",
    ],
)
def test_ctrl_c_during_a_call_is_ctrl_c(call: str) -> None:
    assert python(_INTERRUPTED.replace("CALL", call)) == "['KeyboardInterrupt']\n"


_FORK_WHILE_LOADING = """
import os, signal, threading, time
from cudnnpy import raw
from cudnnpy.raw import _library
real, inside = _library._find_and_load, threading.Event()
def slow():
    inside.set()
    time.sleep(0.3)
    return real()
_library._find_and_load = slow
thread = threading.Thread(target=raw.load)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    raw.cudnnGetVersion()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""


def test_a_fork_while_another_thread_loads_the_library() -> None:
    assert python(_FORK_WHILE_LOADING) == "0\n"


def test_forks_while_threads_make_and_close_objects() -> None:
    """A child has none of what the parent's threads were in the middle of.

    cuDNN has loaded its parts before: a fork while it loads one copies a locked mutex, for which the child waits forever.
    """
    assert (
        python(
            "import os, signal, threading\n"
            "from cudnnpy import descriptors\n"
            "stop = False\n"
            "def work():\n"
            "    while not stop:\n"
            "        descriptors.TensorDescriptor((1, 2, 3, 4)).close()\n"
            "        descriptors.ActivationDescriptor('relu')\n"
            "threads = [threading.Thread(target=work) for _ in range(3)]\n"
            "parents = descriptors.TensorDescriptor((1, 1, 1, 1))\n"
            "descriptors.ActivationDescriptor('relu'), descriptors.PoolingDescriptor('max', (2, 2))\n"
            "for thread in threads: thread.start()\n"
            "codes = set()\n"
            "for _ in range(25):\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        signal.alarm(20)\n"
            "        own = descriptors.PoolingDescriptor('max', (2, 2))\n"
            "        own.close()\n"
            "        os._exit(0 if parents.closed else 1)\n"
            "    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "stop = True\n"
            "for thread in threads: thread.join()\n"
            "print(codes, parents.closed)\n"
        )
        == "{0} False\n"
    )
