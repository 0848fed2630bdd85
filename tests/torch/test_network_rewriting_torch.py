"""docs/examples/torch_network.py on the host: which layers fold and fuse, and that results stay torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from host_plans import Host
from network_modules import By, check, conv, settled
from torch import nn
from torch.nn import functional as F


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


# --- what becomes one layer


def resnet_block(stride: int) -> nn.Module:
    def forward(m: Any, x: Any) -> Any:
        identity = x if stride == 1 else m.norm3(m.shortcut(x))
        out = m.relu(m.norm1(m.conv1(x)))
        out = m.norm2(m.conv2(out))
        out += identity
        return m.relu(out)

    parts: dict[str, nn.Module] = {"conv1": conv(stride=stride, bias=False), "conv2": conv(bias=False)}
    parts |= {"shortcut": conv(size=1, padding=0, stride=stride, bias=False), "relu": nn.ReLU(inplace=True)}
    return By(forward, **parts, **{f"norm{n}": nn.BatchNorm2d(8) for n in (1, 2, 3)})


@pytest.mark.parametrize("stride", [1, 2])
def test_a_residual_block_becomes_its_convolutions(host: Host, stride: int) -> None:
    network = check(host, settled(resnet_block(stride)), 2, 8, 6, 6)
    expected = [("conv1 + norm1 + relu", "cudnnpy"), ("conv2 + norm2 + add + relu", "cudnnpy")]
    if stride == 2:
        expected.insert(0, ("shortcut + norm3", "cudnnpy"))
    assert host.rows(network) == expected


def test_the_first_of_two_convolutions_that_are_added_takes_the_sum(host: Host) -> None:
    module = By(lambda m, x: F.relu(m.a(x) + m.b(x)), a=conv(), b=conv())
    assert host.rows(check(host, module, 1, 8, 5, 5)) == [("b", "cudnnpy"), ("a + add + relu", "cudnnpy")]


def test_an_inverted_residual_becomes_three_convolutions(host: Host) -> None:
    wide = [conv(8, 16, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)]
    depthwise = [conv(16, 16, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)]
    narrow = [conv(16, 8, 1, 0, bias=False), nn.BatchNorm2d(8)]
    module = By(lambda m, x: x + m.body(x), body=nn.Sequential(*wide, *depthwise, *narrow))
    network = check(host, settled(module), 2, 8, 6, 6)
    layers = ["body.0 + body.1 + body.2", "body.3 + body.4 + body.5", "body.6 + body.7 + add"]
    assert host.rows(network) == [(layer, "cudnnpy") for layer in layers]


def test_a_residual_that_is_used_twice_stays_what_it_is(host: Host) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = F.relu(m.a(x))
        return m.c(F.relu(m.b(h) + h)) + h

    network = check(host, By(forward, a=conv(), b=conv(), c=conv()), 2, 8, 6, 6)
    assert host.rows(network) == [(layer, "cudnnpy") for layer in ("a + relu", "b + add + relu_1", "c + add_1")]


ACTIVATIONS = [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU()]
ACTIVATIONS += [nn.GELU("tanh"), nn.Hardswish(), nn.Hardsigmoid(), nn.LeakyReLU(0.2), nn.ELU(0.7)]


@pytest.mark.parametrize("act", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("residual", [False, True])
def test_activations_are_fused_and_computed_as_torch_does(host: Host, act: nn.Module, residual: bool) -> None:
    module = By(lambda m, x: m.act(m.a(x) + x if residual else m.a(x)), a=conv(), act=act)
    network = check(host, module, 2, 8, 6, 6)
    assert [by for _, by in host.rows(network)] == ["cudnnpy"]
    if residual:  # where no engine takes it whole: two launches
        host.times = {"graph convolution": 9.0}
        check(host, module, 2, 8, 6, 6)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "x.relu": lambda x: x.relu(),
    "x.relu_": lambda x: x.relu_(),
    "F.relu6": F.relu6,
    "F.silu": lambda x: F.silu(x, inplace=True),
    "F.gelu": lambda x: F.gelu(x, approximate="tanh"),
    "F.leaky_relu": lambda x: F.leaky_relu(x, negative_slope=0.3),
    "F.elu": lambda x: F.elu(x, 0.5),
    "x.sigmoid": lambda x: x.sigmoid(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_methods_are_fused_as_modules_are(host: Host, name: str) -> None:
    network = check(host, By(lambda m, x: FUNCTIONS[name](m.a(x)), a=conv()), 2, 8, 6, 6)
    assert [by for _, by in host.rows(network)] == ["cudnnpy"]


GEOMETRIES = {
    "1-D": (nn.Conv1d(8, 16, 5, 2, 2), (2, 8, 21)),
    "3-D": (nn.Conv3d(8, 8, (1, 3, 3), 1, (0, 1, 1)), (2, 8, 3, 5, 6)),
    "grouped": (conv(8, 16, groups=4), (2, 8, 6, 6)),
    "dilated": (conv(padding=2, dilation=2), (2, 8, 7, 6)),
    "same": (conv(size=4, padding="same"), (2, 8, 7, 6)),
    "valid": (conv(padding="valid"), (2, 8, 7, 6)),
    "three channels": (conv(3, 5, bias=False), (2, 3, 7, 6)),
    "transposed": (nn.ConvTranspose2d(8, 6, 3, 2, 1, 1), (2, 8, 5, 4)),
    "transposed 1-D": (nn.ConvTranspose1d(8, 6, 4, 2, 1, bias=False), (2, 8, 5)),
    "transposed, grouped": (nn.ConvTranspose2d(8, 8, 2, 2, groups=4), (2, 8, 5, 4)),
    "transposed 3-D": (nn.ConvTranspose3d(4, 8, 2, 2), (1, 4, 2, 3, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("act", [None, nn.ReLU(), nn.Hardswish()], ids=repr)
def test_convolutions_of_every_kind_with_a_norm(host: Host, name: str, act: nn.Module | None) -> None:
    convolution, shape = GEOMETRIES[name]
    axes = len(shape) - 2
    norm = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][axes - 1](convolution.out_channels)
    folds = name != "transposed, grouped"
    for parts in ([convolution, norm], [convolution]):
        network = check(host, settled(nn.Sequential(*parts, *([act] if act else []))), *shape)
        whole = folds or len(parts) == 1
        assert [by for _, by in host.rows(network)] == ["cudnnpy", "torch", "torch"][: 1 if whole else 2 + bool(act)]


def test_half_precision_folds_in_float32(host: Host) -> None:
    module = settled(nn.Sequential(conv(bias=False), nn.BatchNorm2d(8)))
    nn.init.uniform_(module[1].running_var, 1e-3, 2e-3)
    x = torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        right = module(x)
    check(host, copy.deepcopy(module).half(), 2, 8, 6, 6, dtype=torch.float16, tolerance=0.3)
    weight = host.rewriting.folded(copy.deepcopy(module[0]).half(), module[1].half()).weight
    exact = host.rewriting.folded(copy.deepcopy(module[0]), copy.deepcopy(module[1]).float()).weight
    torch.testing.assert_close(weight.float(), exact, rtol=2e-3, atol=0)
    assert right.abs().max() > 5


def test_a_linear_layer_is_a_convolution_of_rows(host: Host) -> None:
    for shape in ((5, 8), (2, 3, 8), (2, 3, 4, 8)):
        mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8, bias=False))
        network = check(host, By(lambda m, x: x + m.body(x), body=mlp), *shape)
        assert host.rows(network) == [("body.0 + body.1", "cudnnpy"), ("body.2 + add", "cudnnpy")]


def convnext_block(turned: bool, scale: tuple[int, ...]) -> nn.Module:
    def forward(m: Any, x: Any) -> Any:
        y = m.a(x).permute(0, 2, 3, 1)
        y = m.wide(m.norm(y))
        if turned:
            return x + m.scale * m.narrow(F.gelu(y)).permute(0, 3, 1, 2)
        return x + (m.scale * m.narrow(F.gelu(y))).permute((0, 3, 1, 2))

    parts = {"a": conv(groups=8), "norm": nn.LayerNorm(8), "wide": nn.Linear(8, 32), "narrow": nn.Linear(32, 8)}
    module = By(forward, **parts)
    module.scale = nn.Parameter(torch.rand(scale))
    return module


@pytest.mark.parametrize(("turned", "scale"), [(True, (8, 1, 1)), (True, (1, 8, 1, 1)), (False, (8,))])
def test_linear_layers_are_fused_through_a_permutation(host: Host, turned: bool, scale: tuple[int, ...]) -> None:
    network = check(host, convnext_block(turned, scale), 2, 8, 5, 6)
    names = ["permute_1", "mul"] if turned else ["mul", "permute_1"]
    expected = [("a", "cudnnpy"), ("permute", "torch"), ("norm", "torch"), ("wide + gelu", "cudnnpy")]
    assert host.rows(network) == [*expected, (f"narrow + {' + '.join(names)} + add", "cudnnpy")]
    host.times = {"graph convolution": 9.0}
    check(host, convnext_block(turned, scale), 2, 8, 5, 6)


@pytest.mark.parametrize("scale", [(1, 5, 6), (5, 1), (6,), (2, 8, 1, 1)])
def test_a_factor_that_is_not_of_channels_is_torch_s(host: Host, scale: tuple[int, ...]) -> None:
    module = By(lambda m, x: m.a(x) * m.scale, a=conv())
    module.scale = nn.Parameter(torch.rand(scale))
    assert host.rows(check(host, module, 2, 8, 5, 6)) == [("a", "cudnnpy"), ("mul", "torch")]


# --- what is left to torch, and why


def left(name: str) -> Any:
    """A module, x's shape, its rows, and what a row's reason has."""

    def broadcast(m: Any, x: Any) -> Any:
        return m.a(x) + x.mean((2, 3), keepdim=True)

    def two_users(m: Any, x: Any) -> Any:
        y = m.a(x)
        return F.relu(y) * y

    def in_place_on_two_users(m: Any, x: Any) -> Any:
        y = m.a(x)
        z = y.relu_()
        return y * 2 + z

    def into_the_other(m: Any, x: Any) -> Any:
        h = m.b(x)
        h.add_(m.a(x))
        return h * 2

    def x_changes_between(m: Any, x: Any) -> Any:
        h = F.relu(x)
        y = m.a(h)
        h.mul_(3)
        return y + h

    def twice(m: Any, x: Any) -> Any:
        y = m.a(x)
        return y + y

    a_and_add, only_a = [("a", "cudnnpy"), ("add", "torch")], [("a", "cudnnpy")]
    found = {
        "broadcast": (By(broadcast, a=conv()), [("a", "cudnnpy"), ("mean", "torch"), ("add", "torch")], "add"),
        "a number": (By(lambda m, x: m.a(x) + 1.5, a=conv()), a_and_add, "add"),
        "alpha": (By(lambda m, x: torch.add(m.a(x), x, alpha=2), a=conv()), a_and_add, "add"),
        "two users": (By(two_users, a=conv()), [*only_a, ("relu", "torch"), ("mul", "torch")], "relu"),
        "in place on two users": (
            By(in_place_on_two_users, a=conv()),
            [*only_a, ("relu_", "torch"), ("mul", "torch"), ("add", "torch")],
            "relu_",
        ),
        "into the other": (
            By(into_the_other, a=conv(), b=conv()),
            [("b", "cudnnpy"), ("a", "cudnnpy"), ("add_", "torch"), ("mul", "torch")],
            "",
        ),
        "x changes between": (
            By(x_changes_between, a=conv()),
            [("relu", "torch"), *only_a, ("mul_", "torch"), ("add", "torch")],
            "add",
        ),
        "twice": (By(twice, a=conv()), a_and_add, "add"),
        "circular": (nn.Sequential(conv(padding_mode="circular")), [("0", "torch")], "padding_mode='circular'"),
        "training": (nn.Sequential(conv(), nn.BatchNorm2d(8)), [("0", "cudnnpy"), ("1", "torch")], "by the batch"),
        "no statistics": (
            nn.Sequential(conv(), nn.BatchNorm2d(8, track_running_stats=False)).eval(),
            [("0", "cudnnpy"), ("1", "torch")],
            "by the batch",
        ),
        "norm first": (
            nn.Sequential(nn.BatchNorm2d(8), conv()).eval(),
            [("0", "torch"), ("1", "cudnnpy")],
            "before it",
        ),
        "output size": (
            By(lambda m, x: m.a(x, [13, 13]), a=nn.ConvTranspose2d(8, 8, 3, 2, 1)),
            [("a", "torch")],
            "more than x",
        ),
        "no batch": (By(lambda m, x: m.a(x[0]), a=conv()), [("getitem", "torch"), ("a", "torch")], "shape (8, 7, 7)"),
        "a subclass": (
            nn.Sequential(type("Mine", (nn.Conv2d,), {"__module__": "torch.nn"})(8, 8, 3)),
            [("0", "torch")],
            "Mine",
        ),
    }
    return found[name]


LEFT = ["broadcast", "a number", "alpha", "two users", "in place on two users", "into the other", "x changes between"]
LEFT += ["twice", "circular", "training", "no statistics", "norm first", "output size", "no batch", "a subclass"]


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_fit_is_left_to_torch_and_listed(host: Host, name: str) -> None:
    module, rows, reason = left(name)
    network = check(host, module, 2, 8, 7, 7)
    assert host.rows(network) == rows
    assert any(reason in row.detail for row in network.rows)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_has_hooks_is_left_to_torch(host: Host) -> None:
    module = nn.Sequential(
        nn.utils.weight_norm(conv()), nn.ReLU(), nn.utils.parametrizations.weight_norm(conv()), conv()
    )
    module[3].register_forward_hook(lambda layer, given, result: result * 2)
    with torch.no_grad():
        module[0].weight_g.mul_(3)
        module(torch.zeros(1, 8, 4, 4))  # a weight that a hook computed without gradients can be copied
    network = check(host, nn.Sequential(module, conv(), nn.ReLU(), nn.Identity()), 2, 8, 6, 6)
    assert host.rows(network)[:-1] == [("0.0", "torch"), ("0.1", "torch"), ("0.2", "torch"), ("0.3", "torch")]
    assert [row.detail for row in network.rows if row.layer in ("0.0", "0.3")] == ["it has hooks"] * 2
    hooked = nn.Sequential(conv(), nn.ReLU(), nn.Identity(), conv())
    for layer in hooked[1:3]:
        layer.register_forward_hook(lambda layer, given, result: result * 2)
    expected = [("0", "cudnnpy"), ("1", "torch"), ("2", "torch"), ("3", "cudnnpy")]
    assert host.rows(check(host, hooked, 2, 8, 6, 6)) == expected


def test_whatever_fails_leaves_the_module_to_torch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> None:
        raise KeyError("something")

    monkeypatch.setattr(host.rewriting.Rewriter, "run", fails)
    network = check(host, nn.Sequential(conv()), 2, 8, 6, 6)
    assert network.rows[0].detail == "it cannot be converted: KeyError: 'something'"


def test_float64_is_left_to_torch(host: Host) -> None:
    network = check(host, nn.Sequential(conv().double(), nn.ReLU()), 2, 8, 6, 6, dtype=torch.float64)
    assert host.rows(network) == [("0", "torch"), ("1", "torch")]
    assert "float16, bfloat16 and float32" in network.rows[0].detail


def test_a_module_that_cannot_be_traced_is_left_whole(host: Host) -> None:
    network = check(host, By(lambda m, x: m.a(x) if x.sum() > 0 else m.a(-x), a=conv()), 2, 8, 6, 6)
    assert host.rows(network) == [("the whole module", "torch")]
    assert "cannot be traced: TraceError" in network.report()
