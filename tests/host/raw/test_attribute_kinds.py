"""Which kinds of descriptor an attribute holds: told by the headers or reviewed, and confirmed by the real library."""

from __future__ import annotations

import json
import subprocess
import sys
from ctypes import c_void_p, cast
from typing import Any

import pytest
from stand_in_library import LibcudnnFixture

from cudnnpy import raw
from cudnnpy.backend import Descriptor
from cudnnpy.raw import _api
from tools.generate import kinds

ATTRIBUTES = [raw.cudnnBackendAttributeName_t(number) for number in _api.ATTRIBUTE_KINDS]

# Sets an open descriptor of the kind in the table for every attribute, on the kind of descriptor that it belongs to: that
# answers a NULL unlike a value of another type. A descriptor of another kind mostly ends the process.
_PROBE = """
import json, sys
from ctypes import byref, c_void_p, cast, create_string_buffer
from cudnnpy import raw
from cudnnpy.raw import _api
nothing, kept = create_string_buffer(4096), []
def made(kind):
    descriptor = raw.cudnnBackendDescriptor_t()
    kept.append(descriptor)
    return None if raw.cudnnBackendCreateDescriptor(kind, byref(descriptor)) else descriptor
def answer(owner, attribute, wanted, value):
    descriptor = made(owner)
    status = raw.cudnnBackendSetAttribute(descriptor, attribute, wanted, 1, value)
    return [status, raw.last_error() if status else ""]
taken = {}
for number, kinds in _api.ATTRIBUTE_KINDS.items():
    for owner in raw.cudnnBackendDescriptorType_t:
        if made(owner) is None:
            continue
        wrong = answer(owner, number, raw.CUDNN_TYPE_NORM_MODE, nothing)
        if answer(owner, number, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, nothing) != wrong:
            value = made(kinds[0])
            given = value and byref(c_void_p(cast(value, c_void_p).value))
            taken[number] = given and answer(owner, number, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, given)
json.dump(taken, sys.stdout)
"""
# Which an open descriptor is refused for.
_FINALIZED = {raw.CUDNN_ATTR_OPERATIONGRAPH_OPS, raw.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES}


@pytest.mark.skipif("raw.version_text(raw.version()) != raw.HEADER_VERSION", reason="answers differ between releases")
def test_the_library_takes_the_kinds_of_the_table() -> None:
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=300, check=False)
    assert probe.returncode == 0, probe.stderr
    taken = {int(number): answer for number, answer in json.loads(probe.stdout).items()}
    refused = {raw.cudnnBackendAttributeName_t(n).name: a for n, a in taken.items() if a[0] and n not in _FINALIZED}
    assert not refused
    assert len(taken) >= 210  # the others can only be read


def test_a_reduction_is_no_tensor() -> None:
    """As its attribute's comment has it; the library says otherwise."""
    assert _api.ATTRIBUTE_KINDS[raw.CUDNN_ATTR_OPERATION_REDUCTION_DESC] == (raw.CUDNN_BACKEND_REDUCTION_DESCRIPTOR,)


def test_every_attribute_of_descriptors_has_kinds_and_no_other() -> None:
    holders = {
        a for a in raw.cudnnBackendAttributeName_t if raw.CUDNN_TYPE_BACKEND_DESCRIPTOR in raw.attribute_types(a)
    }
    assert set(ATTRIBUTES) == holders
    assert all(set(found) <= set(raw.cudnnBackendDescriptorType_t) and found for found in _api.ATTRIBUTE_KINDS.values())


# The objects


class Child(Descriptor):
    """A descriptor of any kind, that no C function has made."""

    def __init__(self, kind: int) -> None:
        self._kind, self._finalized, self._held, self._pointers = kind, True, {}, {}
        self._pointer = cast(c_void_p(0x1230), raw.cudnnBackendDescriptor_t)


def test_a_descriptor_of_another_kind_is_refused_before_c_is_called(libcudnn: LibcudnnFixture) -> None:
    library = libcudnn()
    children = {kind: Child(kind) for kind in raw.cudnnBackendDescriptorType_t}
    owner, pairs = Child(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR), 0
    for attribute in ATTRIBUTES:
        for kind, child in children.items():
            library.names.clear()
            if kind in _api.ATTRIBUTE_KINDS[attribute]:
                owner.set(attribute, child, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR)
                assert library.names == ["cudnnBackendSetAttribute"]
                continue
            pairs += 1
            refused = pytest.raises(TypeError, match=rf"^{attribute.name} must be a CUDNN_.*; got a {kind.name}$")
            with refused:
                owner.set(attribute, child, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR)
            with refused:
                owner.children(attribute, kind)
            assert not library.names
    assert pairs > 10_000


@pytest.mark.parametrize(
    ("attribute", "value", "kind", "message"),
    [
        ("CUDNN_ATTR_TENSOR_DIMENSIONS", [[1, 2], [3, 4]], TypeError, r"of type CUDNN_TYPE_INT64; got \[1, 2\]"),
        ("CUDNN_ATTR_TENSOR_DIMENSIONS", range(1 << 40), ValueError, "65536 elements at most; got"),
        ("CUDNN_ATTR_TENSOR_DIMENSIONS", (1, 10**5000), ValueError, r"CUDNN_TYPE_INT64; got an integer of 16610 bits"),
        ("CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION", "a\0b", ValueError, r"without NUL characters; got one at byte 1"),
        ("CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION", "\ud800", ValueError, "UTF-8 can encode; got"),
    ],
)
def test_a_value_that_does_not_fit(attribute: str, value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{attribute}.*{message}"):
        Child(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR).set(getattr(raw, attribute), value)


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (lambda: Descriptor(1 << 32), ValueError, "kind must be an integer that fits c_int; got 4294967296"),
        (lambda: Descriptor("tensor"), TypeError, r"such as .*_TENSOR_DESCRIPTOR; got 'tensor'"),  # type: ignore[arg-type]
        (lambda: Descriptor(raw.CUDNN_ATTR_ENGINE_KNOB_INFO), TypeError, "kind must be a cudnnBackendDescriptorType_t"),
        (lambda: Descriptor(17, [1]), TypeError, r"attributes must be None or a.*; got \[1\]"),  # type: ignore[arg-type]
        (lambda: Child(3).set(1.0, 1), TypeError, r"attribute must be a cudnnBackendAttributeName_t.*; got 1.0"),
        (lambda: Child(3).set([], 1), TypeError, r"attribute must .*; got \[\]"),
        (lambda: Child(3).set(True, 1), TypeError, r"attribute must .*; got True"),
        (lambda: Child(3).set(raw.CUDNN_DATA_HALF, 1), TypeError, "attribute must be a cudnnBackendAttributeName_t; got"),
        (lambda: Child(3).set(raw.CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, "int"), TypeError, r"kind must .*; got 'int'"),
        (lambda: Child(3).get(raw.CUDNN_ATTR_ENGINECFG_ENGINE), TypeError, "attribute must hold values; got"),
        (lambda: Child(3).children(raw.CUDNN_ATTR_TENSOR_UNIQUE_ID, 3), TypeError, "kind must be CUDNN_TYPE_INT64 for"),
        (lambda: Child(3).children(raw.CUDNN_ATTR_ENGINECFG_ENGINE, 2, 10**9), ValueError, r"limit must .*; got 1000000000"),
        (lambda: Child(3).children(raw.CUDNN_ATTR_ENGINECFG_ENGINE, 2, -1), ValueError, r"limit must .*; got -1"),
        (lambda: Child(27).children(raw.CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS, 17), ValueError, "can read back; got"),
        (lambda: Child(17).children(raw.CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, 17), ValueError, "RAGGED_OFFSET_DESC"),
    ],
)  # fmt: skip
def test_wrong_uses(use: Any, kind: type[Exception], message: str, libcudnn: LibcudnnFixture) -> None:
    library = libcudnn()
    with pytest.raises(kind, match=message):
        use()
    assert not library.names


def test_an_attribute_keeps_what_it_was_set_to_last(libcudnn: LibcudnnFixture) -> None:
    libcudnn()
    owner = Child(raw.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
    tensors = [Child(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) for _ in range(3)]
    for tensor in tensors * 100:
        owner[raw.CUDNN_ATTR_OPERATION_POINTWISE_XDESC] = tensor
        owner[raw.CUDNN_ATTR_OPERATION_POINTWISE_YDESC] = [tensor]
    assert [child for slots in owner._held.values() for slot in slots for child in slot] == [tensors[-1]] * 2


def test_no_more_children_are_read_than_were_set(libcudnn: LibcudnnFixture) -> None:
    owner, tensors = Child(raw.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR), [Child(17)]
    asked: list[int] = []

    def noting(name: str, *arguments: Any) -> None:
        if name == "cudnnBackendGetAttribute":
            asked.append(arguments[3])

    libcudnn(noting)
    owner[raw.CUDNN_ATTR_OPERATION_MATMUL_ADESC] = tensors
    for limit in (None, 0, 1, 50):
        assert len(owner.children(raw.CUDNN_ATTR_OPERATION_MATMUL_ADESC, 17, limit)) == (0 if limit == 0 else 1)
    assert asked == [1, 1, 1]


# What is missing


def test_what_the_library_would_follow_is_looked_for_before_it_is_finalized(libcudnn: LibcudnnFixture) -> None:
    unset = {"cudnnBackendGetAttribute": raw.CUDNN_STATUS_NOT_INITIALIZED}
    library = libcudnn(lambda name, *_: unset.get(name))

    def opened(kind: int) -> Child:
        made = Child(kind)
        made._finalized = False
        return made

    configuration, plan = (opened(k) for k in (3, 5))
    for made, name in ((configuration, "ENGINECFG_ENGINE"), (plan, "EXECUTION_PLAN_ENGINE_CONFIG or CUDNN_ATTR_EXEC")):
        with pytest.raises(ValueError, match=rf"CUDNN_ATTR_{name}.* must be set before finalize\(\)"):
            made.finalize()
    engine = opened(raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR)
    configuration[raw.CUDNN_ATTR_ENGINECFG_ENGINE] = engine
    with pytest.raises(ValueError, match="CUDNN_ATTR_ENGINECFG_ENGINE must be a finalized descriptor; got an open one"):
        configuration.finalize()
    assert "cudnnBackendFinalize" not in library.names
    engine.finalize()
    configuration.finalize()
    plan[raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION] = "{}"
    with pytest.raises(ValueError, match=r"PLAN_HANDLE or .*_DEVICEPROP must be set .* with .*_JSON_REPRESENTATION\)$"):
        plan.finalize()
    plan[raw.CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP] = Child(raw.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)
    plan.finalize()
    assert library.names.count("cudnnBackendFinalize") == 3


def test_a_graphs_mode_wants_its_operation(libcudnn: LibcudnnFixture) -> None:
    libcudnn()
    graph = Child(raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
    graph._finalized = False
    graph[raw.CUDNN_ATTR_OPERATIONGRAPH_MODE] = raw.CUDNN_OPERATIONGRAPH_MODE_CONV_BWD_DATA
    graph[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS] = Child(raw.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
    with pytest.raises(ValueError, match=r"CUDNN_ATTR_OPERATIONGRAPH_OPS must have a.*; got none"):
        graph.finalize()
    graph[raw.CUDNN_ATTR_OPERATIONGRAPH_MODE] = raw.CUDNN_OPERATIONGRAPH_MODE_CONV_FORWARD
    graph.finalize()
    training, norm = Child(graph.kind), Child(raw.CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR)
    training._finalized = False
    training[raw.CUDNN_ATTR_OPERATIONGRAPH_MODE] = raw.CUDNN_OPERATIONGRAPH_MODE_NORM_FWD_TRAIN
    training[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS] = [Child(raw.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), norm]
    norm[raw.CUDNN_ATTR_OPERATION_NORM_FWD_PHASE] = raw.CUDNN_NORM_FWD_INFERENCE
    with pytest.raises(
        ValueError, match=r"must have a .* with CUDNN_ATTR_OPERATION_NORM_FWD_PHASE 1 for the mode .*TRAIN; "
    ):
        training.finalize()
    norm[raw.CUDNN_ATTR_OPERATION_NORM_FWD_PHASE] = raw.CUDNN_NORM_FWD_TRAINING
    training.finalize()


# The generator


def record(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "enumerator", "enum": "cudnnBackendAttributeName_t", "name": name, **more}


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kinds, "_TABLE", {"CUDNN_ATTR_OLD": "CUDNN_BACKEND_A_DESCRIPTOR"})
    for table, empty in (("_REQUIRED", []), ("_OPERATIONS", {}), ("_RANGES", {})):
        monkeypatch.setattr(kinds, table, empty)

    def run(comment: str) -> dict[str, Any]:
        types = {"types": ["CUDNN_TYPE_BACKEND_DESCRIPTOR"]}
        of = {"enum": "cudnnBackendDescriptorType_t"}
        records = [{**record(f"CUDNN_BACKEND_{kind}_DESCRIPTOR"), **of} for kind in ("A", "OP_B", "OP_C")]
        records += [record(f"CUDNN_ATTR_{name}", **types) for name in ("OLD", "NEW")]
        records.append(record("CUDNN_ATTR_SIZE", types=["CUDNN_TYPE_INT64"]))
        kinds.complete(records, [comment])
        return {r["name"]: r.get("holds") for r in records if r["name"].startswith("CUDNN_ATTR_")}

    return run  # fmt: skip
