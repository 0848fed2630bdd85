"""Options, values and calls of another library: each error has the text to type here, and that is accepted."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
from messages import says

import cudnnpy
import cudnnpy.availability
import cudnnpy.torch
from cudnnpy import descriptors, names, raw, reference, store
from cudnnpy._checks.other_names import advice, advice_on_values
from cudnnpy._checks.suggestions import suggest_value

NAMES = [name for name in reference.__all__ if name[0].isupper()]
OPTIONS, SENTENCES = advice("options"), advice("option sentences")
VALUES = [
    (value, accepted, sentence) for accepted, all_ in advice_on_values().items() for value, sentence in all_.items()
]
REQUIRED = {"Activation": ("relu",)}


def made(module: Any, name: str) -> Any:
    return getattr(module, name)(*REQUIRED.get(name, ()))


def refusal(call: Any, *given: Any, **options: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*given, **options)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize("module", [cudnnpy, reference])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_of_an_object_names_its_methods(module: Any, name: str) -> None:
    operation = made(module, name)
    text = refusal(operation, 1, 2, bias=3)
    (listed,) = re.findall(
        rf"^a call of {name} must name a method \(([\w, ]+)\); got a call of the object itself$", text
    )
    methods = listed.split(", ")
    assert methods[0].startswith("forward")
    assert set(methods) == {one for one in dir(operation) if one.startswith(("forward", "backward"))}


@pytest.mark.parametrize("module", [cudnnpy, reference])
@pytest.mark.parametrize("name", ["Convolution", "ConvolutionTranspose", "FusedConvolution"])
def test_numbers_of_channels_are_the_shape_of_w(module: Any, name: str) -> None:
    text = refusal(getattr(module, name), 3, 16, 3)
    assert text.startswith(f"the arguments of {name} must be (*, padding=0, stride=1, ")
    assert text.endswith(
        "; got (3, 16, 3): too many positional arguments. "
        "The numbers of channels and the size of the filter are the shape of w, as in forward(x, w)"
    )


def test_too_many_positional_options() -> None:
    text = refusal(cudnnpy.Pooling, "max", 2, 2)
    assert text == (
        "the arguments of Pooling must be (mode='max', window=2, *, padding=0, stride=None, layout='NCHW'); got ('max', 2, 2): "
        "too many positional arguments. The arguments after * have names, as padding="
    )
    text = refusal(reference.Convolution, np.ones((1000, 1000)), np.ones(3))
    assert "; got (ndarray, ndarray): too many positional arguments. The numbers of channels" in text


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_another_library_is_ours(option: str) -> None:
    """Of each operation that has ours, the error names it; ours is accepted."""
    ours, found = OPTIONS[option], 0
    for name in NAMES:
        kind = getattr(cudnnpy, name)
        if ours in inspect.signature(kind).parameters:
            found += 1
            unit = ", in bytes" if ours == "workspace_limit" else ""
            assert refusal(kind, **{option: 1}).endswith(f"; got {option!r}. Did you mean {ours}={unit}?")
    assert found


@pytest.mark.parametrize("option", SENTENCES)
def test_an_option_without_a_counterpart_has_a_sentence(option: str) -> None:
    texts = [refusal(getattr(cudnnpy, name), **{option: 1}) for name in NAMES if option not in parameters(name)]
    assert any(text.endswith(f"; got {option!r}. {SENTENCES[option]}") for text in texts)


def parameters(name: str) -> set[str]:
    return set(inspect.signature(getattr(cudnnpy, name)).parameters)


def test_a_misspelled_option() -> None:
    for option, expected in {
        "lhs_dilation": "It is the stride of cudnnpy.ConvolutionTranspose",
        "output_padding": "It is an option of cudnnpy.ConvolutionTranspose",
        "precision": "Did you mean tf32=?",
    }.items():
        assert refusal(cudnnpy.Convolution, **{option: 1}).endswith(f"; got {option!r}. {expected}")
    assert refusal(reference.Convolution, paddng=1).endswith("; got 'paddng'. Did you mean padding=?")
    assert refusal(reference.Convolution, zzz=1).endswith("; got 'zzz'")


def forward(module: Any, **named: Any) -> None:
    """Call forward, or plan it where there is no GPU for arrays."""
    conv, shapes = module.Convolution(), ((1, 3, 8, 8), (4, 3, 3, 3))
    if module is reference:
        conv.forward(*(np.ones(shape, np.float32) for shape in shapes), **named)
    conv.plan("forward", *map(cudnnpy.TensorSpec, shapes), device=0, **named)


@pytest.mark.parametrize("module", [cudnnpy, reference])
def test_an_option_or_another_name_in_a_call_is_told_where_it_belongs(module: Any) -> None:
    conv = module.Convolution()
    for name, end in (
        ("stride", "It is an option of the operation: Convolution(stride=...)"),
        ("subsample", "It is an option of the operation: Convolution(stride=...)"),
        ("activaton", "Did you mean 'activation'?"),
    ):
        expected = (
            "an argument of Convolution.forward must be one of x, w, bias, activation, out, alpha, beta, stream; "
            f"got {name!r}. {end}"
        )
        assert refusal(conv.forward, 1, 2, **{name: 2}) == expected
    assert refusal(conv.forward, x=1, zzz=2).endswith("; got 'zzz'")
    momentum = refusal(module.BatchNormalization().forward_training, 1, 2, 3, momentum=0.1)
    assert momentum.endswith(f". {SENTENCES['momentum']}")
    with pytest.raises(
        TypeError, match=r"Convolution.forward must be \(x, w, .* got \(1\): missing a required argument: 'w'"
    ):
        conv.forward(1)


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        (lambda n: n.Convolution(mode="cross"), "Did you mean 'cross_correlation'?"),
        (lambda n: n.Convolution(mode="conv"), "Did you mean 'convolution'?"),
        (lambda n: n.Convolution(layout="nhwc"), "Did you mean 'NHWC'?"),
        (lambda n: n.Activation("gelu"), "cudnnpy.Graph().pointwise('gelu_fwd', x)"),
        (lambda n: n.Activation("leaky_relu"), "how={'relu_lower_clip_slope': slope})"),
        (lambda n: forward(n, activation="gelu"), "cudnnpy.Graph().pointwise('gelu_fwd', x)"),
        (lambda n: forward(n, activation="leaky_relu"), "how={'relu_lower_clip_slope': slope})"),
        (lambda n: n.Pooling("average"), "Did you mean 'average_include_padding' or 'average_exclude_padding'?"),
        (lambda n: n.Pooling("avg"), "Did you mean 'average_include_padding' or 'average_exclude_padding'?"),
        (lambda n: n.BatchNormalization("per-activation"), "Did you mean 'per_activation'?"),
        (lambda n: n.Convolution(prefer="fast"), "Did you mean 'fastest'?"),
        (lambda n: n.Convolution(prefer="time_once"), 'Theano\'s time_once is prefer="autotune", policy="once"'),
        (lambda n: n.Convolution(algorithm="time_once"), 'Theano\'s time_once is prefer="autotune", policy="once"'),
        (lambda n: n.Convolution(algorithm="guess_on_shape_change"), 'guess_on_shape_change is prefer="fastest"'),
        (lambda n: n.Convolution(algorithm="winogard"), "Did you mean 'winograd'?"),
        (lambda n: n.Convolution(compute_dtype="as_input"), 'and for float16 arrays compute_dtype="float16"'),
        (lambda n: n.Convolution(layout="channels_last"), "channels last in memory need no option"),
        (lambda n: n.Activation("silu"), "Did you mean 'swish'?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("module", [cudnnpy, reference])
def test_a_value_of_another_library(module: Any, call: Any, ending: str) -> None:
    assert refusal(lambda: call(module)).endswith(ending)


def test_the_options_in_the_sentences_are_accepted() -> None:
    found = 0
    for _, _, sentence in VALUES:
        for options in re.findall(r"(?:prefer|compute_dtype)=[^;,]+(?:, policy=\S+)?", sentence):
            eval(f"reference.Convolution({options.rstrip(',')})", {"reference": reference})
            found += 1
    assert found >= 6


def test_modes_of_a_graph_are_suggested_by_their_beginning() -> None:
    g = cudnnpy.Graph()
    x = g.tensor("x", cudnnpy.TensorSpec((1, 2, 3, 4)))
    assert refusal(g.pointwise, "relu", x).endswith("; got 'relu'. Did you mean 'relu_fwd' or 'relu_bwd'?")
    assert refusal(g.pointwise, "silu", x).endswith("; got 'silu'. Did you mean 'swish_fwd'?")
    assert refusal(g.reduction, "sum", x, (0,)).endswith("; got 'sum'. Did you mean 'add'?")
    assert refusal(g.reduction, "mean", x, (0,)).endswith("; got 'mean'. Did you mean 'avg'?")
    assert refusal(g.resample, "max", x, 2).endswith("; got 'max'. Did you mean 'maxpool'?")


@pytest.mark.parametrize("value", ["", "x", "\0", "a" * 100_000])
def test_nothing_is_suggested_for_what_resembles_nothing(value: str) -> None:
    assert suggest_value(value, ("fastest", "autotune")) == ""


def library(package: str, dtype: str = "float32", **attributes: Any) -> Any:
    return type("Array", (), {"__module__": package, "dtype": dtype, **attributes})()


def test_an_attribute_that_an_operation_lacks_names_its_methods() -> None:
    for package in (cudnnpy, reference):
        conv = package.Convolution(padding=1)
        for name in ("backward", "backward_weight", "apply"):
            with pytest.raises(AttributeError) as caught:
                getattr(conv, name)
            public = ", ".join(one for one in dir(conv) if not one.startswith("_"))
            assert str(caught.value) == f"'Convolution' object has no attribute {name!r}. It has {public}"
        with pytest.raises(AttributeError, match=r"It has backward, epsilon, forward_inference, forward_training, .*"):
            package.BatchNormalization().forward
        with pytest.raises(AttributeError, match=r"has no attribute '_private'$"):
            conv._private
        assert not hasattr(conv, "backward")
    for name in ("workspace_size", "get_workspace"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}': type plan\("):
            getattr(cudnnpy.Convolution(), name)


def test_a_limit_as_text_is_told_its_bytes() -> None:
    for text, count in (("64MiB", 1 << 26), ("1 GB", 10**9)):
        with pytest.raises(
            TypeError, match=rf"workspace_limit must be a number of bytes, .*; got '{text}', which is {count}$"
        ):
            cudnnpy.Convolution(workspace_limit=text)
    with pytest.raises(TypeError, match=r"got 'much'$"):
        cudnnpy.Convolution(workspace_limit="much")


SPEC, CONV = cudnnpy.TensorSpec((8, 64, 28, 28)), cudnnpy.Convolution()
PLAN = "Convolution.plan must be (operation, first, second, shape=None, *, bias=None, ...); got"
REFUSED: list[tuple[Any, str]] = [
    (lambda: CONV.plan(SPEC, SPEC), f"{PLAN} (TensorSpec, TensorSpec): missing a required argument: 'second'"),
    (lambda: CONV.plan("forward", SPEC, SPEC, None, 1), f"{PLAN} ('forward', ..., 1): too many ..., as bias="),
    (lambda: cudnnpy.torch.enable("autotune"), "enable must be (*, prefer=None, ...; got ('autotune'): ..., as prefer="),
    (lambda: cudnnpy.torch.enable(benchmark=True), "enable must be ...; got 'benchmark'. Did you mean prefer=?"),
    (lambda: descriptors.PoolingDescriptor("max"), "PoolingDescriptor must be (mode, window, *, ...; got ('max'): missing"),
    (lambda: descriptors.RNNDescriptor(1), "RNNDescriptor must be (); got (1): too many positional arguments"),
    (lambda: cudnnpy.TensorSpec((1,), layout="NHWC"), "TensorSpec must be one of ...; got 'layout'. The axes are ..."),
    (lambda: raw.call(), "call must be (name, *arguments, **named); got (): missing"),
    (lambda: raw.check(), "check must be (status, function=''); got (): missing"),
    (lambda: raw.check(0, 1, 2), "check must be (status, function=''); got (0, 1, 2): too many"),
    (lambda: raw.prototype(), "prototype must be (name); got (): missing"),
    (lambda: raw.load(1), "load must be (); got (1): too many"),
    (lambda: raw.bound(), "bound must be (name); got (): missing"),
    (lambda: names.enumerator("relu"), "enumerator must be (kind, value, argument='value'); got ('relu'): missing"),
    (lambda: reference.sigmoid(), "sigmoid must be (x, out=None, ...; got (): missing"),
    (lambda: store.Store(), "Store must be (path, *, read_only=False); got (): missing"),
    (lambda: store.Store("").put(), "Store.put must be (entry, *, ...; got (): missing"),
    (lambda: cudnnpy.DeviceArray(), "DeviceArray must be (buffer, shape, ...; got (): missing"),
    (lambda: cudnnpy.Plan(), "Plan must be (problem, candidate, ...; got (): missing"),
    (lambda: cudnnpy.Plan.to_json(None, 1), "Plan.to_json must be (); got (1): too many"),
    (lambda: cudnnpy.Plan.from_json(), "Plan.from_json must be (text, ...; got (): missing"),
    (lambda: cudnnpy.DeviceProfile.load(), "DeviceProfile.load must be (name); got (): missing"),
]  # fmt: skip


def test_a_call_that_does_not_fit_is_told_with_the_signature() -> None:
    for call, text in REFUSED:
        with pytest.raises(TypeError, match=rf"argument(s)? of {says(text).removeprefix('^')}"):
            call()


def test_public_functions_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(cudnnpy.to_numpy)) is cudnnpy.to_numpy


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (cudnnpy.names, "module 'cudnnpy.names' has no attribute 'X'. It has ElementType, data_type, "),
        (store, "module 'cudnnpy.store' has no attribute 'X'. It has Choice, "),
        (descriptors, "module 'cudnnpy.descriptors' has no attribute 'X'. It has ActivationDescriptor, "),
        (cudnnpy.Plan, "type object 'Plan' has no attribute 'X'. It has check_serves, "),
        (cudnnpy.Graph, "type object 'Graph' has no attribute 'X'. It has add, "),
        (reference.Convolution, "type object 'Convolution' has no attribute 'X'. It has algorithm, "),
        (cudnnpy.torch.stats(), "'Stats' object has no attribute 'X'. It has "),
        (cudnnpy.cache_info(), "'CacheInfo' object has no attribute 'X'. It has "),
        (cudnnpy.availability.report(), "'Report' object has no attribute 'X'. It has "),
        (store.Store("").info(), "'StoreInfo' object has no attribute 'X'. It has "),
        (cudnnpy.torch, "module 'cudnnpy.torch' has no attribute 'X'. It has Stats, disable, "),
        (
            cudnnpy.DeviceProfile.load("h200"),
            (
                "'DeviceProfile' object has no attribute 'X'. It has cudnn, description, load, memory, names, of_device, "
                "properties, releases, save, set_by_hand, source, text, to_json"
            ),
        ),
        (cudnnpy.TensorSpec((1,)), "'TensorSpec' object has no attribute 'X'. It has alignment, "),
    ],
)
def test_a_module_class_or_object_lists_what_it_has(owner: Any, text: str) -> None:
    with pytest.raises(AttributeError, match=f"^{re.escape(text)}"):
        owner.X
