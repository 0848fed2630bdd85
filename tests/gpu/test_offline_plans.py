"""Plans that are made without a GPU, from the profile of this one: their keys are this GPU's, and they give right results.

`cudnnpy device-profile` reads the profile. `cudnnpy plan` runs in a process that sees no GPU, with the stub driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from whole_numbers import assert_same, exact_result, to_host, whole_numbers

import cudnnpy
from cudnnpy import Convolution, DeviceProfile, Graph, Plan, TensorSpec, store
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.problem_notation import parse, text_of
from cudnnpy.cli import command
from cudnnpy.handle import Handle
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import key_of

X, W, Y = (4, 32, 14, 13), (64, 32, 3, 3), (4, 64, 14, 13)
ARGUMENTS = {"forward": (X, W), "backward_data": (Y, W), "backward_filter": (Y, X)}
RESULTS = {"forward": None, "backward_data": X, "backward_filter": W}
KINDS = [("float32", False), ("float16", False), ("float16", True), ("bfloat16", True)]


def written(operation: str, dtype: str, last: bool) -> str:
    """A convolution in the notation, as it is printed."""
    shapes = f"{'x'.join(map(str, X))} {'x'.join(map(str, W))}"
    return f"{operation} {shapes} pad=1{'' if dtype == 'float32' else f' {dtype}'}{' channels_last' * last}"


CONVOLUTIONS = {
    written(operation, dtype, last): (operation, dtype, last) for operation in ARGUMENTS for dtype, last in KINDS
}


def channels_last(array: torch.Tensor) -> TensorSpec:
    n, c, h, w = array.shape
    return TensorSpec((n, c, h, w), str(array.dtype).removeprefix("torch."), (c * h * w, 1, w * c, c))


def fused() -> tuple[Graph, list[torch.Tensor], Any]:
    """Convolution, bias, relu: a graph for which there are engines that are not compiled at run time."""
    x, w = whole_numbers(*X, dtype="float16", last=True), whole_numbers(*W, dtype="float16", last=True, seed=1)
    bias = whole_numbers(1, 64, 1, 1, dtype="float16", seed=2)
    g = Graph()
    nodes = [g.tensor(name, channels_last(array)) for name, array in (("x", x), ("w", w), ("bias", bias))]
    g.output("y", g.pointwise("relu_fwd", g.pointwise("add", g.convolution(*nodes[:2], padding=1), nodes[2])))
    right = exact_result("forward", x, w, padding=1, bias=to_host(bias).reshape(-1), activation="relu")
    return g, [x, w, bias], right


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("profile") / "gpu.json"
    try:
        device_profile.check_release()
    except device_profile.ProfileError as error:
        pytest.skip(str(error))
    assert command.main(["device-profile", "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def plans(profile_file: Path) -> Iterator[Path]:
    """An export of the plans of all problems, which a process without a GPU made."""
    texts = [*CONVOLUTIONS, text_of(fused()[0].problem(0))]
    problems, output = (profile_file.with_name(f"plans.{ending}") for ending in ("toml", "jsonl"))
    problems.write_text("\n".join(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        given = ["plan", str(problems), "--device", str(profile_file), "-o", str(output)]
        assert command.main(given) == 0
    yield output
    cudnnpy.clear_cache()


def entry_for(plans: Path, text: str) -> Entry:
    (found,) = [entry for entry in store.open(plans, read_only=True) if entry.text == text]
    return found


def execute(plan: Plan, arrays: list[torch.Tensor]) -> torch.Tensor:
    """The result of a plan of one output, on new memory."""
    spec = plan.problem.specs[-1]
    out = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda").fill_(
        torch.nan
    )
    space = torch.empty(max(plan.workspace_size, 1), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    addresses = [array.data_ptr() for array in (*arrays, out)]
    plan.execute(*addresses, space.data_ptr() if plan.workspace_size else 0, stream)
    torch.cuda.synchronize()
    return out


def arrays_for(text: str) -> tuple[list[torch.Tensor], np.ndarray]:
    """The inputs of a convolution, in the order of its operands, and the result."""
    operation, dtype, last = CONVOLUTIONS[text]
    arrays = [whole_numbers(*shape, dtype=dtype, last=last, seed=at) for at, shape in enumerate(ARGUMENTS[operation])]
    shape = RESULTS[operation]
    return arrays, exact_result(operation, *arrays, *([] if shape is None else [shape]), padding=1)


def test_the_profile_is_that_of_this_gpu(profile_file: Path) -> None:
    found = DeviceProfile.load(profile_file)
    properties = torch.cuda.get_device_properties(0)
    assert found.cudnn == cudnnpy.raw.version()
    assert found.properties["deviceName"] == properties.name
    assert found.properties["multiProcessorCount"] == properties.multi_processor_count
    assert found.properties["deviceVer"] // 10 == properties.major * 10 + properties.minor
    assert (
        set(device_profile.KEYS) - {"smCountOrigin", "oversizedSharedMemoryPerBlock", "memoryBusWidth"}
        <= found.properties.keys()
    )
    assert device_profile.target_of(found).profile == found.text


@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_a_plan_for_the_profile_has_the_key_of_this_gpu(plans: Path, text: str) -> None:
    problem, options = parse(text)
    assert entry_for(plans, text).key == key_of(problem, options, gpu_kind(Target(Handle.default(0))))


@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_a_plan_that_was_made_without_a_gpu_gives_the_right_result(plans: Path, text: str) -> None:
    entry = entry_for(plans, text)
    plan = Plan.from_json(entry.plan)
    assert (plan.workspace_size, plan.milliseconds) == (entry.choice.workspace_size, None)
    arrays, right = arrays_for(text)
    assert_same(execute(plan, arrays), right)


def test_the_plan_of_a_graph_gives_the_right_result(plans: Path) -> None:
    g, arrays, right = fused()
    plan = Plan.from_json(entry_for(plans, text_of(g.problem(0))).plan)
    assert_same(execute(plan, arrays), right)


@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_autotune_takes_an_imported_plan_without_measuring(plans: Path, text: str) -> None:
    operation, _, _ = CONVOLUTIONS[text]
    arrays, right = arrays_for(text)
    shape = RESULTS[operation]
    out = torch.empty(right.shape, dtype=arrays[0].dtype, device="cuda")
    if arrays[0].stride()[1] == 1:
        out = out.to(memory_format=torch.channels_last)
    before = store.default()
    with store.open("") as mine:
        mine.load(plans)
        store.use(mine)
        cudnnpy.clear_cache()
        try:
            conv = Convolution(padding=1, prefer="autotune")
            plan = conv.plan(operation, *arrays, shape, out=out)
            assert (plan.store_layer, plan.milliseconds) == ("user", None)
            assert plan.name == Plan.from_json(entry_for(plans, text).plan).name
            assert_same(getattr(conv, operation)(*arrays, *([] if shape is None else [shape]), out=out), right)
        finally:
            store.use(before)
            cudnnpy.clear_cache()


# cudnnpy explain, on this GPU


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert command.main(["explain", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_choice_is_that_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    text = "forward 4x32x14x13 64x32x3x3 pad=1 float16 channels_last"
    found = explained(capsys, text)
    x, w = (whole_numbers(*shape, dtype="float16", last=True) for shape in (X, W))
    plan = Convolution(padding=1).plan("forward", x, w)
    assert found["choice"]["name"] == plan.name
    assert found["device"]["name"] == torch.cuda.get_device_name(0)
    assert found["device"]["profile"] is None
    (chosen,) = [one for one in found["candidates"] if one["name"] == plan.name]
    assert chosen["workspace_size"] == plan.workspace_size
    assert any(one["rejection_reason"] for one in found["candidates"])


def test_a_plan_from_python_runs_when_its_text_is_loaded(profile_file: Path) -> None:
    """The plan itself says that it is for a profile, also on such a GPU; `Plan.from_json` plans it again here."""
    profile = DeviceProfile.load(profile_file)
    text = written("forward", "float16", True)
    arrays, right = arrays_for(text)
    planned = cudnnpy.plan(text, device=profile)
    assert planned.profile is profile
    with pytest.raises(cudnnpy.CudnnError, match="plan must be for a GPU of this process to run"):
        execute(planned, arrays)
    loaded = Plan.from_json(planned.to_json())
    assert (loaded.name, loaded.workspace_size, loaded.profile) == (planned.name, planned.workspace_size, None)
    assert_same(execute(loaded, arrays), right)


def test_candidates_of_the_profile_are_the_gpus_own(profile_file: Path) -> None:
    """For the workspace limit of both, except the v7 functions and what is compiled at run time."""
    conv = Convolution(padding=1, workspace_limit=1 << 28)
    x, w = TensorSpec(X, "float16"), TensorSpec(W, "float16")
    names = [
        [one.name for one in conv.candidates("forward", x, w, device=device) if not one.rejection_reason]
        for device in (DeviceProfile.load(profile_file), 0)
    ]
    assert names[0]
    assert set(names[0]) <= set(names[1])


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_a_profile_of_the_package_is_that_of_its_gpu(name: str, profile_file: Path) -> None:
    """But for the clocks, which a machine may limit, and what names one GPU of a machine."""
    here, packaged = DeviceProfile.load(profile_file), DeviceProfile.load(name)
    if here.description != packaged.description:
        pytest.skip(f"the GPU is no {name}: {here.description}")
    varying = {"pciDeviceId", "cudaDeviceId", "driverVer", "smClockRateKHz", "memClockRateKHz", "totalGlobalMem"}
    stated = {key: value for key, value in packaged.properties.items() if key in here.properties and key not in varying}
    assert stated == {key: here.properties[key] for key in stated}
