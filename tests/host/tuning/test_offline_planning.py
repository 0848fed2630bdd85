"""Planning for a device profile from Python: plans, candidates and explanations without a GPU, with the real libcudnn."""

from __future__ import annotations

import json
import pickle
import re
import resource
import threading
from typing import Any

import pytest
import sample_graphs
from messages import says
from offline_profiles import needs_profiles

import cudnnpy
from cudnnpy import Convolution, DeviceProfile, Engine, FusedConvolution, Graph, Plan, TensorSpec, errors, store
from cudnnpy._planning import problem_notation, selection
from cudnnpy._process.cuda_state import NO_DRIVER
from cudnnpy.errors import CudnnError, NoAlgorithmError, status_error
from cudnnpy.tuning import problem_file
from cudnnpy.tuning.measuring import child_process
from cudnnpy.tuning.profiles import planner_process

TEXT = "forward 8x64x28x28 64x64x3x3 pad=1 float16"
X, W = TensorSpec((8, 64, 28, 28), "float16"), TensorSpec((64, 64, 3, 3), "float16")
LAST = TensorSpec((8, 28, 28, 64), "float16"), TensorSpec((64, 3, 3, 64), "float16")
BIAS = TensorSpec((64,), "float16")
NAMED = "device must be ...; got 'h200'. cudnnpy.DeviceProfile.load loads a profile by its name"
GPU = "NVIDIA H200, compute capability 9.0, 132 multiprocessors"

pytestmark = [needs_profiles, pytest.mark.usefixtures("without_driver")]


@pytest.fixture(scope="module")
def h200() -> DeviceProfile:
    return DeviceProfile.load("h200")


def graph() -> Graph:
    """Convolution, bias and relu, for which there are engines that are not compiled at run time."""
    made = Graph()
    x, w = (
        made.tensor(name, spec._replace(strides=strides))
        for name, spec, strides in (("x", X, (50176, 1, 1792, 64)), ("w", W, (576, 1, 192, 64)))
    )
    bias = made.tensor("bias", TensorSpec((1, 64, 1, 1), "float16"))
    made.output("y", made.pointwise("relu_fwd", made.pointwise("add", made.convolution(x, w, padding=1), bias)))
    return made


def test_a_plan_says_for_what_it_is(h200: DeviceProfile) -> None:
    plan = Convolution(padding=1).plan("forward", X, W, device=h200)
    assert plan.profile is h200
    assert repr(plan).endswith(f"; for {GPU}>")
    assert str(plan.problem) == TEXT
    assert (plan.operands, plan.source, plan.milliseconds) == (("x", "w", "y"), "heuristics", None)
    chosen = next(one for one in plan.candidates if not one.rejection_reason)
    assert (chosen.name, chosen.workspace_size) == (plan.name, plan.workspace_size)
    assert len(plan.candidates) > 20
    assert isinstance(plan.engine, Engine)
    assert plan.name.startswith(f"engine {plan.engine.index}")
    assert GPU in json.loads(plan.to_json())["gpu"]


def test_it_cannot_run_here(h200: DeviceProfile) -> None:
    plan = Convolution(padding=1).plan("forward", X, W, device=h200)
    message = (
        f"plan must be for a GPU of this process to run; got one for {GPU}, the device profile h200. ... Plan.from_json"
    )
    with pytest.raises(CudnnError, match=says(message)):
        plan.execute(16, 16, 16, 16, 0)
    with pytest.raises(
        ValueError, match=says(f"algorithm must be a plan for a GPU of this process; got one for {GPU}")
    ):
        plan.check_serves(plan.problem)


def test_another_gpu_rejects_its_text(h200: DeviceProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    text = cudnnpy.plan(TEXT, device=h200).to_json()
    monkeypatch.setattr("cudnnpy._planning.plan.on_device", _no_device)
    monkeypatch.setattr(
        "cudnnpy._planning.plan.Handle", type("Handle", (), {"default": staticmethod(lambda device: None)})
    )
    with pytest.raises(ValueError, match=says(f"text must be a plan for this GPU, ...; got one for {GPU}: plan again")):
        Plan.from_json(text)


def _no_device(device: int) -> Any:
    return threading.RLock()


def test_gradients_fused_convolutions_and_graphs(h200: DeviceProfile) -> None:
    y = TensorSpec((8, 64, 28, 28), "float16")
    assert Convolution(padding=1).plan("backward_data", y, W, X.shape, device=h200).operation == "backward_data"
    fused = FusedConvolution(padding=1, layout="NHWC").plan(*LAST, bias=BIAS, device=h200)
    assert (fused.operands, fused.profile) == (("x", "w", "bias", "out"), h200)
    swish = FusedConvolution(padding=1, layout="NHWC").plan(*LAST, bias=BIAS, activation="swish", device=h200)
    assert swish.choice.compiled_at_run_time
    made = graph().plan(device=h200)
    assert (made.operands, made.profile) == (("x", "w", "bias", "y"), h200)
    assert made.operation == "forward"
    again = pickle.loads(pickle.dumps(made))
    assert (again.operands, again.to_json()) == (made.operands, made.to_json())


def test_problems_are_recorded(h200: DeviceProfile, tmp_path: Any) -> None:
    with cudnnpy.record() as recording:
        Convolution(padding=1).plan("forward", X, W, device=h200)
        graph().plan(h200)
    assert recording.problems[0] == TEXT
    assert recording.problems[1].startswith("forward ")
    recording.save(tmp_path / "problems.txt")
    assert [one.text for one in problem_file.read(tmp_path / "problems.txt")] == list(recording.problems)


def test_the_entries_make_an_export(h200: DeviceProfile, tmp_path: Any) -> None:
    entry = cudnnpy.plan(TEXT, device=h200).entry
    assert entry is not None
    with store.open("") as planned:
        planned.put(entry)
        assert planned.export(tmp_path / "plans.jsonl") == 1
    with store.open(tmp_path / "store.jsonl") as other:
        assert other.load(tmp_path / "plans.jsonl") == 1


def test_without_an_engine_the_table_says_why(h200: DeviceProfile) -> None:
    made = Graph()
    made.output("y", made.pointwise("sigmoid_fwd", made.tensor("x", X)))
    with cudnnpy.record() as recording, pytest.raises(NoAlgorithmError, match="left out because") as caught:
        made.plan(h200)
    assert caught.value.candidates
    assert recording.problems == ()


def test_a_graph_of_packed_tensors_is_told_the_strides_that_engines_need(h200: DeviceProfile) -> None:
    def graph(*strides: Any) -> cudnnpy.Graph:
        g = cudnnpy.Graph()
        shapes = zip(((8, 64, 28, 28), (64, 64, 3, 3)), strides or (None, None), strict=True)
        x, w = (
            g.tensor(name, TensorSpec(shape, "float16", stride))
            for name, (shape, stride) in zip("xw", shapes, strict=True)
        )
        g.output("y", g.convolution(x, w, padding=1))
        return g

    last = ((50176, 1, 1792, 64), (576, 1, 192, 64))
    assert graph(*last).plan(h200).profile is h200
    advice = "need tensors that are channels last in memory; x, y are not. The strides of x would be "
    packed = cudnnpy.Graph()
    packed.output("y", packed.pointwise("relu_fwd", packed.tensor("x", TensorSpec((8, 64, 28, 28)))))
    with pytest.raises(NoAlgorithmError, match=re.escape(f"{advice}{last[0]}")):
        packed.plan(h200)


def test_a_plan_compiles_one_engine_and_a_survey_three(h200: DeviceProfile) -> None:
    plan = sample_graphs.GRAPHS["scaled"](Graph()).plan(h200)
    report = cudnnpy.explain(problem_notation.text_of(plan.problem), device=h200)
    rows = report["candidates"]
    assert plan.choice.compiled_at_run_time
    assert report["choice"]["name"] == plan.name
    compiled = [one.name for one in plan.candidates if one.workspace_size is not None]
    assert compiled == [plan.name]
    surveyed = [row["name"] for row in rows if row["workspace_size"] is not None]
    assert surveyed == [row["name"] for row in rows][: selection.SURVEY_COMPILES]
    (reason,) = {row["rejection_reason"] for row in rows[selection.SURVEY_COMPILES :] if row["compiled_at_run_time"]}
    assert reason.startswith("not compiled: ")


def test_an_engine_that_a_survey_did_not_compile_can_be_forced(h200: DeviceProfile) -> None:
    plan = Convolution(padding=1).plan("forward", X, W, device=h200)
    other = next(one for one in plan.candidates if one.rejection_reason.startswith("not compiled: "))
    forced = Convolution(padding=1, algorithm=other.engine).plan("forward", X, W, device=h200)
    assert (forced.name, forced.choice.compiled_at_run_time) == (other.name, True)
    assert [one.name for one in forced.candidates] == [other.name]
    with pytest.raises(NoAlgorithmError, match=r"algorithm=Engine\(10000\)"):
        Convolution(padding=1, algorithm=Engine(10_000)).plan("forward", X, W, device=h200)


# Graphs that no engine computes unless it is compiled at run time
COMPILED = (
    sample_graphs.scaled_convolution,
    sample_graphs.column_sums,
    sample_graphs.product,
    sample_graphs.attention,
    sample_graphs.layer_norm,
    sample_graphs.normalization_gradient,
    sample_graphs.averages,
)


def test_graphs_that_must_be_compiled_are_planned(h200: DeviceProfile) -> None:
    for make in COMPILED:
        assert make(Graph()).plan(h200).choice.compiled_at_run_time


@pytest.mark.parametrize("given", ["h200", "a100.json", 0])
def test_a_name_is_no_profile(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"text must be the properties .*; got .*\. cudnnpy\.DeviceProfile\.load loads a prof"
    ):
        DeviceProfile(given)


def test_odd_properties_are_refused_when_the_profile_is_made() -> None:
    """In the words of test_profile.py, which has them in files."""
    with pytest.raises(ValueError, match=r"^text: a device profile must have the keys deviceName, "):
        DeviceProfile("{}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h200: Convolution().plan("forward", X, W, device="h200"), NAMED),
        (lambda h200: graph().plan("h200"), NAMED),
        (lambda h200: cudnnpy.plan(TEXT, device="h200"), NAMED),
        (lambda h200: cudnnpy.explain(TEXT, device="h200"), NAMED),
        (lambda h200: Convolution(padding=1, algorithm="gemm").plan("forward", X, W, device=h200), "algorithm must be None or"),
        (lambda h200: cudnnpy.plan("forwards 1x1x1x1", device=h200), "operation must be one of"),
        (
            lambda h200: FusedConvolution(padding=1).plan(X, W, device=h200),
            "x must be channels last and aligned to 16 bytes, ...; got strides (50176, 784, 28, 1)",
        ),
        (
            lambda h200: FusedConvolution(layout="NHWC").plan(LAST[0]._replace(shape=(0, 28, 28, 64)), LAST[1], device=h200),
            "a planned problem must have elements; got none in x, out",
        ),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(h200: DeviceProfile, call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says(message)):
        call(h200)


def test_arrays_have_a_device_of_their_own(h200: DeviceProfile, stand_in: Any) -> None:
    from stand_in_device import Array

    with pytest.raises(
        TypeError,
        match=says(
            "x and w must be TensorSpecs to plan for a device profile; got an array ...). Type cudnnpy.TensorSpec("
        ),
    ):
        Convolution(padding=1).plan("forward", Array(2, 4, 6, 6), Array(8, 4, 3, 3), device=h200)
    with pytest.raises(TypeError, match="w must be a TensorSpec to plan for a device profile; got an array "):
        Convolution(padding=1).plan("forward", X, Array(64, 64, 3, 3), device=h200)


def test_one_process_serves_all_calls_until_another_profile(
    own_planner: None, h200: DeviceProfile, monkeypatch: pytest.MonkeyPatch, profile_file: Any
) -> None:
    started: list[Any] = []
    make = child_process.WorkerProcess

    def counted(*given: Any, **options: Any) -> Any:
        started.append(make(*given, **options))
        return started[-1]

    monkeypatch.setattr(planner_process, "WorkerProcess", counted)
    cudnnpy.plan(TEXT, device=h200)
    cudnnpy.explain(TEXT, device=h200)
    assert len(started) == 1
    threads = [threading.Thread(target=cudnnpy.plan, args=(TEXT,), kwargs={"device": h200}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    cudnnpy.plan(TEXT, device=DeviceProfile.load(profile_file()))
    assert [one.is_alive for one in started] == [False, True]


# Profiles


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_the_profiles_of_the_package_plan_with_the_loaded_cudnn(name: str) -> None:
    assert cudnnpy.plan(TEXT, device=DeviceProfile.load(name)).workspace_size >= 0


def test_a_profile_of_the_package_tells_what_was_set_by_hand(h200: DeviceProfile, tmp_path: Any) -> None:
    assert h200.set_by_hand == ("smCountOrigin", "oversizedSharedMemoryPerBlock", "memoryBusWidth")
    assert "9.28.0" in h200.releases
    h200.save(tmp_path / "mine.json")
    again = DeviceProfile.load(tmp_path / "mine.json")
    assert (again.properties, again.cudnn, again.set_by_hand, again.releases) == (
        h200.properties, None, h200.set_by_hand, h200.releases
    )  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="large"):
            h200.save(tmp_path / "mine.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert DeviceProfile.load(tmp_path / "mine.json").properties == h200.properties
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]


def test_the_status_of_the_graph_api_without_a_driver_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "cuda_problem", lambda: NO_DRIVER)
    error = status_error("cudnnBackendFinalize", 1008, "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED")
    assert "CUDA driver (libcuda.so.1)" in str(error)
    assert "device=cudnnpy.DeviceProfile.load('h200')" in str(error)


def test_an_idle_process_that_ends_at_the_moment_of_a_call_is_replaced(
    h200: DeviceProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cudnnpy.plan(TEXT, device=h200)
    ended = planner_process._current[0]._process
    ended.kill()
    ended._process.wait()
    is_alive = type(ended).is_alive.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(ended), "is_alive", property(lambda self: not self._closed if self is ended else is_alive(self))
    )
    assert cudnnpy.plan(TEXT, device=h200).name == first.name
