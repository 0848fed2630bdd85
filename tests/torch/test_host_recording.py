"""Recording the problems of networks whose tensors are on the CPU or on the meta device, without a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.library import Library

import cudnnpy
import cudnnpy.torch
from cudnnpy.torch import host_recording
from cudnnpy.tuning import problem_file

ROOT = Path(__file__).resolve().parents[2]
FORMATS = (torch.contiguous_format, torch.channels_last)


def network(device: str, memory_format: Any) -> torch.nn.Module:
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        torch.nn.ConvTranspose2d(16, 8, 2, 2),
    )
    return made.to(device).to(memory_format=memory_format)


def step(device: str, memory_format: Any) -> torch.Tensor:
    x = torch.ones(4, 3, 16, 16, device=device).contiguous(memory_format=memory_format)
    y = network(device, memory_format)(x)
    y.sum().backward()
    return y


FORWARD = (
    "forward 4x3x16x16 16x3x3x3 pad=1",
    "forward 4x16x16x16 16x1x3x3 pad=1 groups=16",
    "backward_data 4x8x32x32 16x8x2x2 stride=2",
)
BACKWARD = (
    "forward 4x8x32x32 16x8x2x2 stride=2",
    "backward_filter 4x8x32x32 16x8x2x2 stride=2",
    "backward_data 4x16x16x16 16x1x3x3 pad=1 groups=16",
    "backward_filter 4x16x16x16 16x1x3x3 pad=1 groups=16",
    "backward_filter 4x3x16x16 16x3x3x3 pad=1",
)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_problems_of_a_step_are_recorded(device: str) -> None:
    with cudnnpy.record() as recording, cudnnpy.torch.enable():
        step(device, torch.contiguous_format)
    assert recording.problems == (*FORWARD, *BACKWARD)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_channels_last_problems_are_so(device: str) -> None:
    with cudnnpy.record() as recording, cudnnpy.torch.enable():
        step(device, torch.channels_last)
    biased = [f"{FORWARD[0]} channels_last bias", f"{FORWARD[1]} channels_last", f"{FORWARD[2]} channels_last bias"]
    assert recording.problems == (*biased, *(f"{text} channels_last" for text in BACKWARD))


def test_options_and_flags_are_recorded() -> None:
    x, w = (
        torch.empty(2, 3, 8, 8, device="meta", dtype=torch.float16),
        torch.empty(4, 3, 3, 3, device="meta", dtype=torch.float16),
    )
    torch.backends.cudnn.deterministic = True
    with cudnnpy.record() as recording, cudnnpy.torch.enable(prefer="no_workspace"):
        torch.nn.functional.conv2d(x, w)
    assert recording.problems == ("forward 2x3x8x8 4x3x3x3 float16 prefer=no_workspace deterministic",)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_results_and_gradients_are_pytorchs(memory_format: Any) -> None:
    torch.manual_seed(0)
    layers = network("cpu", memory_format)
    x = torch.randn(4, 3, 16, 16).contiguous(memory_format=memory_format)

    def gradients() -> list[torch.Tensor]:
        layers.zero_grad()
        y = layers(x)
        y.sum().backward()
        return [y.detach(), *(parameter.grad.clone() for parameter in layers.parameters())]

    expected = gradients()
    with cudnnpy.record(), cudnnpy.torch.enable():
        found = gradients()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


def test_nothing_is_recorded_without_a_recording_or_enable_and_everything_is_restored() -> None:
    before = [
        torch._C._dispatch_dump(f"aten::{name}") for name in ("convolution", "convolution_backward", "_convolution")
    ]
    with cudnnpy.record() as disabled:
        step("meta", torch.contiguous_format)
    with cudnnpy.record() as ended:
        pass
    with cudnnpy.torch.enable():
        step("meta", torch.contiguous_format)
        step("cpu", torch.contiguous_format)
    with cudnnpy.record() as closed, cudnnpy.torch.enable():
        closed.end()
        step("cpu", torch.contiguous_format)
    assert disabled.problems == ended.problems == closed.problems == ()
    after = [
        torch._C._dispatch_dump(f"aten::{name}") for name in ("convolution", "convolution_backward", "_convolution")
    ]
    assert after == before


def test_kernels_of_the_meta_device_are_registered_beside_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a torch.library that rejects a second kernel in Python, as PyTorch 2.11's does."""
    real, kernels = Library.impl, list(torch.library._impls)

    def strict(self: Any, name: str, fn: Any, key: str = "", **options: Any) -> None:
        if f"aten/{name}/{key}" in torch.library._impls:
            raise RuntimeError("This is not allowed since there's already a kernel registered from python")
        real(self, name, fn, key, **options)

    monkeypatch.setattr(Library, "impl", strict)
    assert "aten/convolution/Meta" in kernels
    for _ in range(2):
        with cudnnpy.record() as recording, cudnnpy.torch.enable():
            step("meta", torch.contiguous_format)
        assert recording.problems == (*FORWARD, *BACKWARD)
    assert sorted(torch.library._impls) == sorted(kernels)


def test_a_registration_that_fails_leaves_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("_convolution", "convolution", "convolution_backward")
    before = [torch._C._dispatch_dump(f"aten::{name}") for name in names]
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="NoSuchKey") as raised, cudnnpy.record():
        broken.setattr(host_recording, "KEYS", ("CPU", "NoSuchKey"))
        cudnnpy.torch.enable()
    assert [torch._C._dispatch_dump(f"aten::{name}") for name in names] == before
    assert not cudnnpy.torch.is_enabled()
    with cudnnpy.record() as recording, cudnnpy.torch.enable():
        step("cpu", torch.contiguous_format)
    assert recording.problems == (*FORWARD, *BACKWARD)
    assert raised.traceback  # which has referred to the library until here


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((0, 3, 8, 8), torch.float32), ((2, 3, 8, 8), torch.int32), ((1 << 16, 3, 256, 256), torch.float32)],
    ids=["empty", "data type", "large"],
)
def test_what_falls_back_on_a_gpu_is_not_recorded(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w = (torch.empty(given, device="meta", dtype=dtype) for given in (shape, (4, 3, 3, 3)))
    with cudnnpy.record() as recording, cudnnpy.torch.enable():
        torch.nn.functional.conv2d(x, w)
    assert recording.problems == ()


COMMAND = """
import sys
from cudnnpy.cli import main
from cudnnpy.cli.tune import session

def no_gpus():
    raise session.UnavailableError("there is no GPU")

session.stub_driver.has_driver = lambda: False
session.tune_problem.tuning_gpus = no_gpus
sys.exit(main(sys.argv[1:]))
"""


def test_the_command_lists_the_problems_of_a_forward_pass(tmp_path: Path) -> None:
    (tmp_path / "forward.py").write_text("""
import torch
import cudnnpy.torch
with cudnnpy.torch.enable(), torch.device("meta"), torch.no_grad():
    torch.nn.Conv2d(3, 16, 3, padding=1)(torch.empty(4, 3, 16, 16))
""")
    arguments = ["tune", "--save", "problems.txt", "--record", "forward.py"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "problems.txt has 1 problem, and none is tuned" in done.stderr
    assert [one.text for one in problem_file.read(tmp_path / "problems.txt")] == ["forward 4x3x16x16 16x3x3x3 pad=1"]


def test_calls_on_the_cpu_are_counted_and_enable_says_once_why_nothing_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cudnnpy.torch.registration.has_driver", lambda: False)
    cudnnpy.torch.reset_stats()
    with pytest.warns(RuntimeWarning) as caught, cudnnpy.torch.enable(), cudnnpy.torch.enable(prefer="autotune"):
        step("cpu", torch.contiguous_format)
    reason = f"without cudnnpy.torch: {cudnnpy.why_unavailable()}"
    assert [str(one.message).endswith(reason) and one.filename == __file__ for one in caught] == [True]
    assert cudnnpy.torch.stats().fallbacks == {"tensors on the CPU": 6}
    assert not any(cudnnpy.torch.stats().handled.values())


def test_with_a_driver_the_first_call_on_the_cpu_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("registration", "host_recording"):
        monkeypatch.setattr(f"cudnnpy.torch.{module}.has_driver", lambda: True)
    cudnnpy.torch.reset_stats()
    warning = r"of tensors on the CPU, which cudnnpy\.torch cannot serve"
    with pytest.warns(RuntimeWarning, match=warning) as caught, cudnnpy.torch.enable():
        step("cpu", torch.contiguous_format)
    assert len(caught) == 1
