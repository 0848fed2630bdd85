"""Drawn graphs of four families, their programs in torch, and their tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from cudnnpy import Graph, TensorSpec
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from tools.benchmark.attention_cells import empty

SEED = 1
EACH = 10  # of a family
EPSILON = 1e-5
MOST_FLOP = 4e11  # of a product: about a millisecond

DTYPES: tuple[Any, ...] = ("bfloat16", "float16", "bfloat16", "float16", "float32")  # that take turns in a family
# As networks have them: rows of tokens, features, and images (N, C, H, W). Others are drawn freely.
ROWS = (1, 16, 77, 128, 197, 256, 577, 1024, 2048, 4096, 8192)
FEATURES = (64, 256, 320, 512, 768, 1024, 1280, 2048, 3072, 4096)
GATED = ((768, 2048), (1024, 2816), (2048, 5632), (3072, 8192), (4096, 11008), (4096, 14336))
IMAGES = (
    *((32, 64, 112, 112), (32, 256, 56, 56), (64, 512, 28, 28), (16, 144, 56, 56), (128, 1280, 7, 7), (4, 320, 64, 64)),
    *((4096, 4096, 1, 1), (8192, 768, 1, 1), (2048, 11008, 1, 1)),
)
ACTIVATIONS = ("relu_fwd", "gelu_approx_tanh_fwd", "swish_fwd", "sigmoid_fwd", "tanh_fwd", "elu_fwd")
GATES = ("swish_fwd", "swish_fwd", "gelu_approx_tanh_fwd", "sigmoid_fwd")
BINARY = ("add", "add", "mul", "mul", "sub", "max")
BROADCAST = ("channels", "full", "planes")


# The inputs and the results of norms.
NORMS = {
    "layer_norm": (("x", "scale", "bias"), ("y", "mean", "inverse")),
    "rms_norm": (("x", "scale"), ("y", "inverse")),
    "layer_norm backward": (("dy", "x", "scale", "mean", "inverse"), ("dx", "dscale", "dbias")),
    "rms_norm backward": (("dy", "x", "scale", "inverse"), ("dx", "dscale")),
}


class Case(NamedTuple):
    """A graph.

    `sizes` are (batch, M, K, N) of a product, (rows, length, 1, 1) of a norm, and (N, C, H, W) of a chain. A step is a mode of
    `Graph.pointwise` and its second operand: "" for none, one element for each of the "channels" or of the "planes", "full",
    or another "product" of the first factor.
    """

    family: str
    dtype: Any
    sizes: tuple[int, ...]
    steps: tuple[tuple[str, str], ...] = ()
    norm: str = ""
    is_transposed: bool = False  # the second factor is (N, K) in memory, as the weights of a linear layer
    factor: Any = None  # the data type of the second factor, if it is another

    @property
    def text(self) -> str:
        """The case in one line."""
        words = [self.family, self.dtype, "x".join(map(str, self.sizes)), self.norm, self.factor]
        words += [
            "NK" * self.is_transposed,
            *(f"{mode}({operand})" if operand else mode for mode, operand in self.steps),
        ]
        return " ".join(filter(None, words))

    @property
    def is_product(self) -> bool:
        """Whether the graph begins with a matrix product."""
        return "product" in self.family or self.family == "matmul"

    def specs(self) -> dict[str, TensorSpec]:
        """Return the inputs by name. The operand of a step has the step's number in its name."""
        n, c, *rest = self.sizes
        ones, k = (1,) * len(rest), rest[0]
        shape = (n, c, rest[1]) if self.is_product else self.sizes
        of_channels = (1, 1, rest[1]) if self.is_product else (1, c, *ones)
        forms = {
            "a": (n, c, k),
            "planes": (n, c, *ones),
            **dict.fromkeys(("w", "product"), (n, k, rest[1])),
            **dict.fromkeys(("x", "dy", "full"), shape),
            **dict.fromkeys(("scale", "bias", "channels"), of_channels),
            **dict.fromkeys(("mean", "inverse"), (n, 1, *ones)),
        }
        first = NORMS[self.norm][0] if self.norm else ("a", "w") if self.is_product else ("x",)
        names = (*first, *(f"{operand}{number}" for number, (_, operand) in enumerate(self.steps) if operand))
        found = {}
        for name in names:
            form, dtype = name.rstrip("0123456789"), self.dtype
            strides = (packed_strides if self.is_product else channels_last_strides)(forms[form])
            if form in ("w", "product"):
                dtype, strides = self.factor or dtype, (k * rest[1], 1, k) if self.is_transposed else strides
            found[name] = TensorSpec(forms[form], "float32" if form in ("mean", "inverse") else dtype, strides)
        return found


def drawn(seed: int = SEED) -> list[Case]:
    """Return EACH cases of each family, which take turns."""
    draws = {family: random.Random(f"{seed}/{family}") for family in FAMILIES}
    return [
        draw_one(draws[family], DTYPES[number % len(DTYPES)], number)
        for number in range(EACH)
        for family, draw_one in FAMILIES.items()
    ]


def _rows(draw: random.Random) -> int:
    return draw.choice(ROWS) if draw.random() < 0.75 else draw.randint(2, 5000)


def _features(draw: random.Random) -> int:
    """Return a multiple of 8, as most engines need it, or seldom any number."""
    return draw.choice(FEATURES) if draw.random() < 0.6 else draw.choice((8, 8, 8, 1)) * draw.randint(3, 500)


def _product(draw: random.Random, dtype: str, number: int, is_dual: bool = False) -> Case:
    """Return a product with a bias, an activation and a residual, of cast int8 at times; or a transformer's gated product."""
    k, n = draw.choice(GATED) if is_dual and draw.random() < 0.6 else (_features(draw), _features(draw))
    batch, m = 1 if is_dual or draw.random() < 0.8 else draw.choice((8, 12, 32)), _rows(draw)
    while batch * 2.0 * m * k * n > MOST_FLOP:
        m //= 2
    if is_dual:
        steps = (draw.choice(GATES), ""), ("mul", "product")
        return Case("dual product", dtype, (1, m, k, n), steps, is_transposed=draw.random() < 0.5)
    ends = ("add", "channels"), (draw.choice(ACTIVATIONS[:3]), ""), ("add", "full")
    drawn = tuple(end for end, share in zip(ends, (0.8, 0.8, 0.25), strict=True) if draw.random() < share)
    is_transposed, factor = draw.random() < 0.6, None
    if number % 4 == 2:  # engines need columns of multiples of 16 bytes
        is_transposed, factor, k = True, "int8", -(-k // 16) * 16
    return Case("matmul", dtype, (batch, m, k, n), drawn, is_transposed=is_transposed, factor=factor)


def _norm(draw: random.Random, dtype: str, number: int) -> Case:
    """Return a norm of rows, forward with its statistics, or its gradients."""
    sizes = _rows(draw) * draw.choice((1, 8)), _features(draw), 1, 1
    return Case("norm", dtype, sizes, norm=list(NORMS)[number % len(NORMS)])


def _chain(draw: random.Random, dtype: str, _number: int) -> Case:
    """Return 3 to 8 elementwise operations on an image, or on rows."""
    free = draw.randint(1, 16), 8 * draw.randint(1, 64), draw.randint(5, 80), draw.randint(5, 80)
    n, *image = draw.choice(IMAGES) if draw.random() < 0.7 else free
    steps: list[tuple[str, str]] = []
    for _ in range(draw.randint(3, 8)):
        if draw.random() < 0.6 or (steps and not steps[-1][1]):  # no two activations in a row
            steps.append((draw.choice(BINARY), draw.choices(BROADCAST, (8, 5, 1))[0]))
        else:
            steps.append((draw.choice(ACTIVATIONS), ""))
    return Case("chain", dtype, (n, *image), tuple(steps))


FAMILIES: dict[str, Callable[[random.Random, str, int], Case]] = {
    "matmul": _product,
    "dual product": partial(_product, is_dual=True),
    "norm": _norm,
    "chain": _chain,
}


def graph_of(case: Case, **options: Any) -> Graph:
    """Return the graph of a case with planning options. Its outputs are in the order of `program`'s results."""
    g = Graph(**options)
    t = {name: g.tensor(name, spec) for name, spec in case.specs().items()}
    if case.norm:
        mode: Any = case.norm.split()[0]
        if "dy" in t:
            dy, x, scale, mean = t["dy"], t["x"], t["scale"], t.get("mean")
            made = g.normalization_backward(mode, dy, x, scale, mean, t["inverse"], bias=mean is not None)
        else:
            made = g.normalization(mode, t["x"], t["scale"], t.get("bias"), EPSILON)
        for name, node in zip(NORMS[case.norm][1], made, strict=True):
            g.output(name, node, "float32" if name in ("mean", "inverse") else case.dtype)
        return g

    def product(w: Any) -> Any:
        return g.matmul(t["a"], g.pointwise("identity", w, dtype=case.dtype) if case.factor else w)

    y = product(t["w"]) if case.is_product else t["x"]
    for number, (step, operand) in enumerate(case.steps):
        other: Any = t.get(f"{operand}{number}")
        y = g.pointwise(step, y, product(other) if operand == "product" else other)  # type: ignore[arg-type]
    g.output("y", y, case.dtype)
    return g


def program(torch: Any, case: Case) -> Callable[..., tuple[Any, ...]]:
    """Return the function in torch of the tensors of `Case.specs`, in their order. A norm's results have two axes."""
    names, functional = tuple(case.specs()), torch.nn.functional
    if case.norm:
        return partial(_norm_in_torch, torch.ops.aten, case, names)
    functions = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "max": torch.maximum,
        "relu_fwd": functional.relu,
        "sigmoid_fwd": torch.sigmoid,
        "tanh_fwd": torch.tanh,
        "elu_fwd": functional.elu,
        "swish_fwd": functional.silu,
        "gelu_approx_tanh_fwd": partial(functional.gelu, approximate="tanh"),
    }
    has_bias = case.is_product and case.steps[:1] == (("add", "channels"),)

    def product(a: Any, w: Any, bias: Any = None) -> Any:
        w = w.to(a.dtype)
        if case.sizes[0] == 1:
            return functional.linear(a, w[0].mT, None if bias is None else bias.flatten())
        return torch.bmm(a, w) if bias is None else torch.baddbmm(bias, a, w)

    def run(*tensors: Any) -> tuple[Any, ...]:
        t = dict(zip(names, tensors, strict=True))
        y = product(t["a"], t["w"], t["channels0"] if has_bias else None) if case.is_product else t["x"]
        for number, (step, operand) in enumerate(case.steps):
            if operand == "product":
                y = functions[step](y, product(t["a"], t[f"product{number}"]))
            elif number or not has_bias:
                y = functions[step](y, t[f"{operand}{number}"]) if operand else functions[step](y)
        return (y,)

    return run


def _norm_in_torch(aten: Any, case: Case, names: Sequence[str], *tensors: Any) -> Any:
    """Run the operations that torch's autograd records: they have the statistics."""
    t = {name: tensor.flatten(1) for name, tensor in zip(names, tensors, strict=True)}
    x, row, scale = t["x"], [case.sizes[1]], t["scale"].flatten()
    if case.norm == "layer_norm":
        return aten.native_layer_norm(x, row, scale, t["bias"].flatten(), EPSILON)
    if case.norm == "rms_norm":
        return aten._fused_rms_norm(x, row, scale, EPSILON)
    if case.norm == "rms_norm backward":
        return aten._fused_rms_norm_backward(t["dy"], x, row, t["inverse"], scale, [True, True])
    # of a bias, only the data type matters
    return aten.native_layer_norm_backward(t["dy"], x, row, t["mean"], t["inverse"], scale, scale, [True] * 3)


def inputs(torch: Any, case: Case, seed: int = 0, device: str = "cuda") -> dict[str, Any]:
    """Return random tensors for `Case.specs`. Their variance and that of products is 1. Statistics are those of x."""
    generator, found = torch.Generator(device).manual_seed(seed), dict[str, Any]()
    for name, spec in case.specs().items():
        made = empty(torch, spec, device)
        if spec.dtype == "int8":
            found[name] = made.random_(-4, 5, generator=generator)
        else:
            most = 3**0.5 * (case.sizes[2] ** -0.5 if name == "a" else 1)
            found[name] = made.uniform_(-most, most, generator=generator)
    if "inverse" in found:
        x = found["x"].float()
        mean = x.mean(1, keepdim=True) if "mean" in found else x.new_zeros(1)
        found["inverse"].copy_(((x - mean).square().mean(1, keepdim=True) + EPSILON).rsqrt())
        if "mean" in found:
            found["mean"].copy_(mean)
    return found
