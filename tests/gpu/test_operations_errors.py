"""What the operations beside the convolutions refuse, before any work and with nothing written; and what every array
library gets back from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import operations
import pytest
import strategies
import torch
from operation_kinds import KINDS
from operation_problem import Problem, run
from operation_problems import CHOSEN
from operations import Case, differs
from test_arrays_gpu import LIBRARIES, Library, float64, numbers

import cudnnpy
from cudnnpy import raw

# Other libraries' own warnings are no failures here.
pytestmark = pytest.mark.filterwarnings("default")

X = (2, 8, 7, 6)
SAVED = ("saved_mean", "saved_inverse_variance")
REFUSED = (TypeError, ValueError)


def tensor(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.ones(shape or X, dtype=getattr(torch, dtype), device=strategies.DEVICE)


@pytest.fixture
def no_c_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned or looked up in libcudnn while this is in force."""
    cudnnpy.clear_cache()

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError(f"a C call: {arguments[:1]}")

    for name in ("call", "bound", "unchecked"):
        monkeypatch.setattr(raw, name, refuse)


def ready(call: str) -> tuple[Case, dict[str, Any], dict[str, Any]]:
    """A chosen problem's case, its arrays, and its other arguments with out among them."""
    problem = replace(CHOSEN[call], given=SAVED) if call == "BatchNormalization.backward" else CHOSEN[call]
    case = Case(replace(problem, with_out=True))
    arrays = {name: placed.tensor for name, placed in case.inputs.items()}
    return case, arrays, dict(case.keywords)


def assert_refused(
    case: Case, arrays: dict[str, Any], keywords: dict[str, Any], kinds: Any = REFUSED, match: str = " must "
) -> None:
    """The call with these arguments raises one of the kinds, and writes nothing."""
    misses = cudnnpy.cache_info().misses
    with pytest.raises(kinds, match=match):
        run(operations.nn, case.problem, arrays, keywords)
    assert not case.untouched(), case.untouched()
    assert cudnnpy.cache_info().misses == misses


def arrays_of(call: str) -> list[str]:
    """The names of the arrays that a ready call has."""
    problem = replace(CHOSEN[call], given=SAVED) if call == "BatchNormalization.backward" else CHOSEN[call]
    return list(KINDS[call].inputs(problem, np.random.default_rng(0)))


ARRAYS = {call: arrays_of(call) for call in KINDS}
EACH = [(call, name) for call in KINDS for name in (*ARRAYS[call], "out")]


def swapped(
    arrays: dict[str, Any], keywords: dict[str, Any], name: str, change: Callable[[torch.Tensor], Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments with one array changed."""
    if name == "out":
        return arrays, {**keywords, "out": change(keywords["out"])}
    return {**arrays, name: change(arrays[name])}, keywords


# One argument of any operation is wrong


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("host", [lambda t: t.cpu().float().numpy(), lambda t: t.cpu()], ids=["numpy", "torch"])
@pytest.mark.parametrize(("call", "name"), EACH)
def test_host_arrays_are_refused_by_name(call: str, name: str, host: Callable[[torch.Tensor], Any]) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(
        case, *swapped(arrays, keywords, name, host), TypeError, rf"{name} must be an array on a CUDA device; got"
    )


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("wrong", ["text", 3.0, [1.0, 2.0]], ids=["text", "number", "list"])
@pytest.mark.parametrize(("call", "name"), EACH)
def test_what_is_no_array_is_a_type_error(call: str, name: str, wrong: Any) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, *swapped(arrays, keywords, name, lambda _: wrong), TypeError, name)


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize(("call", "name"), EACH)
def test_integers_are_refused(call: str, name: str) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, *swapped(arrays, keywords, name, lambda t: t.new_zeros(t.shape, dtype=torch.int32)), TypeError)


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize(("call", "name"), EACH)
def test_shapes_that_do_not_fit_are_refused(call: str, name: str) -> None:
    case, arrays, keywords = ready(call)

    def longer(t: torch.Tensor) -> torch.Tensor:
        axis = min(1, t.ndim - 1)
        return t.new_ones([size + (at == axis) for at, size in enumerate(t.shape)])

    assert_refused(case, *swapped(arrays, keywords, name, longer), ValueError, " must have ")


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize(("call", "name"), EACH)
def test_another_type_than_the_others_is_refused(call: str, name: str) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, *swapped(arrays, keywords, name, other_type), REFUSED, r" must (be|have) ")


def other_type(t: torch.Tensor) -> torch.Tensor:
    return t.new_ones(t.shape, dtype=torch.float64 if t.dtype != torch.float64 else torch.float32)


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize(("call", "name"), EACH)
def test_empty_arrays_beside_others_are_refused(call: str, name: str) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, *swapped(arrays, keywords, name, lambda t: t[..., :0]), ValueError, " must ")


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("call", KINDS)
def test_results_that_write_one_element_twice_are_refused(call: str) -> None:
    case, arrays, keywords = ready(call)

    def expanded(out: torch.Tensor) -> torch.Tensor:
        return out.new_ones(1).expand(out.shape)

    assert keywords["out"].numel() > 1
    assert_refused(case, *swapped(arrays, keywords, "out", expanded), ValueError, "out")


def overlaps(call: str) -> list[str]:
    """The inputs that are as large as out, so that out can begin one element later in the same memory."""
    return [name for name in ARRAYS[call] if name in ("x", "dy", "y")]


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize(("call", "name"), [(call, name) for call in KINDS for name in overlaps(call)])
def test_results_that_overlap_an_input_are_refused(call: str, name: str) -> None:
    """In place is something else: the very same elements."""
    case, arrays, keywords = ready(call)
    shape = keywords["out"].shape
    memory = torch.ones(arrays[name].numel() + keywords["out"].numel(), device=strategies.DEVICE)
    memory = memory.to(keywords["out"].dtype)
    placed = memory[: arrays[name].numel()].view(arrays[name].shape)
    out = memory[1 : 1 + keywords["out"].numel()].view(shape)
    before = memory.clone()
    assert_refused(
        case, {**arrays, name: placed}, {**keywords, "out": out}, ValueError, rf"out must not overlap|{name}"
    )
    assert torch.equal(memory, before)


# those whose result is as large as an input
NOT_IN_PLACE = [call for call in KINDS if not KINDS[call].in_place and call != "Pooling.forward"]


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("call", NOT_IN_PLACE)
def test_in_place_where_it_is_not_offered_is_refused(call: str) -> None:
    case, arrays, keywords = ready(call)
    name = next(n for n in ARRAYS[call] if arrays[n].shape == keywords["out"].shape)
    assert_refused(case, arrays, {**keywords, "out": arrays[name]}, ValueError, "out must not overlap")


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("call", [call for call, kind in KINDS.items() if "beta" in kind.factors])
def test_beta_without_out_is_refused(call: str) -> None:
    case, arrays, keywords = ready(call)
    del keywords["out"]
    assert_refused(case, arrays, {**keywords, "beta": 1.0}, ValueError, "beta")


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("wrong", ["1", None, [1.0], 1j], ids=repr)
@pytest.mark.parametrize(("call", "name"), [(call, name) for call, kind in KINDS.items() for name in kind.factors])
def test_factors_are_numbers(call: str, name: str, wrong: Any) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, arrays, {**keywords, name: wrong}, TypeError, name)


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("call", KINDS)
def test_what_is_no_stream_is_refused(call: str) -> None:
    case, arrays, keywords = ready(call)
    assert_refused(case, arrays, {**keywords, "stream": "first"}, TypeError, "stream")


# Options and shapes of one operation


def call_of(name: str, *arrays: Any, method: str = "forward", options: dict[str, Any] | None = None, **kw: Any) -> Any:
    """A call that the test makes: the object is made in it, since an option may be refused at either time."""
    return lambda: getattr(getattr(operations.nn, name)(**(options or {})), method)(*(a() for a in arrays), **kw)


def of(*shape: int, dtype: str = "float32") -> Callable[[], torch.Tensor]:
    return lambda: tensor(*shape, dtype=dtype)


def option(name: str, key: str, value: Any, shape: tuple[int, ...] = X, **more: Any) -> Any:
    return call_of(name, of(*shape), options={key: value, **more})


BAD: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "an activation that there is not": (option("Activation", "mode", "gelu"), ValueError, "mode"),
    "a mode that is no text": (option("Activation", "mode", 3), TypeError, "mode"),
    "a coefficient that is no number": (option("Activation", "coefficient", "1"), TypeError, "coefficient"),
    "an activation of rank 6": (call_of("Activation", of(1, 1, 1, 1, 1, 2)), ValueError, "x"),
    "an activation of rank 0": (
        call_of("Activation", lambda: torch.ones((), device=strategies.DEVICE)),
        ValueError,
        "x",
    ),
    "a pooling that there is not": (option("Pooling", "mode", "median"), ValueError, "mode"),
    "a window of 0": (option("Pooling", "window", 0), ValueError, "window"),
    "a window of a fraction": (option("Pooling", "window", 1.5), TypeError, "window"),
    "a window of another rank": (option("Pooling", "window", (2, 2, 2)), ValueError, "window"),
    "padding as large as the window": (option("Pooling", "padding", 2), ValueError, "padding"),
    "padding below 0": (option("Pooling", "padding", -1), ValueError, "padding"),
    "a stride of 0": (option("Pooling", "stride", 0), ValueError, "stride"),
    "a window larger than x": (option("Pooling", "window", 8), ValueError, "window|x"),
    "a pooling of rank 2": (option("Pooling", "window", 1, (4, 4)), ValueError, "x"),
    "a layout that there is not": (option("Pooling", "layout", "NCWH"), ValueError, "layout"),
    "a layout of another rank": (option("Pooling", "layout", "NCDHW"), ValueError, "layout"),
    "a softmax that there is not": (option("Softmax", "algorithm", "quick"), ValueError, "algorithm"),
    "a softmax over rows": (option("Softmax", "mode", "row"), ValueError, "mode"),
    "a softmax of rank 1": (call_of("Softmax", of(5)), ValueError, "x"),
    "a normalization that there is not": (
        call_of("BatchNormalization", of(*X), of(8), of(8), method="forward_training", options={"mode": "both"}),
        ValueError,
        "mode",
    ),
    "an epsilon below 0": (
        call_of("BatchNormalization", of(*X), of(8), of(8), method="forward_training", options={"epsilon": -1.0}),
        ValueError,
        "epsilon",
    ),
    "a running mean alone": (
        lambda: operations.nn.BatchNormalization().forward_training(
            tensor(), tensor(8), tensor(8), running_mean=tensor(8)
        ),
        ValueError,
        "running_mean|running_variance",
    ),
    "a saved mean alone": (
        lambda: operations.nn.BatchNormalization().backward(tensor(), tensor(), tensor(8), saved_mean=tensor(8)),
        ValueError,
        "saved_mean|saved_inverse_variance",
    ),
    "an activation that cannot be fused": (
        call_of("BatchNormalization", of(*X), of(8), of(8), method="forward_training", activation="tanh"),
        ValueError,
        "activation",
    ),
    "a factor before a fused activation": (
        call_of("BatchNormalization", of(*X), of(8), of(8), method="forward_training", activation="relu", alpha=2.0),
        ValueError,
        "alpha|activation",
    ),
    "an average factor above 1": (
        call_of("BatchNormalization", of(*X), of(8), of(8), method="forward_training", average_factor="1"),
        TypeError,
        "average_factor",
    ),
    "parameters in float16": (
        call_of(
            "BatchNormalization", of(*X, dtype="float16"), of(8, dtype="float16"), of(8), method="forward_training"
        ),
        TypeError,
        "scale",
    ),
    "a batch of rank 1": (
        call_of("BatchNormalization", of(5), of(5), of(5), method="forward_training"),
        ValueError,
        "x",
    ),
    "a fused convolution of float64": (
        call_of("FusedConvolution", of(*X, dtype="float64"), of(4, 8, 3, 3, dtype="float64")),
        TypeError,
        "x",
    ),
    "a fused activation that there is not": (
        call_of("FusedConvolution", of(*X), of(4, 8, 3, 3), activation="gelu"),
        ValueError,
        "activation",
    ),
    "channels that do not fit": (call_of("FusedConvolution", of(*X), of(4, 7, 3, 3)), ValueError, "w"),
    "no groups": (
        call_of("FusedConvolution", of(*X), of(4, 8, 3, 3), options={"groups": 0}),
        ValueError,
        "groups",
    ),
    "a preference that there is not": (
        call_of("FusedConvolution", of(*X), of(4, 8, 3, 3), options={"prefer": "quickest"}),
        ValueError,
        "prefer",
    ),
}


@pytest.mark.usefixtures("no_c_calls")
@pytest.mark.parametrize("what", BAD)
def test_bad_options_and_shapes(what: str) -> None:
    call, kind, named = BAD[what]
    with pytest.raises(kind, match=rf"\b({named})\b"):
        call()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Activation", {"mode": "tanh"}),
        ("Pooling", {"window": (2, 3), "padding": [0, 1]}),
        ("Softmax", {"algorithm": "log"}),
        ("BatchNormalization", {"epsilon": 1e-3}),
    ],
)
def test_objects_are_frozen_equal_and_hashable(name: str, options: dict[str, Any]) -> None:
    make = getattr(cudnnpy, name)
    one, same, other = make(**options), make(**options), make()
    assert one == same != other
    assert len({one, same, other}) == 2
    with pytest.raises(AttributeError):
        setattr(one, next(iter(options)), None)
    with pytest.raises(TypeError):
        make(wrong=1)


# Every library in and out


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    cudnnpy.clear_cache()
    yield
    cudnnpy.set_allocator(None)


def everywhere(call: str, dtype: str) -> Problem:
    """The chosen problem of a call for arrays in C order, which is all that some libraries have."""
    problem = replace(CHOSEN[call], dtype=dtype, memory=())
    if problem.operation == "FusedConvolution":  # for whose engines the channels are last
        return replace(problem, options={**problem.options, "layout": "NHWC"})
    return problem


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("call", KINDS)
def test_every_operation_in_every_library(call: str, dtype: str, library: Library) -> None:
    """Results are of the library of the arrays given, and the same results as anywhere."""
    if dtype == "bfloat16" and not library.has_bfloat16:
        pytest.skip("this library has no bfloat16")
    problem = everywhere(call, dtype)
    if call == "BatchNormalization.forward_training" and not library.writes:
        problem = replace(problem, given=())  # running statistics are written
    for with_out in [False, True] if library.writes else [False]:
        in_library(Case(replace(problem, with_out=with_out)), library)


def in_library(case: Case, library: Library) -> None:
    """The call on a library's copies of the arrays."""
    problem, kind = case.problem, case.kind

    def make(values: np.ndarray, name: str) -> Any:
        dtype = numbers(1, dtype=kind.dtype_of(problem, name)).dtype
        return library.make(np.ascontiguousarray(values.astype(np.float32).astype(dtype)))  # all that Numba copies

    arrays = {name: make(placed.numpy(), name) for name, placed in case.inputs.items()}
    outs = {name: make(placed.numpy(), name) for name, placed in case.outs.items()}
    keywords = {name: value for name, value in case.keywords.items() if not name.startswith("out")}
    keywords |= {keyword: outs[name] for name, keyword in kind.outs(problem).items()}
    found = dict(zip(kind.results_of(problem), run(cudnnpy, problem, arrays, keywords), strict=True))
    for name, result in found.items():
        assert result is outs[name] if name in outs else isinstance(result, library.result)
    for name, result in (found | {name: arrays[name] for name in kind.updated(problem)}).items():
        assert cudnnpy.to_numpy(result).dtype.name == kind.dtype_of(problem, name)
        said = differs(float64(result), case.expected[name], case.allowed[name])
        assert not said, f"{name}: {said}"


@pytest.mark.parametrize("call", KINDS)
def test_a_read_only_result_is_refused(call: str) -> None:
    library = LIBRARIES["jax"]()
    case = Case(replace(everywhere(call, "float32"), with_out=True))
    arrays = {name: placed.tensor for name, placed in case.inputs.items()}
    out = library.make(np.zeros(case.outs[case.kind.results[0]].tensor.shape, np.float32))
    assert_refused(case, arrays, {**case.keywords, "out": out}, ValueError, r"out must be .*; got a read-only one")


def test_each_call_answers_in_the_library_that_it_was_given() -> None:
    """Though arrays of several libraries have the same shape, strides and dtype, and so the same plan would do."""
    x = np.random.default_rng(0).uniform(-1, 1, (2, 4, 6, 6)).astype(np.float32)
    w = np.random.default_rng(1).uniform(-1, 1, (4, 4, 3, 3)).astype(np.float32)
    for _ in range(2):
        for make in LIBRARIES.values():
            library = make()
            assert isinstance(cudnnpy.Activation("tanh").forward(library.make(x)), library.result)
            assert isinstance(cudnnpy.Convolution(tf32=False).forward(library.make(x), library.make(w)), library.result)
