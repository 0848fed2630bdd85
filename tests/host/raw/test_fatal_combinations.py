"""What cuDNN does not check is refused in Python: each of these combinations ended the process with cuDNN 9.0 or 9.28.

The cases run in a child process, which plans with the real libcudnn for a device that JSON describes, if the release can.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes import byref
from functools import cache
from pathlib import Path
from typing import Any

import planning
import pytest

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._planning import engines
from cudnnpy.backend import Descriptor
from cudnnpy.errors import CudnnError
from cudnnpy.graph.descriptors import graph_tensor
from cudnnpy.graph.operation_graph import Tensor
from cudnnpy.raw import _api

_X, _CHANNELS = (8, 16, 8, 8), (1, 16, 1, 1)
_SCALAR = (1, 1, 1, 1)
_LARGE = 1 << 31
_MODES = [mode for mode in raw.cudnnBackendOperationGraphMode_t if mode in _api.MODE_OPERATIONS]
_HAS_PROFILES = raw.version() >= planning.FIRST_WITH_PROFILES
_HAS_MODES = raw.version() >= 92300


def tensor(uid: int, shape: tuple[int, ...], **attributes: Any) -> Descriptor:
    return graph_tensor(Tensor(uid, TensorSpec(shape, "float32", packed_strides(shape)), **attributes), None)


def made(kind: str, **attributes: Any) -> Descriptor:
    """A finalized operation; the attributes by the ends of their names."""
    prefix = kind.replace("FORWARD", "FWD").replace("BACKWARD", "BWD") if "NORM" in kind else kind
    return Descriptor(
        getattr(raw, f"CUDNN_BACKEND_OPERATION_{kind}_DESCRIPTOR"),
        {getattr(raw, f"CUDNN_ATTR_OPERATION_{prefix}_{name}"): value for name, value in attributes.items()},
    )


def planned(operation: Descriptor, mode: int | None = None) -> None:
    """Asks the heuristics about the graph of an operation."""
    attributes = {raw.CUDNN_ATTR_OPERATIONGRAPH_MODE: mode, raw.CUDNN_ATTR_OPERATIONGRAPH_OPS: [operation]}
    graph = Descriptor(raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes)
    for heuristics in (raw.CUDNN_HEUR_MODE_A, raw.CUDNN_HEUR_MODE_FALLBACK):
        answer = Descriptor(
            raw.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
            {
                raw.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: graph,
                raw.CUDNN_ATTR_ENGINEHEUR_MODE: heuristics,
                raw.CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: target().device(),
            },
        )
        answer.children(raw.CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 4)


@cache
def target() -> engines.Target:
    return engines.Target(profile=planning.profile().read_text() if _HAS_PROFILES else None)


def norm(**attributes: Any) -> Descriptor:
    """An instance normalization."""
    mode = {"MODE": raw.CUDNN_INSTANCE_NORM, "PHASE": raw.CUDNN_NORM_FWD_INFERENCE}
    tensors = {"XDESC": tensor(1, _X), "YDESC": tensor(2, _X), "SCALE_DESC": tensor(3, _CHANNELS)}
    return made("NORM_FORWARD", **{**mode, **tensors, "BIAS_DESC": tensor(4, _CHANNELS), **attributes})


def epsilon() -> Descriptor:
    return tensor(5, _SCALAR, number=1.0)


def plan_of(text: str) -> None:
    Descriptor(raw.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, {raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: text})


def typed_tensor(dtype: int) -> None:
    attributes = {
        raw.CUDNN_ATTR_TENSOR_UNIQUE_ID: 1,
        raw.CUDNN_ATTR_TENSOR_DATA_TYPE: dtype,
        raw.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: 16,
        raw.CUDNN_ATTR_TENSOR_DIMENSIONS: _X,
        raw.CUDNN_ATTR_TENSOR_STRIDES: packed_strides(_X),
    }
    Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes)


def overridden(name: str) -> None:
    attribute = getattr(raw, f"CUDNN_ATTR_VARIANT_PACK_OVERRIDE_{name}")
    Descriptor(raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR).set(attribute, 4096)


def constant() -> None:
    """A number as a constant, which is an address for cuDNN."""
    descriptor = Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    descriptor.set(raw.CUDNN_ATTR_TENSOR_DATA_TYPE, raw.CUDNN_DATA_FLOAT)
    descriptor.set(raw.CUDNN_ATTR_TENSOR_IS_BY_VALUE, True)
    descriptor.set(raw.CUDNN_ATTR_TENSOR_CONSTANT_VALUE, 3)


def folded(axes: int) -> None:
    """The folding of a convolution whose descriptor is set for a number of axes, 0 for unset."""
    import raw_arguments

    name, good = "cudnnGetFoldedConvBackwardDataDescriptors", raw_arguments.Arguments()
    arguments = [good.good(kind) for _, kind, _ in raw.parameters(name)]
    arguments[3] = convolution = raw.cudnnConvolutionDescriptor_t()
    raw.call("cudnnCreateConvolutionDescriptor", byref(convolution))
    if axes:
        ones = (raw.ctype("int") * axes)(*[1] * axes)
        raw.call("cudnnSetConvolutionNdDescriptor", convolution, axes, ones, ones, ones, 0, 0)
    raw.call(name, *arguments)


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    known = max(raw.cudnnDataType_t)
    for dtype in (-1, known + 1, 999, (1 << 31) - 1, -(1 << 31), *raw.cudnnDataType_t):
        yield f"a tensor of data type {dtype}", lambda dtype=dtype: typed_tensor(dtype)
    for shape in ((0, 16, 8), (8, 0), (0,), (1 << 54, 16, 8, 8)):
        yield f"sizes {shape}", lambda shape=shape: tensor(1, shape)
    yield "no axes to fold", lambda: folded(0)
    yield "one axis to fold", lambda: folded(1)
    for name in ("SHAPES", "STRIDES"):
        yield f"override {name}", lambda name=name: overridden(name)
    yield "the address of a constant", constant
    for axis in (-1, 8, 100, _LARGE, -_LARGE, 1 << 32):
        output = {"INPLACE_INDEX": 1, "OUTPUT_DESC": tensor(9, _X)}
        yield f"concat {axis}", lambda axis=axis, output=output: made("CONCAT", AXIS=axis, **output)
    yield "a pointwise operation without tensors", lambda: planned(made("POINTWISE"))
    yield "instance normalization without epsilon", lambda: planned(norm())
    training = {"PHASE": raw.CUDNN_NORM_FWD_TRAINING}
    yield "training without epsilon", lambda: planned(norm(**training, INV_VARIANCE_DESC=tensor(6, _CHANNELS)))
    yield "training without variance", lambda: planned(norm(**training, EPSILON_DESC=epsilon()))
    unset = Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    yield "an open epsilon", lambda: planned(norm(EPSILON_DESC=unset))

    if _HAS_PROFILES:
        yield "a plan without a device", lambda: plan_of(plan_text())
    operations = {"an RNG": lambda: made("RNG"), "an inference": lambda: norm(EPSILON_DESC=epsilon())}
    for mode in _MODES if _HAS_MODES else ():
        for name, operation in operations.items():
            yield f"{name} in a graph of {mode.name}", lambda operation=operation, mode=mode: planned(operation(), mode)


def plan_text() -> str:
    """A serialized plan of a convolution."""
    geometry = {"COMP_TYPE": 0, "CONV_MODE": 1, "SPATIAL_DIMS": 2, "PRE_PADDINGS": (1, 1), "POST_PADDINGS": (1, 1)}
    geometry |= {"DILATIONS": (1, 1), "FILTER_STRIDES": (1, 1)}
    convolution = Descriptor(
        raw.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
        {getattr(raw, f"CUDNN_ATTR_CONVOLUTION_{name}"): value for name, value in geometry.items()},
    )
    tensors = {"X": tensor(1, _X), "W": tensor(2, (16, 16, 3, 3)), "Y": tensor(3, _X), "CONV_DESC": convolution}
    operations = [made("CONVOLUTION_FORWARD", **tensors, ALPHA=1.0, BETA=0.0)]
    graph = Descriptor(raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {raw.CUDNN_ATTR_OPERATIONGRAPH_OPS: operations})
    plan = next(engines.heuristics(graph, target())).finalize()
    return str(plan[raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION])


def main() -> None:
    """Prints the name of each case before it is run, and what came of it."""
    for name, case in cases():
        print(name, end=": ", flush=True)
        try:
            case()
            print("done")
        except CudnnError as error:
            print(f"cuDNN refused: {' '.join(str(error).split())}")
        except (TypeError, ValueError) as error:
            print(f"refused: {error}")


def test_what_ended_the_process_is_refused(request: pytest.FixtureRequest) -> None:
    environment = request.getfixturevalue("planning_environment") if _HAS_PROFILES else None
    paths = [str(Path(planning.__file__).parent), *filter(None, [(environment or os.environ).get("PYTHONPATH")])]
    environment = {**(environment or os.environ), "PYTHONPATH": os.pathsep.join(paths)}
    child = [sys.executable, __file__]
    run = subprocess.run(child, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert run.returncode == 0, f"{run.stdout.splitlines()[-1:]}\n{run.stderr[-2000:]}"
    found = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    release = [*map(int, raw.version_text(raw.version()).split("."))]
    for dtype in raw.cudnnDataType_t:
        is_newer = [*map(int, str(raw.since(dtype.name)).split("."))] > release
        outcome = found.pop(f"a tensor of data type {dtype}")
        assert outcome.startswith("refused: CUDNN_ATTR_TENSOR_DATA_TYPE must be ") == is_newer, (dtype, outcome)
    assert {name: outcome for name, outcome in found.items() if not outcome.startswith("refused: ")} == {}
    assert len(found) == 25 + _HAS_PROFILES + 2 * len(_MODES) * _HAS_MODES


if __name__ == "__main__":
    main()
