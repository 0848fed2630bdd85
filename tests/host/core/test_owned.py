"""Lifetimes: a C object is destroyed once, by its owner, and at no other time."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_void_p, cast
from typing import Any

import pytest
from stand_in_library import LibcudnnFixture, stand_in_library

from cudnnpy import backend, descriptors, handle, raw
from cudnnpy._core.owned import Owned
from cudnnpy._process.module_state import reset
from cudnnpy.errors import BadParameterError, ClosedError, InternalError
from cudnnpy.handle import Handle

Calls = Counter[str]  # how often each C function was called


@pytest.fixture
def calls(libcudnn: LibcudnnFixture) -> Calls:
    gc.collect()
    count = Calls()
    libcudnn(lambda name, *_: count.update([name]), real=True)
    return count


def python(source: str) -> str:
    """What a fresh interpreter prints; it must end well and silently."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refuse(name: str, *_: Any) -> int:
    """A C function that fails."""
    return 0 if name == "cudnnGetLastErrorString" else int(raw.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)


def relu() -> descriptors.ActivationDescriptor:
    return descriptors.ActivationDescriptor("relu")


def owners(kind: type[Owned] = Owned) -> Iterator[type[Owned]]:
    """The package's classes that own something."""
    if hasattr(kind, "_create"):
        yield kind
    for below in kind.__subclasses__():
        if below.__module__.startswith("cudnnpy."):
            yield from owners(below)


# What those take that cannot be made without arguments.
ARGUMENTS: dict[type[Owned], tuple[Any, ...]] = {
    backend.Descriptor: (raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR,),
    descriptors.TensorDescriptor: ((1, 2, 3, 4),),
    descriptors.FilterDescriptor: ((1, 2, 3, 4),),
    descriptors.ConvolutionDescriptor: ((1, 1),),
    descriptors.ActivationDescriptor: ("relu",),
    descriptors.PoolingDescriptor: ("max", (2, 2)),
    descriptors.OpTensorDescriptor: ("add",),
    descriptors.ReduceTensorDescriptor: ("add",),
    descriptors.FusedOpsConstParamPack: ("scale_bias_activation_wgrad",),
    descriptors.FusedOpsVariantParamPack: ("scale_bias_activation_wgrad",),
    descriptors.FusedOpsPlan: ("scale_bias_activation_wgrad",),
}


@pytest.mark.parametrize("kind", [kind for kind in owners() if kind is not Handle])
def test_every_owner_creates_and_destroys_once(kind: type[Owned], calls: Calls) -> None:
    create, destroy, arguments = kind._create, kind._destroy, ARGUMENTS.get(kind, ())
    made = kind(*arguments)
    assert (calls[create], calls[destroy]) == (1, 0)
    assert not made.closed
    made.close()
    made.close()
    assert made.closed
    assert (calls[create], calls[destroy]) == (1, 1)
    with kind(*arguments) as made:
        assert not made.closed
    assert made.closed
    made = kind(*arguments)
    del made
    gc.collect()
    assert (calls[create], calls[destroy]) == (3, 3)


def same(made: Owned) -> Any:
    """A second pointer to an object, of which its owner knows nothing."""
    return type(made.pointer).from_buffer_copy(made.pointer)


def test_every_create_and_destroy_pair_of_c_has_one_owner() -> None:
    pairs = {}
    for create in raw.functions():
        if found := re.fullmatch(r"cudnn(Backend)?Create(\w*)", create):
            pairs[create] = f"cudnn{found[1] or ''}Destroy{found[2]}"
    assert set(pairs.values()) == {name for name in raw.functions() if "Destroy" in name}
    found = [(kind._create, kind._destroy) for kind in owners(Owned)]
    assert sorted(found) == sorted(pairs.items())


def test_closing_forgets_the_handle() -> None:
    made = relu()
    assert made.pointer
    assert made.address == cast(made.pointer, c_void_p).value
    assert Owned.__repr__(made) == f"<ActivationDescriptor {hex(made.address)}>"
    made.close()
    uses = (lambda: made.pointer, lambda: made.address, lambda: made.mode, lambda: raw.call("cudnnDestroy", made))
    for use in uses:
        with pytest.raises(ClosedError, match="this ActivationDescriptor is closed"):
            use()
    assert repr(made) == "<ActivationDescriptor closed>"


def test_a_refused_set_up_destroys_what_was_created(calls: Calls) -> None:
    with pytest.raises(BadParameterError) as caught:
        descriptors.TensorDescriptor((1, 0, 1, 1))
    assert caught.value.function == "cudnnSetTensor4dDescriptor"
    assert calls["cudnnCreateTensorDescriptor"] == calls["cudnnDestroyTensorDescriptor"] == 1
    del caught
    gc.collect()
    assert calls["cudnnDestroyTensorDescriptor"] == 1


def test_a_failed_create_leaves_nothing(libcudnn: LibcudnnFixture) -> None:
    made = descriptors.ActivationDescriptor.__new__(descriptors.ActivationDescriptor)
    library = libcudnn(refuse)
    with pytest.raises(InternalError, match="cudnnCreateActivationDescriptor"):
        made.__init__("relu")
    assert made.closed
    made.close()  # destroys nothing
    assert "cudnnDestroyActivationDescriptor" not in library.names


def test_an_explicit_close_tells_what_c_refused() -> None:
    made = relu()
    made.close()
    made = relu()
    pointer = same(made)
    with stand_in_library(refuse), pytest.raises(InternalError, match="cudnnDestroyActivationDescriptor"):
        made.close()
    assert made.closed
    raw.call("cudnnDestroyActivationDescriptor", pointer)


def test_collection_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    made = relu()
    pointer = same(made)
    with stand_in_library(refuse):
        del made
        gc.collect()
    assert complaints == []
    raw.call("cudnnDestroyActivationDescriptor", pointer)


def test_there_is_one_owner() -> None:
    with relu() as made:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot copy or pickle a ActivationDescriptor"):
                duplicate(made)


def test_nothing_is_destroyed_at_interpreter_exit() -> None:
    assert python(
        "from cudnnpy import raw, descriptors\n"
        "real = raw.call\n"
        "def call(name, *arguments):\n"
        "    print(name, flush=True)\n"
        "    real(name, *arguments)\n"
        "raw.call = call\n"
        "kept = descriptors.CTCLossDescriptor()\n"
        "cycle = [descriptors.LRNDescriptor]; cycle.append(cycle); cycle.append(descriptors.RNNDescriptor())\n"
        "del cycle\n"
    ).splitlines() == ["cudnnCreateCTCLossDescriptor", "cudnnCreateRNNDescriptor"]


def test_a_forked_child_neither_uses_nor_destroys() -> None:
    lines = python(
        "import gc, os\n"
        "from cudnnpy import raw, descriptors\n"
        "from cudnnpy.errors import ClosedError\n"
        "real = raw.call\n"
        "def call(name, *arguments):\n"
        "    print(name, flush=True)\n"
        "    real(name, *arguments)\n"
        "closed, collected, parents = (descriptors.CTCLossDescriptor() for _ in range(3))\n"
        "raw.call = call\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(closed.closed, parents.closed, flush=True)\n"
        "    for use in (lambda: parents.pointer, lambda: parents.get('cudnnGetCTCLossDescriptor')):\n"
        "        try:\n"
        "            use()\n"
        "        except ClosedError as error:\n"
        "            print(error, flush=True)\n"
        "    closed.close()\n"
        "    del collected\n"
        "    gc.collect()\n"
        "    own = descriptors.LRNDescriptor()\n"
        "    own.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(parents.closed)\n"
        "parents.close()\n"
    ).splitlines()
    assert lines[0] == "True True"
    message = "this CTCLossDescriptor was made before this process was forked from its owner's: make a new one here"
    # raw.call is named before ctypes asks the object for its pointer
    assert [line for line in lines[1:] if message in line] == lines[1:2] + lines[3:4]
    assert [line for line in lines[1:] if message not in line] == [
        "cudnnGetCTCLossDescriptor",
        "cudnnCreateLRNDescriptor",
        "cudnnSetLRNDescriptor",
        "cudnnDestroyLRNDescriptor",
        "False",
        "cudnnDestroyCTCLossDescriptor",
    ]


# Handles, with the C calls and the device played by Python: there is no GPU here.


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, libcudnn: LibcudnnFixture) -> Iterator[Calls]:
    """cudnnCreate, cudnnDestroy and cudnnSetStream that succeed and are counted, on device 0."""
    count = Calls()

    def call(name: str, *arguments: Any) -> int:
        assert name in ("cudnnCreate", "cudnnDestroy", "cudnnSetStream")
        count[name] += 1
        if name == "cudnnCreate":
            c_void_p.from_buffer(arguments[0]._obj).value = 4096 * count[name]
        return 0

    @contextmanager
    def on_device(device: Any) -> Iterator[tuple[int, int]]:
        yield device or 0, 1000 + (device or 0)

    libcudnn(call)
    monkeypatch.setattr(handle, "on_device", on_device)
    gc.collect()
    reset("cudnnpy.handle")  # which the garbage of other tests fills
    yield count
    gc.collect()


def test_a_collected_handle_is_kept_and_reused_not_destroyed(played: Calls) -> None:
    first = Handle(0)
    address = first.address
    del first
    gc.collect()
    assert played["cudnnDestroy"] == 0
    elsewhere = Handle(1)
    again = Handle(0, stream=5)
    assert again.address == address
    assert elsewhere.address != address
    assert played["cudnnCreate"] == 2
    again.close()
    elsewhere.close()
    assert played["cudnnDestroy"] == 2
    assert Handle(0).address != address


def test_a_handle_closed_while_it_is_used_is_kept_for_reuse(played: Calls) -> None:
    """cudnnDestroy waits for the device, and the last user may be in the middle of a capture."""
    made = Handle(0)
    address, used = made.address, made.pointer
    made.close()
    assert made.closed
    del used
    assert played["cudnnDestroy"] == 0
    assert Handle(0).address == address


def test_the_stream_is_set_when_it_changes_alone(played: Calls) -> None:
    with Handle(stream=7) as made:
        assert played["cudnnSetStream"] == 1
        made.set_stream(7)
        made.set_stream(c_void_p_holder(7))
        assert played["cudnnSetStream"] == 1
        made.set_stream(None)
        made.set_stream(0)
        assert played["cudnnSetStream"] == 2
    with pytest.raises(ClosedError):
        made.pointer


def c_void_p_holder(address: int) -> Any:
    return type("Stream", (), {"handle": c_void_p(address)})()


def test_the_default_handle_is_one_for_each_thread_and_device(played: Calls) -> None:
    mine = Handle.default(0)
    assert Handle.default(0) is mine
    assert Handle.default(1) is not mine
    others: list[Handle] = []
    thread = threading.Thread(target=lambda: others.append(Handle.default(0)))
    thread.start()
    thread.join()
    assert others[0] is not mine
    mine.close()
    assert Handle.default(0) is not mine
    assert not Handle.default(0).closed


def test_the_handle_of_a_thread_that_ended_is_reused(played: Calls) -> None:
    for _ in range(5):
        thread = threading.Thread(target=lambda: Handle.default(0))
        thread.start()
        thread.join()
        gc.collect()
    assert played["cudnnCreate"] == 1


# Streams


class Protocol:
    def __init__(self, version: int, address: Any) -> None:
        self.answer = version, address

    def __cuda_stream__(self) -> tuple[int, Any]:
        return self.answer


class Property:
    __cuda_stream__ = 0, 11


def stream_object(**attributes: Any) -> Any:
    return type("Stream", (), attributes)()


@pytest.mark.parametrize(
    ("stream", "address"),
    [
        (None, 0),
        (0, 0),
        (2, 2),
        (1 << 47, 1 << 47),
        (Protocol(0, 9), 9),
        (Property(), 11),
        (stream_object(cuda_stream=12), 12),
        (stream_object(ptr=13), 13),
        (stream_object(handle=c_void_p(14)), 14),
        (stream_object(handle=c_void_p(None)), 0),
        (stream_object(__cuda_stream__=lambda self: (0, 15), ptr=1), 15),
    ],
)
def test_stream_addresses(stream: Any, address: int) -> None:
    assert handle.stream_address(stream) == address


@pytest.mark.parametrize("stream", ["default", 1.0, True, object(), Protocol(0, None), stream_object(ptr="here")])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(TypeError, match=r"^stream must be None, an address, or an object with __cuda_stream__; got "):
        handle.stream_address(stream)


def test_bad_streams() -> None:
    with pytest.raises(
        TypeError,
        match=r"stream must have version 0 of the __cuda_stream__ protocol; got version 3 of <test_owned\.Protocol object",
    ):
        handle.stream_address(Protocol(3, 9))
    for number in (-1, 2**64, 2**64 + 0x5000):
        with pytest.raises(ValueError, match=f"stream must be an address of 64 bits; got {number}"):
            handle.stream_address(number)
    with pytest.raises(ValueError, match="stream must be an address of 64 bits; got an integer of 16610 bits"):
        handle.stream_address(10**5000)


@pytest.mark.parametrize("device", ["cuda:0", 1.0, True, object()])
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(TypeError, match=r"^device must be an ordinal, a cuda\.core Device or None; got "):
        Handle(device)
    with pytest.raises(TypeError, match=r"^device must be an ordinal, a cuda\.core Device or None"):
        Handle.default(device)


def test_a_negative_ordinal() -> None:
    with pytest.raises(ValueError, match="device must be an ordinal of 0 or more; got -1"):
        Handle(-1)
