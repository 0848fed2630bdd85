"""The error for a name that Graph or Node lacks and cudnn-frontend's pygraph or tensor has: what to type instead."""

from __future__ import annotations

_PLAN = "type plan = g.plan(), or g.run(...), which plans at the first call"
_OUTPUT = 'type g.output("y", node, dtype=, strides=)'
_NORMALIZATION = 'type g.normalization("{}", x, scale, bias, epsilon, training=)'
_GRADIENT = 'type g.normalization_backward("{}", dy, x, scale, mean, inverse)'
_MODES = {"batchnorm": "batch_norm", "layernorm": "layer_norm", "instancenorm": "instance_norm", "rmsnorm": "rms_norm"}
_FORWARD = ("relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish")
_UNARY = (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "neg",
    "erf",
    "sin",
    "cos",
    "tan",
    "ceil",
    "floor",
    "reciprocal",
    "identity",
)
_BINARY = ("add", "add_square", "sub", "mul", "div", "max", "min", "pow", "mod")
_COMPARISONS = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or")

_SENTENCES: dict[str, str] = {
    "conv_fprop": "type g.convolution(x, w, padding=, stride=, dilation=)",
    "conv_dgrad": "type cudnnpy.Convolution(padding=).backward_data(dy, w, x_shape), without a graph",
    "conv_wgrad": "type cudnnpy.Convolution(padding=).backward_filter(dy, x, w_shape), without a graph",
    **{name: f'type g.pointwise("{name}_fwd", x)' for name in _FORWARD},
    **{f"{name}_backward": f'type g.pointwise("{name}_bwd", dy, x)' for name in _FORWARD},
    **{name: f'type g.pointwise("{name}", x)' for name in (*_UNARY, "logical_not", "gen_index")},
    **{name: f'type g.pointwise("{name}", a, b)' for name in (*_BINARY, *_COMPARISONS)},
    "binary_select": 'type g.pointwise("binary_select", a, b, mask)',
    "leaky_relu": 'type g.pointwise("relu_fwd", x, how={"relu_lower_clip_slope": slope})',
    "bias": 'type g.pointwise("add", x, bias)',
    "scale": 'type g.pointwise("mul", x, scale)',
    **{name: _NORMALIZATION.format(mode) for name, mode in _MODES.items()},
    **{f"{name}_backward": _GRADIENT.format(mode) for name, mode in _MODES.items()},
    "batchnorm_inference": "type cudnnpy.BatchNormalization(epsilon=).forward_inference(x, scale, bias, mean, variance)",
    "genstats": 'type g.reduction("add", x, axes), and the same of x times x',
    "tensor_like": "type g.tensor(name, array)",
    "tensor_scalar": "type g.number(value, rank)",
    **dict.fromkeys(
        ("validate", "build_operation_graph"), "nothing is to be called: each operation checks its tensors"
    ),
    **dict.fromkeys(
        ("build", "build_plans", "check_support", "create_execution_plans", "create_execution_plan"), _PLAN
    ),
    "execute": "type g.run(x=, w=), or g.plan().execute(*addresses, workspace, stream)",
    "get_workspace_size": "type g.plan().workspace_size",
    "get_execution_plan_count": "type len(g.plan().candidates)",
    "get_plan_name_at_index": "type g.plan().name, or cudnnpy.candidates_table(g.plan().candidates)",
    "deselect_workspace_greater_than": 'type cudnnpy.Graph(prefer="limited_workspace", workspace_limit=bytes)',
    "deselect_numeric_notes": "type cudnnpy.Graph(deterministic=True, tf32=False)",
    "serialize": "type g.plan().to_json()",
    "deserialize": "type cudnnpy.Plan.from_json(text)",
    **dict.fromkeys(("sdpa", "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward"), "cudnnpy has no attention"),
    # of its tensors
    **dict.fromkeys(("set_output", "set_data_type", "set_dim", "set_stride", "set_name"), _OUTPUT),
    "get_dim": "type node.shape",
}


def missing(kind: type, name: str) -> str:
    """Return the message for an attribute that an object of a class lacks, with what to type in place of cudnn-frontend's."""
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    return f"{text}: {_SENTENCES[name]}" if name in _SENTENCES else text
