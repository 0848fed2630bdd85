"""The errors for names and keywords of cudnn-frontend's pygraph and tensors that Graph and Node lack: what to type instead."""

from __future__ import annotations

from cudnnpy._checks.public_dir import no_attribute
from cudnnpy._checks.suggestions import near, our_option

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
    "conv_dgrad": "type g.convolution_backward_data(dy, w, shape, padding=, stride=, dilation=)",
    "conv_wgrad": "type g.convolution_backward_filter(dy, x, shape, padding=, stride=, dilation=)",
    **{name: f'type g.pointwise("{name}_fwd", x)' for name in _FORWARD},
    **{f"{name}_backward": f'type g.pointwise("{name}_bwd", dy, x)' for name in _FORWARD},
    **{name: f'type g.pointwise("{name}", x)' for name in (*_UNARY, "logical_not")},
    "gen_index": 'type g.pointwise("gen_index", x, axis=axis)',
    **{name: f'type g.pointwise("{name}", a, b)' for name in (*_BINARY[1:], *_COMPARISONS)},
    "binary_select": 'type g.pointwise("binary_select", a, b, mask)',
    "leaky_relu": 'type g.pointwise("relu_fwd", x, how={"relu_lower_clip_slope": slope})',
    "bias": 'type g.pointwise("add", x, bias)',
    "scale": 'type g.pointwise("mul", x, scale)',
    **{name: _NORMALIZATION.format(mode) for name, mode in _MODES.items()},
    **{mode: _NORMALIZATION.format(mode) for mode in _MODES.values()},
    **{f"{name}_backward": _GRADIENT.format(mode) for name, mode in _MODES.items()},
    "batchnorm_inference": "type cudnnpy.BatchNormalization(epsilon=).forward_inference(x, scale, bias, mean=, variance=)",
    "genstats": 'type g.add("gen_stats", x=x)',
    "concatenate": 'type g.add("concat", inputs=[a, b], axis=axis)',
    "sdpa": 'type g.add("sdpa_fwd", q=q, k=k, v=v, scale=scale, results=("stats",))',
    "sdpa_backward": 'type g.add("sdpa_bwd", do=do, q=q, k=k, v=v, o=o, stats=stats, scale=scale)',
    "rope": 'type g.add("rope_fwd", x=x, freqs=freqs)',
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
    "sdpa_fp8": 'type g.add("sdpa_fwd", q=, k=, v=, descale_q=, ...)',
    # of its tensors
    **dict.fromkeys(("set_output", "set_data_type", "set_dim", "set_stride", "set_name"), _OUTPUT),
    **dict.fromkeys(("get_dim", "dim"), "type node.shape"),
    **dict.fromkeys(("dtype", "stride", "strides"), "type node.spec"),
}

# Keywords of pygraph, its tensors and operations -> our arguments, if the method has them.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("image", "input", "input0"), ("x", "a")),
    **dict.fromkeys(("weight", "filter"), ("w", "scale")),
    **dict.fromkeys(("input1", "other", "B"), ("b",)),
    **dict.fromkeys(("loss", "grad"), ("dy", "x")),
    "A": ("a",),
    "mask": ("t",),
    "mode": ("op",),
    **dict.fromkeys(("axis", "dim", "dims"), ("axes",)),
    **dict.fromkeys(("intermediate_data_type", "compute_data_type"), ("compute_dtype",)),
    "data_type": ("dtype",),
    "norm_forward_phase": ("training",),
    **dict.fromkeys(("in_running_mean", "in_running_var"), ("running",)),
    "momentum": ("average_factor",),
    "inv_variance": ("inverse",),
    "attn_scale": ("scale",),
    **dict.fromkeys(("is_inference", "generate_stats"), ("stats",)),
    "tensor": ("node",),
}
_SPEC = "Type g.tensor(name, cudnnpy.TensorSpec(shape, dtype, strides)), or g.tensor(name, array)"
_PADDING = "Type padding=((before, after), ...), with a pair for each axis"
_KEYWORDS: dict[str, str] = {
    **dict.fromkeys(("dim", "shape", "stride", "strides", "data_type", "dtype", "array"), _SPEC),
    **dict.fromkeys(("pre_padding", "post_padding"), _PADDING),
    "io_data_type": "Tensors have their data types, and an output its own: g.output(name, node, dtype=)",
    **dict.fromkeys(("intermediate_data_type", "compute_data_type"), "Type cudnnpy.Graph(compute_dtype=)"),
    "is_virtual": "A result is virtual unless it is an output: g.output(name, node)",
    "is_pass_by_value": "Type g.number(value, rank)",
    "uid": "An operand is known by its name",
    "name": "Inputs and outputs have names: g.tensor(name, array), g.output(name, node)",
    "handle": "Each thread has a handle for each device",
    **dict.fromkeys(
        ("negative_slope", "lower_clip", "upper_clip", "swish_beta", "elu_alpha", "softplus_beta"),
        'Type how={"relu_lower_clip_slope": slope}, or another parameter of the mode',
    ),
}


def suggest_keyword(_graph: object, unknown: str, known: tuple[str, ...]) -> str:
    """Return the end of the error for an unknown keyword, such as cudnn-frontend's."""
    ours = [name for name in (*_ARGUMENTS.get(unknown, ()), our_option(unknown)) if name in known]
    if not ours and unknown in _KEYWORDS:
        return f". {_KEYWORDS[unknown]}"
    return "".join(f". Did you mean {name}=?" for name in (ours or near(unknown, known))[:1])


def missing(owner: object, name: str) -> str:
    """Return the message for an attribute that an object lacks, with what to type in place of cudnn-frontend's."""
    known = _SENTENCES.get(name)
    return f"{type(owner).__name__!r} object has no attribute {name!r}: {known}" if known else no_attribute(owner, name)
