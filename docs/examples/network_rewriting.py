"""Which nodes of a traced torch.nn.Module become one convolution: what folds into it and what is fused with it.

Rewriter turns a graph of torch.fx into one whose convolutions are Fused modules. Nothing here needs a GPU or cuDNN: the
rewritten module computes the same with torch.
"""

import copy
import operator
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
IN_PLACE = {"setitem", *(f"i{name.rstrip('_')}" for name in dir(operator) if hasattr(operator, f"i{name.rstrip('_')}"))}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


# Activations: their names in torch, and as nodes of a cudnnpy.Graph


def gate(graph, x):
    """clip(x + 3, 0, 6) / 6."""
    number = partial(graph.number, rank=len(x.shape))
    clipped = graph.pointwise("relu_fwd", graph.pointwise("add", x, number(3.0)), how={"relu_upper_clip": 6.0})
    return graph.pointwise("mul", clipped, number(1 / 6))


class Activation(NamedTuple):
    """How torch and a graph compute an activation; `number` is its parameter."""

    by_torch: Callable[..., Any]
    node: Callable[..., Any]
    convolution: str | None = None  # the name that cudnnpy.Convolution has for it


def mode(name, option=None, value=None):
    """A pointwise mode with an option whose value is the activation's parameter, or fixed."""

    def node(graph, x, number):
        return graph.pointwise(name, x, how={option: number if value is None else value} if option else None)

    return node


ACTIVATIONS = {
    "relu": Activation(lambda x, _: F.relu(x), mode("relu_fwd"), "relu"),
    "relu6": Activation(lambda x, _: F.relu6(x), mode("relu_fwd", "relu_upper_clip", 6.0)),
    "relu6_min": Activation(
        lambda x, _: F.relu6(x),
        lambda graph, x, _: graph.pointwise("min", graph.pointwise("relu_fwd", x), graph.number(6.0, len(x.shape))),
    ),
    "leaky_relu": Activation(F.leaky_relu, mode("relu_fwd", "relu_lower_clip_slope")),
    "silu": Activation(lambda x, _: F.silu(x), mode("swish_fwd", "swish_beta", 1.0), "swish"),
    "sigmoid": Activation(lambda x, _: torch.sigmoid(x), mode("sigmoid_fwd"), "sigmoid"),
    "tanh": Activation(lambda x, _: torch.tanh(x), mode("tanh_fwd"), "tanh"),
    "elu": Activation(F.elu, mode("elu_fwd", "elu_alpha")),
    "gelu": Activation(lambda x, _: F.gelu(x), mode("gelu_fwd")),
    "gelu_tanh": Activation(lambda x, _: F.gelu(x, approximate="tanh"), mode("gelu_approx_tanh_fwd")),
    "hardsigmoid": Activation(lambda x, _: F.hardsigmoid(x), lambda graph, x, _: gate(graph, x)),
    "hardswish": Activation(lambda x, _: F.hardswish(x), lambda graph, x, _: graph.pointwise("mul", x, gate(graph, x))),
}
MODULES = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ELU: "elu",
    nn.GELU: "gelu",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
}
FUNCTIONS = {
    **{getattr(F, name): name for name in MODULES.values()},
    F.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
}
METHODS = {name: name.rstrip("_") for name in ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_")}
PARAMETERS = {"elu": ("alpha", 1.0), "leaky_relu": ("negative_slope", 0.01)}


def activation_of(node, modules):
    """The activation that a node is, as (name, number), or None."""
    if node.op == "call_module":
        module = modules[node.target]
        name, options = MODULES.get(type(module)), vars(module)
    else:
        name = {"call_function": FUNCTIONS, "call_method": METHODS}.get(node.op, {}).get(node.target)
        options = node.kwargs
        if not {"inplace", "alpha", "negative_slope", "approximate"}.issuperset(options):
            return None
    if name is None or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return None
    if options.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    option, default = PARAMETERS.get(name, ("", 0.0))
    return name, float(options.get(option, default))


# Rewriting: which nodes become one layer


class Fused(nn.Module):
    """A convolution or a linear layer with what is fused into it; called, it is computed by torch.

    steps   what follows: activations as (name, number); at most once each ("add", 0.0), the addition of `other`; ("scale",
            0.0), a factor for each channel; and ("turn", 0.0), after which a linear layer's channels are axis 1, not the last
    parts   the names of the modules and functions that it stands for
    shapes  of "x", "other" and "y"
    """

    def __init__(self, convolution, steps, parts, scale, shapes):
        super().__init__()
        self.convolution, self.steps, self.parts, self.shapes = convolution, tuple(steps), tuple(parts), shapes
        self.register_buffer("scale", scale)

    @property
    def is_linear(self):
        return isinstance(self.convolution, nn.Linear)

    @property
    def given(self):
        """The names of its inputs."""
        return [name for name in ("x", "other") if name in self.shapes]

    def strides(self, name):
        """How "x", "other" or "y" lies for the plans: channels fastest, wherever their axis is."""
        shape, names = self.shapes[name], [step for step, _ in self.steps]
        turned = "turn" in names and (name == "y" or (name == "other" and names.index("turn") < names.index("add")))
        return packed_strides(shape) if self.is_linear and not turned else last_strides(shape)

    def forward(self, x, other=None):
        y = self.convolution(x)
        for name, number in self.steps:
            if name == "add":
                y = y + other
            elif name == "turn":
                y = y.movedim(-1, 1)
            elif name == "scale":
                y = y * self.scale.view(-1, *(1 for _ in y.shape[2:])) if not self._last(name) else y * self.scale
            else:
                y = ACTIVATIONS[name].by_torch(y, number)
        return y

    def _last(self, name):
        """Whether the channels are the last axis at the first step of a name."""
        names = [step for step, _ in self.steps]
        return self.is_linear and "turn" not in names[: names.index(name)]


def packed_strides(shape):
    """Strides in C order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def last_strides(shape):
    """Strides channels last, for any number of spatial axes."""
    return (prod(shape[1:]), 1, *(prod(shape[axis + 1 :]) * shape[1] for axis in range(2, len(shape))))


def has_hooks(module):
    """Whether something runs with a module's forward, as weight_norm's hook does, which computes the weight."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def works_in_place(node, modules):
    """Whether a node may write to its arguments."""
    if node.op == "call_module":
        module = modules[node.target]
        ours = type(module).__module__.startswith(("torch.nn", __name__)) and not has_hooks(module)
        return getattr(module, "inplace", False) or not ours
    if node.op == "call_method":
        return node.target.endswith("_")
    if node.op != "call_function":
        return False
    name, home = node.target.__name__, getattr(node.target, "__module__", None) or "torch"
    mutating = name.endswith("_") or (home == "_operator" and name in IN_PLACE)
    asked = True in node.args or node.kwargs.get("inplace") or "out" in node.kwargs
    return bool(
        mutating or asked or not home.startswith(("torch", "_operator", "math", "builtins")) or name == "setattr"
    )


def is_identity(node, modules):
    """Whether a node returns its first argument, as dropout does in inference."""
    if node.op == "call_module":
        module = modules[node.target]
        idle = isinstance(module, nn.Identity) or (isinstance(module, DROPOUTS) and not module.training)
        return idle and not has_hooks(module)
    if node.op != "call_function":
        return False
    if getattr(node.target, "__name__", "") == "stochastic_depth":  # torchvision's: x, p, mode, training=True
        return not (node.args[3] if len(node.args) > 3 else node.kwargs.get("training", True))
    return node.target is F.dropout and not (node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True))


class Rewriter:
    """Replaces convolutions of a traced module, with what can be fused into them, by Fused modules.

    `notes` has the reason why a node was left to torch, where one was looked for.
    """

    def __init__(self, module):
        self.module, self.graph, self.modules = module, module.graph, dict(module.named_modules())
        self.notes: dict[fx.Node, str] = {}

    def run(self):
        for node in list(self.graph.nodes):
            if is_identity(node, self.modules):
                self._replace([node], node.args[0])
        count = 0
        for node in list(self.graph.nodes):
            if node.op == "call_module" and isinstance(self.modules[node.target], (*CONVOLUTIONS, nn.Linear)):
                why = self._unfit(node)
                if why:
                    self.notes[node] = why
                else:
                    self._fuse(node, f"fused_{count}")
                    count += 1
        for node in self.graph.nodes:
            if node.op == "call_module" and isinstance(self.modules.get(node.target), NORMS):
                self.notes.setdefault(node, "no convolution before it that only it uses")
        self.module.recompile()

    def _unfit(self, node):
        layer, spec = self.modules[node.target], node.meta.get("spec")
        if type(layer) not in (*CONVOLUTIONS, nn.Linear):
            return f"{type(layer).__name__} is not one of torch's own layers"
        if has_hooks(layer):
            return "it has hooks"
        if len(node.args) != 1 or node.kwargs:
            return "it is called with more than x"
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            return f"padding_mode={layer.padding_mode!r}"
        of_x = node.args[0].meta.get("spec")
        if not (spec and of_x) or {spec[1], of_x[1], layer.weight.dtype} != {spec[1]} or spec[1] not in DTYPES:
            return "x, the weight and the result are not all of one of float16, bfloat16 and float32"
        rank = layer.weight.dim()
        if (len(of_x[0]) < 2 if isinstance(layer, nn.Linear) else len(of_x[0]) != rank) or 0 in (*of_x[0], *spec[0]):
            return f"x has shape {of_x[0]}"
        return None

    def _fuse(self, node, name):
        layer = copy.deepcopy(self.modules[node.target]).eval().requires_grad_(False)
        chain, steps, parts, other, scale = [node], [], [node.target], None, None
        while len(chain[-1].users) == 1:
            last, (user,) = chain[-1], chain[-1].users
            if self._writes_between(chain, user) or (user.op == "call_module" and has_hooks(self.modules[user.target])):
                break
            if not steps and (norm := self._norm(user)) is not None:
                why = unfoldable(layer, norm)
                if why:
                    self.notes[user] = why
                    break
                layer = folded(layer, norm)
            elif (step := activation_of(user, self.modules)) is not None:
                steps.append(step)
            elif other is None and (addend := self._added(user, last)) is not None:
                other = addend
                steps.append(("add", 0.0))
            elif isinstance(layer, nn.Linear) and ("turn", 0.0) not in steps and is_turn(user):
                steps.append(("turn", 0.0))
            elif scale is None and (factor := self._scaled(user, last, layer, steps)) is not None:
                scale = factor
                steps.append(("scale", 0.0))
            else:
                break
            chain.append(user)
            parts.append(user.target if user.op == "call_module" else user.name)
        last = chain[-1]
        shapes = {"x": node.args[0].meta["spec"][0], "y": last.meta["spec"][0]}
        if other is not None:
            shapes["other"] = other.meta["spec"][0]
        self.module.add_submodule(name, Fused(layer, steps, parts, scale, shapes))
        self.modules[name] = self.module.get_submodule(name)
        with self.graph.inserting_before(last):
            fused = self.graph.call_module(name, (node.args[0],) if other is None else (node.args[0], other))
        fused.meta.update(spec=last.meta["spec"], shares=[])
        self._replace(chain, fused)

    def _replace(self, chain, new):
        """Nodes of which each uses only the one before, by a single one."""
        chain[-1].replace_all_uses_with(new)
        chain[-1].meta["now"] = new
        for one in reversed(chain):
            self.graph.erase_node(one)

    def _norm(self, node):
        module = self.modules.get(node.target) if node.op == "call_module" else None
        return module if type(module) in NORMS else None

    def _added(self, node, last):
        """The other tensor of an addition, if it is a plain one: of the same shape and dtype, and not counted twice."""
        functions = {operator.add, operator.iadd, torch.add}
        if not (node.target in functions if node.op == "call_function" else node.target in ("add", "add_")):
            return None
        if node.op not in ("call_function", "call_method") or len(node.args) != 2 or set(node.kwargs) - {"alpha"}:
            return None
        if node.kwargs.get("alpha", 1) != 1 or not all(isinstance(given, fx.Node) for given in node.args):
            return None
        a, b = node.args
        if a is b or (a is not last and (node.target is operator.iadd or node.target == "add_")):
            return None  # another tensor, which others may read, is written to
        other = b if a is last else a
        return other if other.meta.get("spec") == last.meta["spec"] == node.meta.get("spec") else None

    def _scaled(self, node, last, layer, steps):
        """The factor of each channel by which a node multiplies, a constant of the module, or None."""
        functions = {operator.mul, torch.mul}
        if not (
            node.target in functions if node.op == "call_function" else (node.op, node.target) == ("call_method", "mul")
        ):
            return None
        if len(node.args) != 2 or node.kwargs or last not in node.args:
            return None
        factor = node.args[0] if node.args[1] is last else node.args[1]
        if not isinstance(factor, fx.Node) or factor.op != "get_attr" or not factor.meta.get("spec"):
            return None
        (shape, dtype), (result, result_dtype) = last.meta["spec"], node.meta["spec"] or ((), None)
        axis = len(shape) - 1 if isinstance(layer, nn.Linear) and ("turn", 0.0) not in steps else 1
        given = (*(1 for _ in range(len(shape) - len(factor.meta["spec"][0]))), *factor.meta["spec"][0])
        wanted = tuple(size if at == axis else 1 for at, size in enumerate(shape))
        if given != wanted or (result, result_dtype) != (shape, dtype) or factor.meta["spec"][1] != dtype:
            return None
        value = operator.attrgetter(factor.target)(self.module)
        return value.detach().flatten().clone()

    def _writes_between(self, chain, user):
        """Whether what reads x later than the convolution did would read something else."""
        node = chain[0].next
        while node is not user:
            if node not in chain and works_in_place(node, self.modules):
                return True
            node = node.next
        return False


def is_turn(node):
    """Whether a node permutes the last axis to axis 1."""
    if node.op not in ("call_function", "call_method") or node.target not in (torch.permute, "permute") or node.kwargs:
        return False
    dims = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    rank = len(dims)
    return rank > 2 and tuple(dims) == (0, rank - 1, *range(1, rank - 1))


def unfoldable(convolution, norm):
    """Why a batch normalization cannot be folded into a convolution, or None."""
    if isinstance(convolution, nn.Linear):
        return "a linear layer is before it"
    if norm.training or norm.running_mean is None:
        return "it normalizes by the batch (training mode, or no running statistics)"
    if isinstance(convolution, TRANSPOSED) and convolution.groups > 1:
        return "the convolution before it is transposed and has groups"
    return None


def folded(convolution, norm):
    """The convolution with the normalization in its weights, computed in float32."""
    dtype = convolution.weight.dtype
    wide = torch.promote_types(dtype, torch.float32)
    norm = copy.deepcopy(norm).to(wide)
    return fuse_conv_bn_eval(convolution.to(wide), norm, isinstance(convolution, TRANSPOSED)).to(dtype)
