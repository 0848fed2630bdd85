"""docs/examples/torch_network.py on the host: the ways to run a layer, and which one is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from host_plans import Host
from network_modules import check, conv
from torch import nn


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_the_fastest_way_is_taken(host: Host) -> None:
    module = nn.Sequential(conv(), nn.Hardswish())
    by_times = [({}, "graph convolution_forward"), ({"graph c": 1.5}, "convolution forward + graph pointwise")]
    by_times += [({"graph c": 1.5, "convolution": 1.4}, "convolution forward + "), ({"torch": 0.5}, "torch is faster")]
    for times, detail in by_times:
        host.times = times
        (row,) = check(host, module, 2, 8, 6, 6).rows
        assert row.detail.startswith(detail)
        assert row.by == ("torch" if times == {"torch": 0.5} else "cudnnpy")
        assert row.torch_milliseconds == times.get("torch", 2.0)
        assert len(row.others) == 1


def test_a_capture_takes_the_way_that_is_fastest_on_the_gpu(host: Host) -> None:
    module = nn.Sequential(conv(), nn.Hardswish(), conv())
    x = torch.randn(2, 8, 6, 6)
    cases = [
        ({}, {}, "graph convolution_forward", ""),
        ({"convolution": 1.5}, {"convolution": 0.5}, "graph c", "; in CUDA graphs convolution forward + graph p"),
        ({}, {"torch": 0.1}, "graph c", "; in CUDA graphs torch, 0.1000 ms"),
        ({"torch": 0.5}, {"torch": 2.0}, "torch is faster than graph c", "; in CUDA graphs graph c"),
    ]
    for times, gpu_times, eager, captured in cases:
        host.times, host.gpu_times, host.capturing = times, gpu_times, False
        network = host.example.convert(module, x)
        detail = network.rows[0].detail
        assert detail.startswith(eager)
        assert captured in detail
        assert bool(captured) is ("CUDA graphs" in detail)
        (program,) = network._programs.values()
        (first, *_) = program.choices.values()
        for host.capturing, launches in ((False, first.launches), (True, first.captured), (False, first.launches)):
            before = [launch.plan.runs for launch in launches]
            torch.testing.assert_close(network(x), module(x), rtol=1e-5, atol=1e-5)
            assert [launch.plan.runs for launch in launches] == [count + 1 for count in before]


def test_a_layer_without_a_plan_is_torch_s_and_has_the_reasons(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("no engine\nand a table")

    monkeypatch.setattr(host.plans, "in_one_graph", refuses)
    (row,) = check(host, nn.Sequential(conv(), nn.ReLU()), 2, 8, 6, 6).rows
    assert row.detail == "convolution forward"
    monkeypatch.setattr(host.plans, "in_a_convolution", refuses)
    (row,) = check(host, nn.Sequential(conv(), nn.ReLU()), 2, 8, 6, 6).rows
    assert row.detail == "convolution forward + graph pointwise pointwise"
    monkeypatch.setattr(host.plans, "in_two", refuses)
    (row,) = check(host, nn.Sequential(conv(), nn.ReLU()), 2, 8, 6, 6).rows
    assert row.by == "torch"
    assert row.detail == "; ".join(["refuses: RuntimeError: no engine"] * 3)


@pytest.mark.parametrize("wrong", [1.1, float("nan")])
def test_a_way_that_computes_something_else_is_not_taken(host: Host, wrong: float) -> None:
    host.wrong = {"graph convolution": wrong}
    (row,) = check(host, nn.Sequential(conv(), nn.Hardswish()), 2, 8, 6, 6).rows
    assert row.detail.startswith("convolution forward + graph")
    assert "the result differs from torch's by" in row.others[0]
    host.wrong["graph pointwise"] = wrong
    (row,) = check(host, nn.Sequential(conv(), nn.Hardswish()), 2, 8, 6, 6).rows
    assert row.by == "torch"
    assert row.detail.count("the result differs from torch's by") == 2


def test_equal_layers_share_their_plans(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []
    of_trial = host.plans.Trial.plan
    monkeypatch.setattr(host.plans.Trial, "plan", lambda trial: jobs.append(trial.job) or of_trial(trial))
    check(host, nn.Sequential(*[part for _ in range(4) for part in (conv(), nn.ReLU())], conv(8, 4)), 2, 8, 6, 6)
    assert len(set(jobs)) == 2
    assert len(jobs) == 4


def test_options_reach_every_plan(host: Host) -> None:
    seen: list[dict[str, Any]] = []
    host.plans.cudnnpy.Graph = lambda **options: seen.append(options)  # and so no graph is made
    x = torch.randn(2, 8, 6, 6)
    module = nn.Sequential(conv(), nn.Hardswish())
    host.example.convert(module, x, prefer="no_workspace", deterministic=True, tf32=False, tune_seconds=1.5)
    assert seen[0] == {
        "prefer": "no_workspace",
        "workspace_limit": None,
        "tune_seconds": 1.5,
        "deterministic": True,
        "tf32": False,
    }
    with pytest.raises(ValueError, match="prefer"):
        host.example.convert(module, x, prefer="quickest")


@pytest.mark.parametrize(("tf32", "expected"), [(None, [False, True]), (True, [True, True]), (False, [False, False])])
@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has one flag for all of cuDNN")
def test_each_kind_of_layer_has_torchs_own_precision(
    host: Host, tf32: bool | None, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    trial = host.example.Trial
    monkeypatch.setattr(host.example, "Trial", lambda *given: seen.append(given[2]) or trial(*given))
    module = nn.Sequential(nn.Linear(8, 8), conv(3))
    places = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [place.fp32_precision for place in places]
    torch.use_deterministic_algorithms(True)
    try:
        for place, precision in zip(places, ("ieee", "tf32", "ieee"), strict=True):
            place.fp32_precision = precision  # these of cuDNN differ, so that its allow_tf32 raises
        host.example.convert(module, torch.randn(2, 3, 8, 8), tf32=tf32)
    finally:
        torch.use_deterministic_algorithms(False)
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
    assert [options["tf32"] for options in seen] == expected
    assert all(options["deterministic"] is True for options in seen)
